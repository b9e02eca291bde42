"""Answers of the API match the OpenAPI document."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.config.sections import McpServerConfig
from dragoman.identity import LOCAL
from dragoman.mcp.server_spec import ServerStatus
from dragoman.operations import Registry
from dragoman.operations import operation as mark
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.call_tree import CallTreeNode
from dragoman.operations.ledger import CallRecord, LedgerEntry
from dragoman.operations.outcome import CallFailure, CallOutcome
from dragoman.operations.results.artifact import Artifact
from dragoman.server.approval_json import approval_to_json
from dragoman.server.calls import call_to_json
from dragoman.server.http.query_parameters import to_camel_case
from dragoman.spokes import Spoke
from tests.server.openapi import check, fields, refused
from tests.serving import Served, serving
from tests.waiting import poll

RAW = Path(__file__).parents[1] / "mcp" / "client" / "raw_server.py"
CALL, ORDER = "/api/operations/{id}/call", {"item": "tea"}
SHOP = '''
import asyncio

from dragoman import operation


@operation("shop", effect="read")
async def price(item: str) -> float:
    """Look up a price."""
    return {"tea": 3.5}[item]


@operation("shop", approval=True)
async def order(item: str) -> str:
    """Order an item."""
    return item


@operation("shop", effect="read")
async def catalog() -> str:
    """Tell everything there is."""
    return "tea\\n" * 20_000


@operation("shop", effect="read")
async def wait() -> None:
    """Wait until it is stopped."""
    await asyncio.Event().wait()
'''
BATCH: dict[str, Any] = {
    "calls": [{"tool": "shop.price", "input": ORDER}, {"tool": "shop.price", "input": {"item": "gold"}}]
}
RUN: list[dict[str, Any]] = [{"tools": [{"name": "hub_call", "input": BATCH}]}, {"text": "It is 3.5."}]


@asynccontextmanager
async def shop(folder: Path, *steps: dict[str, Any], **config: Any) -> AsyncIterator[Served]:
    """A hub with a shop."""
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    async with serving(folder, steps, operations=[str(folder / "shop.py")], **config) as served:
        yield served


async def call(served: Served, id: str, input: Any = None, **more: Any) -> Any:
    return await check(served, "post", CALL, id=id, json=input or {}, **more)


def test_the_document_names_every_field_that_is_said() -> None:
    stated: dict[str, Any] = {"id": "x", "owner": "o", "operation": "a.b", "input": {}, "input_hash": "h"}
    record = CallRecord(**stated, effect="read", idempotency_key="k", started_at=0.0)
    request = ApprovalRequest(**stated, items=(), created_at=0.0, expires_at=1.0)
    assert fields("CallNode") == set(CallTreeNode.__struct_encode_fields__)
    assert fields("CallLine") == {*fields("CallNode"), "owner", "runId", "sessionId"}
    more = {"source", "approvalId", "approval", "below"}
    assert fields("Call") == {*call_to_json(LedgerEntry(record=record)), *more}
    assert fields("CallApproval") == {*approval_to_json(request, LOCAL), "sessionTitle", "policy"}
    assert fields("Artifact") == {to_camel_case(name) for name in Artifact.__struct_fields__} - {"owner"}
    assert fields("McpServer") == {to_camel_case(name) for name in ServerStatus.__struct_fields__}
    assert fields("NewMcpServer") == {"name", *McpServerConfig.__struct_fields__}
    failure = CallFailure(code="c", message="m", hint="h", transient=True, problems=[{}], input_schema={})
    assert fields("Failure") == set(failure.to_json())
    replies = {"callId", "status", "approvalId", "notes", "success", "result", "error"}
    assert fields("Outcome") == replies
    inside = {"ok", "operation", "suspendedCall"}
    assert {to_camel_case(name) for name in CallOutcome.__struct_fields__} - inside == replies - {"success"}


async def test_calls_and_trees_answer_as_the_document_says(tmp_path: Path) -> None:
    async with shop(tmp_path, *RUN) as served:
        await served.chat("What is tea?")
        listed = await check(served, "get", "/api/calls")
        assert [each["name"] for each in listed["calls"]] == ["shop.price", "shop.price", "hub.call"]
        run, last = listed["calls"][0]["runId"], listed["calls"][0]["id"]
        page = await check(served, "get", "/api/calls", params={"limit": 2, "run": run})
        rest = await check(served, "get", "/api/calls", params={"before": page["next"]})
        assert [each["name"] for each in rest["calls"]] == ["hub.call"]
        of_run = await check(served, "get", "/api/calls/{id}/tree", id=run)
        assert [each["kind"] for each in of_run["tree"]["children"]] == ["model", "model"]
        of_call = await check(served, "get", "/api/calls/{id}/tree", id=last)
        assert [step["kind"] for step in of_call["path"]] == ["run", "call"]
        same = {"since": of_call["version"]}
        brief = await check(served, "get", "/api/calls/{id}/tree", id=last, params=same)
        assert set(brief) == {"version", "running", "now"}
        failed = await check(served, "get", "/api/calls", params={"status": "failed"})
        (only,) = failed["calls"]
        assert (await check(served, "get", "/api/calls/{id}", id=only["id"]))["error"][
            "code"
        ] == "call_failed"
        assert await refused(served, "get", "/api/calls", params={"status": "lost"}) == 400
        assert await refused(served, "get", "/api/calls", params={"before": "nobody"}) == 404
        for path in ("/api/calls/{id}", "/api/calls/{id}/tree"):
            assert await refused(served, "get", path, id="nobody") == 404


async def test_stopping_a_call_answers_as_the_document_says(tmp_path: Path) -> None:
    async with shop(tmp_path) as served:
        waiting = asyncio.create_task(call(served, "shop.wait"))

        async def look() -> list[Any]:
            calls: list[Any] = (await check(served, "get", "/api/calls", params={"status": "running"}))[
                "calls"
            ]
            return calls

        running = await poll(look)
        id = running[0]["id"]
        assert (await check(served, "get", "/api/calls/{id}/tree", id=id))["running"] is True
        assert await check(served, "post", "/api/calls/{id}/abort", id=id) == {"id": id, "aborted": True}
        assert ((await waiting)["status"], (await waiting)["error"]["code"]) == ("aborted", "aborted")
        assert (await check(served, "post", "/api/calls/{id}/abort", id=id))["aborted"] is False
        assert await refused(served, "post", "/api/calls/{id}/abort", id="nobody") == 404


async def test_a_call_that_wants_approval_answers_as_the_document_says(tmp_path: Path) -> None:
    async with shop(tmp_path) as served:
        request = await call(served, "shop.order", ORDER)
        assert (request["status"], request["error"]["code"]) == ("pending", "approval_needed")
        shown = await check(served, "get", "/api/calls/{id}", id=request["callId"])
        assert shown["approvalId"] == request["approvalId"]
        listed = await check(served, "get", "/api/approvals", params={"status": "pending"})
        assert [each["id"] for each in listed["approvals"]] == [request["approvalId"]]
        place = {"verb": "post", "path": "/api/approvals/{id}", "id": request["approvalId"]}
        assert await refused(served, **place, json={"approved": "perhaps"}) == 400
        assert (await check(served, **place, json={"approved": True}))["mayAnswer"] is False
        assert await refused(served, **place, json={"approved": False}) == 409
        done = await call(served, "shop.order", ORDER, params={"approval": request["approvalId"]})
        assert (done["callId"], done["result"]) == (request["callId"], "tea")
        read = await check(served, "get", "/api/approvals/{id}", id=request["approvalId"])
        assert read["status"] == "used"
        assert await refused(served, "get", "/api/approvals/{id}", id="nobody") == 404
        assert await refused(served, "get", "/api/approvals", params={"status": "lost"}) == 400


async def test_meta_tools_are_called_by_name_and_tell_what_a_model_would_be_told(tmp_path: Path) -> None:
    async with shop(tmp_path) as served:
        wrapped = {"calls": [{"tool": "shop.price", "input": {"input": ORDER}}]}
        (reply,) = (await call(served, "hub.call", wrapped))["result"]
        assert (reply["result"], len(reply["notes"])) == (3.5, 1)
        assert (await call(served, "shop.price", {"input": ORDER}))["error"]["code"] == "invalid_input"
        found = await call(served, "hub_search", {"q": "look up price"})
        assert found["result"]["tools"][0]["tool"] == "shop.price"


async def test_a_search_that_is_denied_is_refused_and_no_error_of_the_hub(tmp_path: Path) -> None:
    async with shop(tmp_path, policy=[{"deny": "hub.search"}, {"deny": "shop.price"}]) as served:
        assert await refused(served, "get", "/api/operations", params={"q": "price"}) == 403
        assert await refused(served, "get", "/api/operations/{id}", id="shop.price") == 404
        assert await refused(served, "post", CALL, id="shop.price") == 404


async def test_artifacts_answer_as_the_document_says(tmp_path: Path) -> None:
    async with shop(tmp_path) as served:
        (reply,) = (await call(served, "hub.call", {"calls": [{"tool": "shop.catalog"}]}))["result"]
        stored = await check(served, "get", "/api/artifacts/{id}", id=reply["result"]["artifact"])
        assert (stored["size"], stored["operation"]) == (80_000, "shop.catalog")
        content = {"verb": "get", "path": "/api/artifacts/{id}/content", "id": stored["id"]}
        assert await check(served, **content) == "tea\n" * 20_000
        assert await check(served, **content, headers={"range": "bytes=0-2"}) == "tea"
        assert await check(served, **content, params={"offset": 4, "limit": 3}) == "tea"
        assert await check(served, **content, headers={"range": "bytes=80000-"}) is None
        assert await refused(served, **content, params={"offset": "x"}) == 400
        assert await refused(served, "get", "/api/artifacts/{id}", id="nobody") == 404


async def test_mcp_servers_answer_as_the_document_says(tmp_path: Path) -> None:
    raw = {"command": [sys.executable, "-S", "-E", str(RAW), str(tmp_path / "raw.txt")], "trust": "ask"}
    async with shop(tmp_path, mcp_servers={"raw": raw}) as served:
        await served.hub.external.servers.wait_until_started("raw")
        (listed,) = (await check(served, "get", "/api/mcp/servers"))["servers"]
        shown = await check(served, "get", "/api/mcp/servers/{name}", name="raw")
        assert (listed["state"], listed["tools"], shown["waiting"]) == ("ready", 0, len(shown["changes"]))
        first = shown["changes"][0]
        approve = {"verb": "post", "path": "/api/mcp/servers/{name}/approve", "name": "raw"}
        assert await refused(served, **approve, json={"tools": {first["name"]: "another"}}) == 409
        assert await refused(served, **approve, json={"tools": ["nobody"]}) == 404
        body = await check(served, **approve, json={"tools": {first["name"]: first["hash"]}})
        assert body == {"approved": [first["name"]]}
        again = await check(served, "post", "/api/mcp/servers/{name}/reconnect", name="raw")
        assert again["name"] == "raw"
        assert await refused(served, "delete", "/api/mcp/servers/{name}", name="raw") == 409
        for verb in ("get", "delete"):
            assert await refused(served, verb, "/api/mcp/servers/{name}", name="nobody") == 404


@pytest.mark.parametrize("body", [{"tool": ["echo"]}, {"tools": [3]}, {"tools": 3}, ["echo"]])
async def test_an_approval_that_is_spelled_wrongly_approves_of_nothing(tmp_path: Path, body: Any) -> None:
    raw = {"command": [sys.executable, "-S", "-E", str(RAW), str(tmp_path / "raw.txt")], "trust": "ask"}
    async with shop(tmp_path, mcp_servers={"raw": raw}) as served:
        (settled,) = await served.hub.external.servers.wait_until_started("raw")
        path = "/api/mcp/servers/{name}/approve"
        assert await refused(served, "post", path, name="raw", json=body) == 400
        shown = await check(served, "get", "/api/mcp/servers/{name}", name="raw")
        assert (shown["tools"], shown["waiting"]) == (0, settled.waiting)


async def test_adding_and_removing_a_server_answers_as_the_document_says(tmp_path: Path) -> None:
    async with shop(tmp_path) as served:
        add, nowhere = ("post", "/api/mcp/servers"), {"name": "far", "url": "http://127.0.0.1:1/mcp"}
        assert (await check(served, *add, json=nowhere))["state"] in ("starting", "failed")
        assert await refused(served, *add, json=nowhere) == 409
        assert await refused(served, *add, json={"url": "http://127.0.0.1:1/mcp"}) == 400
        assert await refused(served, *add, json={**nowhere, "name": "a b"}) == 400
        assert await refused(served, *add, json={**nowhere, "name": "b", "colour": "red"}) == 400
        assert await refused(served, *add, json={"name": "sh", "command": ["sh"]}) == 403
        (settled,) = await served.hub.external.servers.wait_until_started("far")
        assert settled.state == "failed"
        assert await check(served, "delete", "/api/mcp/servers/{name}", name="far") is None
        assert (await check(served, "get", "/api/mcp/servers"))["servers"] == []


async def test_spokes_are_reported_as_the_document_says(tmp_path: Path) -> None:
    @mark("stock", effect="read")
    async def level(article: str) -> int:
        """How many of an article there are."""
        return len(article)

    async with (
        shop(tmp_path) as served,
        Spoke(Registry(level), hub=served.url, id="worker-1", name="warehouse") as spoke,
    ):
        await spoke.ready()
        (report,) = (await check(served, "get", "/api/spokes"))["spokes"]
        assert set(report) == fields("Spoke")
        assert (report["name"], report["operations"]) == ("warehouse", ["stock.level"])
        assert (await check(served, "get", "/api/operations/{id}", id="stock.level"))["source"] != "python"
        approving = {"json": {"operations": ["stock.level"]}}
        approved = await check(served, "post", "/api/spokes/approve", **approving)
        assert approved == {"approved": ["stock.level"]}
        [one] = (await check(served, "get", "/api/spokes/operations"))["operations"]
        assert set(one) == fields("SpokeDefinition")
        detail = await check(served, "get", "/api/spokes/operations/{id}", id="stock.level")
        assert (set(detail), detail["diff"]) == (fields("SpokeDefinitionDetail"), "")
        assert await check(served, "post", "/api/spokes/revoke", **approving) == {"revoked": ["stock.level"]}
        assert await refused(served, "post", "/api/spokes/revoke", **approving) == 404
        assert await refused(served, "get", "/api/spokes/operations/{id}", id="no.such") == 404


async def test_mcp_answers_as_the_document_says(tmp_path: Path) -> None:
    accept = {"accept": "application/json, text/event-stream"}
    who = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    search = {"name": "hub_search", "arguments": {"q": "price"}}
    async with shop(tmp_path) as served:
        assert "hub_search" in await check(served, "post", "/mcp", headers=accept, json=begin)
        begun = await served.http.post("/mcp", headers=accept, json=begin)
        session = {**accept, "mcp-session-id": begun.headers["mcp-session-id"]}
        report = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert await check(served, "post", "/mcp", headers=session, json=report) is None
        request = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": search}
        assert "shop.price" in str(await check(served, "post", "/mcp", headers=accept, json=request))
        assert await check(served, "delete", "/mcp", headers=session) is None
        assert await refused(served, "post", "/mcp", headers=session, json=request) == 404
        broken = {**accept, "content-type": "application/json"}
        assert await refused(served, "post", "/mcp", headers=broken, content=b"{") == 400
        for verb in ("get", "delete"):
            assert await refused(served, verb, "/mcp", headers=accept) == 400
        assert await refused(served, "get", "/mcp", headers={"accept": "text/html"}) == 406
        foreign = {**accept, "origin": "https://elsewhere.example"}
        assert await refused(served, "post", "/mcp", headers=foreign, json=request) == 403
        renamed = {**accept, "host": "elsewhere.example"}
        assert await refused(served, "post", "/mcp", headers=renamed, json=request) == 421


@pytest.mark.parametrize(
    ("scope", "open_ones"),
    [
        ("gateway", set()),
        ("chat", {"/api/calls", "/api/approvals", "/api/artifacts/{id}"}),
        ("operations", {"/api/calls", "/api/approvals", "/api/artifacts/{id}", "/mcp"}),
        (
            "admin",
            {
                "/api/calls",
                "/api/approvals",
                "/api/artifacts/{id}",
                "/api/mcp/servers",
                "/api/spokes",
                "/api/hosts",
                "/api/keys",
            },
        ),
    ],
)
async def test_a_key_opens_what_it_is_for(tmp_path: Path, scope: str, open_ones: set[str]) -> None:
    paths = (
        *("/api/calls", "/api/approvals", "/api/artifacts/{id}"),
        *("/api/mcp/servers", "/api/spokes", "/api/hosts", "/api/keys", "/mcp"),
    )
    async with serving(tmp_path, keys=True) as served:
        _, secret = await served.hub.store.keys.create("ann", scopes=[scope])
        headers = {"x-api-key": secret}
        found = {path: await served.http.get(path.replace("{id}", "none"), headers=headers) for path in paths}
        assert {path for path in paths if found[path].status_code != 403} == open_ones
