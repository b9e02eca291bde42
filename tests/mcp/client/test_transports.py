"""stdio, Streamable HTTP and SSE behave alike."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter, subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.mcp.client.http_transport import make_client
from dragoman.mcp.client.large_messages import MessageBodies
from dragoman.mcp.server_spec import ServerSpec
from tests.ports import free_port
from tests.providers.servers import accepting
from tests.waiting import LIMIT, poll

SERVER = str(Path(__file__).with_name("sdk_server.py"))
WAYS = ("stdio", "http", "sse")


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def serving(way: str, port: int) -> AsyncIterator[subprocess.Process]:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, SERVER, way, str(port), stdout=quiet, stderr=quiet
    )
    try:
        await poll(lambda: answers(port))
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def spec_of(way: str, **details: Any) -> AsyncIterator[ServerSpec]:
    more = {"connect_timeout": LIMIT, **details}
    if way == "stdio":
        yield ServerSpec(name="sdk", command=(sys.executable, SERVER, "stdio"), **more)
        return
    port = free_port()
    path = "mcp" if way == "http" else "sse"
    async with serving(way, port):
        yield ServerSpec(name="sdk", url=f"http://127.0.0.1:{port}/{path}", **more)


@pytest.mark.parametrize("way", WAYS)
async def test_a_real_server_answers_alike_over_every_transport(open_hub: Any, way: str) -> None:
    async with spec_of(way) as spec, open_hub(spec) as hub:
        (status,) = await hub.servers.wait_until_started()
        assert (status.state, status.tools, status.error) == ("ready", 13, None)
        assert hub.registry.get("sdk.add").effect == "read"
        assert (await hub.call("sdk.add", {"a": 1, "b": 2})).result == {"sum": 3}
        assert "Error executing tool fail" in (await hub.call("sdk.fail")).error.message
        assert len((await hub.call("sdk.big", {"size": 3_000_000})).result["result"]) == 3_000_000
        assert (await hub.call("sdk.resources.read", {"uri": "note://one"})).result == "note one"
        heard: list[Any] = []
        assert (await hub.call("sdk.steps", on_progress=heard.append)).ok
        assert heard == [{"progress": 1.0, "total": 2.0, "message": "half"}]
        assert not (await hub.call("sdk.ask")).ok


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_that_a_server_adds_is_announced_in_every_revision(
    open_hub: Any, until: Any, way: str
) -> None:
    async with spec_of(way) as spec, open_hub(spec) as hub:
        await hub.servers.wait_until_started()
        assert (await hub.call("sdk.grow")).ok
        await until(hub.servers.changes)
        assert [change.name for change in hub.servers.changes()] == ["grown_0"]


@pytest.mark.parametrize("way", ["http", "sse"])
async def test_a_server_gets_its_own_headers_and_nothing_of_the_caller(open_hub: Any, way: str) -> None:
    headers = {"Authorization": "Bearer of-the-server", "X-Plain": "abc"}
    async with spec_of(way, headers=headers) as spec, open_hub(spec) as hub:
        await hub.servers.wait_until_started()
        seen = (await hub.call("sdk.headers")).result
        assert (seen["authorization"], seen["x-plain"]) == ("***", "abc")
        assert "cookie" not in seen


@pytest.mark.parametrize("way", ["http", "sse"])
async def test_a_server_that_went_away_fails_calls_at_once_and_is_found_again(
    open_hub: Any, way: str
) -> None:
    port = free_port()
    spec = ServerSpec(name="sdk", url=f"http://127.0.0.1:{port}/{'mcp' if way == 'http' else 'sse'}")
    async with open_hub(spec) as hub:
        async with serving(way, port) as process:
            hub.servers.reconnect("sdk")
            async with asyncio.timeout(LIMIT):
                while hub.servers.status("sdk").state != "ready":
                    await hub.servers.wait_until_started()
            process.kill()
            await process.wait()
        async with asyncio.timeout(120):
            failed = await hub.call("sdk.headers")
        messages = (failed.status, failed.error.transient)
        assert messages in {("failed", True), ("uncertain", False)}, (
            "the latter where it was sent before it was known"
        )
        async with serving(way, port):
            hub.servers.reconnect("sdk")
            await hub.servers.wait_until_started()
            assert (await hub.call("sdk.headers")).ok


Respond = Callable[[dict[str, Any]], bytes | None]


@asynccontextmanager
async def misbehaving(respond: Respond, *, events: bool = False) -> AsyncIterator[ServerSpec]:
    """An HTTP server whose answer to a call is what `respond` gives; None: it closes the connection.

    With `events` it answers with event streams, in pieces of 7 bytes.
    """

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                message = json.loads(await reader.readexactly(length)) if length else {}
                answer = modern(message, respond)
                if answer is None:
                    break
                kind = "text/event-stream" if events else "application/json"
                answer = b"event: message\ndata: " + answer + b"\n\n" if events else answer
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n".encode())
                writer.write(f"content-length: {len(answer)}\r\n\r\n".encode())
                for start in range(0, len(answer), 7 if events else len(answer)):
                    writer.write(answer[start : start + (7 if events else len(answer))])
                    await writer.drain()
        except (asyncio.IncompleteReadError, StopIteration, ConnectionError):
            pass
        finally:
            writer.close()

    async with accepting(serve) as port:
        yield ServerSpec(name="web", url=f"http://127.0.0.1:{port}/mcp", transport="http", timeout=120)


def modern(message: dict[str, Any], respond: Respond) -> bytes | None:
    """The answer of a server of the newest revision."""
    if message.get("method") == "tools/call":
        return respond(message)
    tool = {"name": "go", "inputSchema": {"type": "object"}}
    deep: Any = {}
    for _ in range(400):
        deep = {"a": deep}
    results: dict[str, Any] = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": [tool, {"name": "deep", "inputSchema": {"type": "object", "x": deep}}]},
    }
    found = results.get(message.get("method", ""))
    if found is None:
        error = {"code": -32601, "message": "no"}
        return json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "error": error}).encode()
    cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {**found, **cached}}).encode()


def asking(message: dict[str, Any]) -> bytes:
    params = {
        "mode": "form",
        "message": "Your name?",
        "requestedSchema": {"type": "object", "properties": {}},
    }
    wanted = {"q": {"method": "elicitation/create", "params": params}}
    result = {"resultType": "input_required", "inputRequests": wanted, "requestState": "s"}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()


def response_to(id: Any, result: bytes = b'{"content":[]}') -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(id).encode(), result)


@pytest.mark.parametrize(
    ("respond", "status", "text"),
    [
        (lambda _: b'{"jsonrpc": "2.0", "id"', "failed", "its response is not valid JSON"),
        (lambda request: response_to(request["id"], b'{"content":[],"a":NaN}'), "failed", "not valid JSON"),
        (lambda request: response_to(request["id"] + 1), "failed", "its response has the id"),
        (lambda request: response_to(request["id"] - 1), "failed", "its response has the id"),
        (lambda _: response_to("x"), "failed", "its response has the id 'x'"),
        (lambda _: response_to(True), "failed", "its response has the id 'True'"),
        (lambda _: response_to(None), "failed", "its response has the id 'None'"),
        (lambda _: b'{"jsonrpc":"2.0","method":"notifications/x"}', "failed", "instead of a result"),
        (lambda _: b'{"jsonrpc":"2.0","id":9,"method":"ping"}', "failed", "is the message 'ping' instead of"),
        (lambda _: b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"bad"}}', "failed", "bad"),
        (lambda _: b"[]", "failed", "Failed to parse JSON"),
        (lambda request: b"[%s]" % response_to(request["id"]), "failed", "Failed to parse JSON"),
        (lambda _: b'{"a": "' + b"x" * 3_000_000 + b'"}', "failed", "more than 2,000,000 bytes"),
        (
            lambda request: response_to(request["id"], b"[%s1]" % (b"1," * 400_000)),
            "failed",
            "JSON values and",
        ),
        (lambda _: None, "uncertain", "was lost during the call"),
        (asking, "failed", "the server asked for input: 'Your name?'"),
    ],
)
async def test_a_broken_answer_over_http_is_the_failure_of_its_call_alone(
    open_hub: Any, respond: Respond, status: str, text: str
) -> None:
    async with misbehaving(respond) as made, open_hub(replace(made, message_limit=2_000_000)) as hub:
        (ready,) = await hub.servers.wait_until_started()
        assert (ready.state, ready.protocol, hub.ids()) == ("ready", "2026-07-28", ["web.go"])
        assert "'deep' is left out" in ready.problems[0]
        outcome = await hub.call("web.go")
        assert outcome.status == status
        assert text in outcome.error.message
        assert hub.servers.status("web").state == "ready"


HALVES = {
    "an escaped half": (rb"cut \ud83d", "cut \ufffd"),
    "a second half": (rb"\uDE00 cut", "\ufffd cut"),
    "a pair": (rb"\ud83d\ude00", "\U0001f600"),
    "an escaped backslash before it": (rb"\\ud83d", r"\ud83d"),
    "its bytes": (b"cut \xed\xa0\xbd", None),
}


@pytest.mark.parametrize("events", [False, True])
async def test_half_an_emoji_of_a_server_reaches_the_caller_as_a_replacement_character(
    open_hub: Any, events: bool
) -> None:
    answers: list[bytes] = []

    def respond(request: dict[str, Any]) -> bytes:
        body = b'{"resultType":"complete","content":[{"type":"text","text":"%s"}]}'
        return response_to(request["id"], body % answers.pop())

    async with misbehaving(respond, events=events) as spec, open_hub(spec) as hub:
        await hub.servers.wait_until_started()
        for name, (sent, expected) in HALVES.items():
            answers.append(sent)
            outcome = await hub.call("web.go")
            assert outcome.ok, (name, outcome.error)
            text = outcome.result["result"] if isinstance(outcome.result, dict) else outcome.result
            assert text.rstrip("\ufffd") == "cut " if expected is None else text == expected, name
        assert hub.servers.status("web").attempts == 1


async def test_a_server_that_never_answers_over_http_ends_in_a_timeout_and_lets_go(open_hub: Any) -> None:
    async def hold(reader: StreamReader, _: StreamWriter) -> None:
        while await reader.read(65_536):
            pass

    async with asyncio.timeout(LIMIT), accepting(hold) as port:
        spec = ServerSpec(name="web", url=f"http://127.0.0.1:{port}/mcp", connect_timeout=0.3)
        async with open_hub(spec) as hub:
            (status,) = await hub.servers.wait_until_started()
            assert (status.state, status.error) == ("failed", "it did not start within 0.3 seconds")


@pytest.mark.promise("mcp-client-abort")
@pytest.mark.parametrize("way", WAYS)
async def test_an_aborted_call_stops_what_the_server_does_over_every_transport(
    open_hub: Any, way: str
) -> None:
    async with spec_of(way) as spec, open_hub(spec) as hub:
        await hub.servers.wait_until_started()

        async def see(*wanted: str) -> None:
            async with asyncio.timeout(LIMIT):
                while (await hub.call("sdk.waits")).result["result"] != list(wanted):
                    pass

        task = asyncio.create_task(hub.call("sdk.wait"))
        await see("began")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await see("began", "stopped")


@pytest.mark.parametrize("status", [202, 502])
async def test_a_body_that_nobody_uses_is_not_read_for_ever(status: int) -> None:
    async def pour(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: text/plain\r\n\r\n" % status)
        for _ in range(100):
            writer.write(b"x" * 100_000)
            await writer.drain()

    async with asyncio.timeout(LIMIT), accepting(pour) as port:
        url = f"http://127.0.0.1:{port}/"
        async with make_client(url, {}, limit=200_000, bodies=MessageBodies()) as client:
            response = await client.post(url, json={})
    assert (response.status_code, len(response.content)) == (status, 200_000)
