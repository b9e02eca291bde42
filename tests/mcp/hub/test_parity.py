"""A call through chat, MCP or the API has the same result, tree and decision."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from dragoman.ids import new_id
from tests.mcp.hub.hub_process import raw, sdk
from tests.serving import Served, serving
from tests.waiting import poll, until

Json = dict[str, Any]
WAYS = ("chat", "api", "mcp-auto", "mcp-legacy", "mcp-bare")
CASES: dict[str, tuple[str, Json]] = {
    "plain": ("raw.echo", {"a": [1, {"b": "c"}]}),
    "structured": ("sdk.add", {"a": 20, "b": 22}),
    "nearly right": ("sdk.add", {"a": "20", "b": 22}),
    "wrong": ("sdk.add", {"a": "many"}),
    "unknown": ("no.such", {}),
    "denied": ("raw.fail", {}),
    "failing": ("sdk.fail", {}),
    "too big": ("raw.huge", {"size": 100_000}),
    "far too big": ("raw.huge", {"size": 3_000_000}),
    "asks": ("raw.ask", {}),
    "broken": ("raw.garble", {}),
    "a meta-tool": ("hub.list", {}),
    "by wire name": ("sdk_add", {"a": 1, "b": 2}),
}
BATCH = {"calls": [{"tool": tool, "input": input} for tool, input in CASES.values()]}
DENY = [{"deny": "raw.fail", "reason": "not on Sundays"}, {"allow": "*"}]


def steps(batch: Mapping[str, Any]) -> list[Json]:
    return [{"tools": [{"name": "hub_call", "input": batch, "id": "c1"}]}, {"text": "Done."}]


@asynccontextmanager
async def hub(folder: Path, batch: Mapping[str, Any], **config: Any) -> AsyncIterator[Served]:
    """A hub whose model makes this batch of calls, and whose MCP servers are up."""
    servers = {"raw": raw(folder / "raw.txt", concurrency=1), "sdk": sdk()}
    async with serving(folder, steps(batch), play="turns", mcp_servers=servers, **config) as served:
        await poll(lambda: are_ready(served))
        yield served


async def are_ready(served: Served) -> bool:
    return {each["state"] for each in await servers_of(served)} == {"ready"}


async def servers_of(served: Served) -> list[Json]:
    found: list[Json] = (await served.http.get("/api/mcp/servers")).json()["servers"]
    return found


async def called(way: str, served: Served, batch: Mapping[str, Any]) -> Any:
    """What hub.call says, or the error of it all."""
    if way == "chat":
        return await by_chat(served)
    if way == "api":
        answer = await served.http.post("/api/operations/hub.call/call", json=batch)
        reply = answer.json()
        return reply["result"] if reply["success"] else reply["error"]
    if way == "mcp-bare":
        return await by_request(served, batch)
    async with Client(f"{served.url}/mcp", mode=way.removeprefix("mcp-")) as client:
        result = await client.call_tool("hub_call", dict(batch))
        [block] = result.content
        assert block.type == "text"
        return collect(result.structured_content, text=block.text)


async def by_chat(served: Served) -> Any:
    frames = await served.chat("go", id=new_id("msg"))  # the same id would be a repetition
    outputs = [each["output"] for each in frames if each["type"] == "tool-output-available"]
    waits = [each for each in frames if each["type"] == "tool-approval-request"]
    return {"code": "approval_needed"} if waits else outputs[-1]


async def by_request(served: Served, batch: Mapping[str, Any]) -> Any:
    params = {"name": "hub.call", "arguments": batch}
    both = {"accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    result = (await served.http.post("/mcp", json=body, headers=both)).json()["result"]
    return collect(result.get("structuredContent"), text=result["content"][0]["text"])


def collect(structured: Json | None, *, text: str) -> Any:
    """The value of a result; what stands in its text is the same."""
    reply = json.loads(text)
    if structured is None:
        return reply["error"]
    assert structured == {"result": reply}
    return reply


async def trees(served: Served) -> list[Any]:
    """The shapes of the trees of hub.call, the oldest first."""
    found = (await served.http.get("/api/calls", params={"operation": "hub.call"})).json()["calls"]
    return [shape(await tree(served, call["id"])) for call in reversed(found)]


async def tree(served: Served, id: str) -> Json:
    found: Json = (await served.http.get(f"/api/calls/{id}/tree")).json()["tree"]
    return found


def shape(node: Json) -> Any:
    """A node with all below it, without what is different each time."""
    stored = {name: node.get(name) for name in ("name", "status", "effect", "source", "notes", "kind")}
    error = (node.get("error") or {}).get("code")
    return {**stored, "error": error, "children": [shape(each) for each in node.get("children", ())]}


def plain(entries: Any) -> Any:
    """The entries without the ids of artifacts."""
    for entry in entries:
        result = entry.get("result")
        if isinstance(result, dict) and "artifact" in result:
            id = result["artifact"]
            entry["result"] = json.loads(json.dumps(result).replace(id, "art_1"))
    return entries


@pytest.mark.promise("mcp-parity")
async def test_every_way_gives_the_same_results_and_the_same_trees(tmp_path: Path) -> None:
    found, shapes = {}, {}
    for way in WAYS:
        async with hub(tmp_path / way, BATCH, policy=DENY, limits={"artifact": 1_000_000}) as served:
            found[way] = plain(await called(way, served, BATCH))
            [shapes[way]] = await trees(served)
    for way in WAYS:
        assert found[way] == found["api"], way
        assert shapes[way] == shapes["api"], way
    assert_right(dict(zip(CASES, found["api"], strict=True)))
    tree = shapes["chat"]
    assert (tree["name"], tree["status"], len(tree["children"])) == ("hub.call", "done", len(CASES) - 1)
    statuses = {(each["name"], each["status"], each["error"]) for each in tree["children"]}
    assert ("raw.fail", "failed", "not_found") in statuses
    assert ("sdk.add", "failed", "invalid_input") in statuses
    assert ("raw.echo", "done", None) in statuses


def assert_right(entries: Mapping[str, Json]) -> None:
    """The entries are what they should be."""
    errors = {case: entry["error"]["code"] for case, entry in entries.items() if not entry["success"]}
    assert errors == {
        "wrong": "invalid_input",
        "unknown": "not_found",
        "denied": "not_found",
        "failing": "call_failed",
        "asks": "call_failed",
        "broken": "call_failed",
        "a meta-tool": "bad_request",
    }
    assert json.loads(entries["plain"]["result"]) == {"a": [1, {"b": "c"}]}
    assert entries["structured"]["result"] == {"sum": 42}
    assert entries["nearly right"]["result"] == {"sum": 42}
    assert entries["nearly right"]["notes"]
    assert entries["by wire name"]["result"] == {"sum": 3}
    wrong = entries["wrong"]["error"]
    assert wrong["inputSchema"]["required"] == ["a", "b"]
    assert {problem["path"] for problem in wrong["problems"]} == {"a", "b"}
    assert "not on Sundays" not in str(entries["denied"])
    assert "What is your mother's name?" in entries["asks"]["error"]["message"]
    assert (entries["too big"]["result"]["artifact"], entries["too big"]["result"]["size"]) == (
        "art_1",
        100_000,
    )
    assert "artifact" not in entries["far too big"]["result"]
    assert "The rest is lost" in entries["far too big"]["result"]["hint"]


ASKED = {"calls": [{"tool": "raw.echo", "input": {"a": 1}}, {"tool": "sdk.add", "input": {"a": 1, "b": 2}}]}
ASK = [{"ask": "raw.echo", "reason": "it echoes"}, {"allow": "*"}]


@pytest.mark.parametrize("way", WAYS)
async def test_what_wants_an_approval_waits_and_runs_once_every_way(way: str, tmp_path: Path) -> None:
    async with hub(tmp_path, ASKED, policy=ASK) as served:
        assert (await called(way, served, ASKED))["code"] == "approval_needed"
        [approval] = await approvals(served, "pending")
        assert [item["operation"] for item in approval["items"]] == ["raw.echo"]
        assert (approval["operation"], approval["input"]) == ("hub.call", ASKED)
        assert [each["status"] for each in await trees(served)] == ["pending"]
        assert echoes(tmp_path) == 0
        if way != "chat":
            changed = {"calls": [{"tool": "raw.echo", "input": {"a": 2}}]}
            assert (await called(way, served, changed))["code"] == "approval_needed"
        await served.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})
        if way == "chat":
            await until(lambda: echoes(tmp_path) == 1)
            await until(lambda: not served.active_run())
            output = (await served.messages())[1]["parts"][1]["output"]
        else:
            output = await called(way, served, ASKED)
        assert output == [{"success": True, "result": '{"a": 1}'}, {"success": True, "result": {"sum": 3}}]
        assert echoes(tmp_path) == 1
        assert [each["id"] for each in await approvals(served, "used")] == [approval["id"]]
        again = await called(way, served, ASKED)
        assert again["code"] == "approval_needed"
        assert echoes(tmp_path) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_declined_does_not_run_every_way(way: str, tmp_path: Path) -> None:
    async with hub(tmp_path, ASKED, policy=ASK) as served:
        await called(way, served, ASKED)
        [approval] = await approvals(served, "pending")
        reply = {"approved": False, "reason": "not today"}
        await served.http.post(f"/api/approvals/{approval['id']}", json=reply)
        [shown] = await trees(served)
        assert shown["status"] == "denied"
        assert echoes(tmp_path) == 0


async def approvals(served: Served, status: str) -> list[Json]:
    answer = await served.http.get("/api/approvals", params={"status": status})
    found: list[Json] = answer.json()["approvals"]
    return found


def echoes(folder: Path) -> int:
    """How often the tool ran."""
    return (folder / "raw.txt").read_text().count("call echo")
