"""`/mcp` with unusual and invalid requests."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from dragoman.mcp.server.limits import McpLimits
from tests.mcp.server import hub as hubs
from tests.mcp.server.hub import batch, body, post, served

pytestmark = pytest.mark.anyio
ADD: dict[str, Any] = {"name": "hub_call", "arguments": batch("math.add", a=1, b=2)}
HELLO = body(
    "initialize",
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"nonsense", b"\xff\xfe", b"[]", b"3", b'{"jsonrpc":"2.0"', b"[" * 100_000, b'"tools/call"'],
)
@pytest.mark.parametrize("version", ["", "2025-11-25", hubs.MODERN])
async def test_garbage_is_refused_and_the_hub_goes_on(garbage: bytes, version: str) -> None:
    async with served() as hub:
        answer = await post(hub, garbage, mcp_protocol_version=version)
        assert 400 <= answer.status_code < 500
        assert (await post(hub, body("tools/call", modern=True, **ADD))).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"mcp_method": "tools/list"}, 400, -32020),
        ({"mcp_name": "hub_list"}, 400, -32020),
        ({"mcp_method": ""}, 400, -32020),
        ({"mcp_protocol_version": "2031-01-01"}, 400, None),
        ({"accept": "text/html"}, 406, None),
        ({"content_type": "text/plain"}, 400, None),
    ],
)
async def test_headers_that_do_not_fit_the_message_are_refused(
    headers: dict[str, str], status: int, code: int | None
) -> None:
    async with served() as hub:
        answer = await post(hub, body("tools/call", modern=True, **ADD), **headers)
    assert answer.status_code == status
    if code is not None:
        assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("id", [None, 1.5, True, [], {}], ids=repr)
async def test_a_request_whose_id_is_none_is_refused_not_taken_for_a_notification(id: Any) -> None:
    async with served(pinned=["math.add"]) as hub:
        for call in (ADD, {"name": "math_add", "arguments": {"a": 1, "b": 2}}):
            for modern in (False, True):
                answer = await post(hub, body("tools/call", modern=modern, **call) | {"id": id})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, -32600), error
        assert (await post(hub, body("notifications/initialized") | {"id": 1})).status_code < 500


async def test_an_argument_may_be_the_name_of_a_method() -> None:
    async with served(pinned=["math.*"]) as hub:
        answer = await post(hub, body("tools/call", name="math_add", arguments={"a": 1, "b": "initialize"}))
        assert (answer.status_code, "b: expected" in answer.text) == (200, True)


async def test_a_batch_is_refused_with_what_to_do() -> None:
    async with served() as hub:
        answer = await post(hub, b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]')
    assert (answer.status_code, "in a request of its own" in answer.text) == (400, True)


async def test_an_unknown_method_is_an_error_of_the_protocol() -> None:
    async with served() as hub:
        answer = await post(hub, body("tools/eat", modern=True))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with served(limits=McpLimits(body=10_000)) as hub:
        answer = await post(hub, b" " * 10_001)
        small = await post(hub, body("tools/call", modern=True, **ADD))
    assert (answer.status_code, small.status_code) == (413, 200)
    assert answer.json()["error"]["data"]["code"] == "too_large"


@pytest.mark.promise("mcp-rebinding")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "hub.example"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost.evil.example"}, 403),
        ({"origin": "http://localhost:5173"}, 200),
        ({"origin": "https://console.example"}, 200),
    ],
)
async def test_a_web_page_cannot_reach_a_hub_on_this_machine(headers: dict[str, str], status: int) -> None:
    async with served(hosts=["hub.example"], origins=["https://console.example"]) as hub:
        answer = await post(hub, body("tools/call", modern=True, **ADD), **headers)
    assert answer.status_code == status


async def test_a_page_of_an_admitted_origin_may_ask_first_and_read_the_answer() -> None:
    headers = {
        "origin": "https://console.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "mcp-method",
    }
    async with served(keys=True, origins=["https://console.example"]) as hub:
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
            response = await http.request("OPTIONS", hub.url, headers=headers)
            stranger = await http.request("OPTIONS", hub.url, headers={"origin": "https://evil.example"})
        read = await post(
            hub, body("tools/list"), origin="https://console.example", authorization="Bearer me"
        )
    assert (response.status_code, response.headers["access-control-allow-headers"]) == (204, "mcp-method")
    assert stranger.status_code == 403
    assert read.headers["access-control-allow-origin"] == "https://console.example"


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_nobody_comes_in_without_a_key(method: str) -> None:
    async with served(keys=True) as hub, httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.request(method, hub.url)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_for_something_else_is_told_what_it_lacks() -> None:
    async with served(keys=True) as hub:
        answer = await post(hub, body("tools/call", modern=True, **ADD), authorization="Bearer reader")
    assert answer.status_code == 403
    assert 'scope="operations"' in answer.headers["www-authenticate"]


async def test_a_stream_that_is_asked_for_again_after_an_event_is_a_new_one() -> None:
    async with served() as hub:
        session = (await post(hub, HELLO)).headers["mcp-session-id"]
        headers = {"mcp-session-id": session, "accept": "text/event-stream", "last-event-id": "7"}
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=60) as http,
            http.stream("GET", hub.url, headers=headers) as response,
        ):
            assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")


async def test_a_session_is_its_owner_s_only_and_ends_when_it_is_deleted() -> None:
    async with served(keys=True) as hub:
        opened = await post(hub, HELLO, authorization="Bearer me")
        session = opened.headers["mcp-session-id"]
        ours = await post(hub, body("ping"), authorization="Bearer me", mcp_session_id=session)
        theirs = await post(hub, body("ping"), authorization="Bearer other", mcp_session_id=session)
        headers = {"authorization": "Bearer me", "mcp-session-id": session}
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
            ended = await http.delete(hub.url, headers=headers)
        after = await post(hub, body("ping"), authorization="Bearer me", mcp_session_id=session)
    assert [answer.status_code for answer in (opened, ours, theirs, ended, after)] == [
        200,
        200,
        404,
        200,
        404,
    ]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_earlier_revision_works_with_and_without_a_session(version: str) -> None:
    async with served() as hub:
        hello = {**HELLO, "params": {**HELLO["params"], "protocolVersion": version}}
        opened = await post(hub, hello)
        session = opened.headers["mcp-session-id"]
        inside = await post(
            hub, body("tools/call", **ADD), mcp_session_id=session, mcp_protocol_version=version
        )
        alone = await post(hub, body("tools/call", **ADD), mcp_protocol_version=version)
        listed = await post(hub, body("tools/list"), mcp_protocol_version=version)
    assert f'"protocolVersion":"{version}"' in opened.text
    assert '"structuredContent":{"result":[{"success":true,"result":3}]}' in inside.text
    assert alone.json()["result"]["structuredContent"] == {"result": [{"success": True, "result": 3}]}
    assert "hub_search" in listed.text


async def test_a_fast_answer_says_the_same_as_the_sdk_does() -> None:
    """`text/*` takes both forms as well, which only the SDK knows."""
    message = body("tools/call", modern=True, name="hub_schema", arguments={"tool": "math.add"})
    async with served() as hub:
        short = await post(hub, message)
        long = await post(hub, message, accept="application/json, text/*")
    left, right = (answer.json()["result"] for answer in (short, long))
    assert left.pop("_meta").keys() == right.pop("_meta").keys()
    assert left == right
