"""Servers that offer thousands of things: reading a list holds no event loop, and none is read for ever."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.mcp.client import connection
from tests.effort import rounds
from tests.loop_lag import MOST, best_lag
from tests.mcp.client.test_large_bodies import RESULTS, large_server
from tests.operations.large_schemas import LARGE

TOOLS = rounds(quick=2_000, thorough=10_000)
DISCOVERED = RESULTS[b"server/discover"]


def tool(number: int) -> dict[str, Any]:
    properties = {f"field{each}": {"type": "string", "description": "Says what."} for each in range(4)}
    schema = {"type": "object", "properties": properties, "required": ["field0"]}
    return {"name": f"tool-{number}", "description": "Do one thing. " * 5, "inputSchema": schema}


def pages(field: str, *found: list[Any]) -> Any:
    """Answer each request for a list with its page."""

    def answer(page: int) -> dict[str, Any]:
        return {field: found[page]} | ({"nextCursor": str(page + 1)} if page + 1 < len(found) else {})

    return answer


async def test_lists_of_thousands_and_large_schemas_hold_no_event_loop(open_hub: Any) -> None:
    async with (
        large_server() as (server, spec),
        open_hub(replace(spec, trust="always", max_tools=TOOLS)) as hub,
    ):
        server.answers[b"server/discover"] = DISCOVERED | {"capabilities": {"tools": {}, "resources": {}}}
        resource = {"name": "n", "uri": "x:y", "description": "d", "mimeType": "text/plain"}
        server.answers[b"resources/list"] = {"resources": [resource] * TOOLS * 4}
        server.answers[b"resources/read"] = {"contents": [{"uri": "x:y", "text": "t"}] * TOOLS * 4}
        large = [{"name": name, "inputSchema": schema} for name, schema in LARGE.items()]
        offered = {"large": large, "tools": [tool(number) for number in range(TOOLS)]}
        await hub.servers.wait_until_started()

        async def list_again(kind: str) -> None:
            server.answers[b"tools/list"] = {"tools": offered[kind]}
            await hub.servers.remove("web")
            assert hub.ids() == []
            hub.servers.add(replace(spec, trust="always", max_tools=TOOLS))
            (ready,) = await hub.servers.wait_until_started()
            assert (ready.state, ready.tools) == ("ready", len(offered[kind]) + 2), ready.problems

        lags = {kind: (await best_lag(partial(list_again, kind)))[1] for kind in offered}
        listed, lags["resources"] = await best_lag(lambda: hub.call("web.resources.list"))
        assert (len(listed.result["resources"]), listed.result["templates"]) == (connection.MAX_LISTED, [])
        assert listed.result["note"] == "there are more resources: the first 1,000 are listed"
        read, lags["contents"] = await best_lag(lambda: hub.call("web.resources.read", {"uri": "x:y"}))
        assert read.result == ["t"] * TOOLS * 4
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_all_pages_of_a_list_are_read_and_an_odd_entry_breaks_no_other(open_hub: Any) -> None:
    async with large_server() as (server, spec), open_hub(spec) as hub:
        server.answers[b"server/discover"] = DISCOVERED | {
            "capabilities": {"tools": {}, "resources": {}, "prompts": {}}
        }
        first, second = {"name": "a", "uri": "x:a"}, {"name": "b", "uri": 5}
        server.answers[b"resources/list"] = pages("resources", [first], [], [second])
        templates = [{"uriTemplate": "x:{y}"}]
        server.answers[b"resources/templates/list"] = pages("resourceTemplates", [], templates)
        server.answers[b"prompts/list"] = pages("prompts", [{"name": "p"}], [{"name": "q"}])
        server.answers[b"resources/read"] = {"contents": [5]}
        await hub.servers.wait_until_started()
        listed = (await hub.call("web.resources.list")).result
        assert listed == {"resources": [first, second], "templates": templates}
        assert (await hub.call("web.prompts.list")).result == {"prompts": [{"name": "p"}, {"name": "q"}]}
        read = await hub.call("web.resources.read", {"uri": "x:a"})
        assert "does not follow MCP" in read.error.message


@pytest.mark.parametrize("endless", ["pages", "bytes"])
async def test_a_list_without_an_end_is_cut_off_and_said_so(
    open_hub: Any, monkeypatch: pytest.MonkeyPatch, endless: str
) -> None:
    monkeypatch.setattr(connection, "MAX_PAGES", 5 if endless == "pages" else 100)
    monkeypatch.setattr(connection, "MAX_LIST_SIZE", 10**9 if endless == "pages" else 2_000)
    requested: list[int] = []

    def answer(page: int) -> dict[str, Any]:
        requested.append(page)
        return {"tools": [tool(page)], "nextCursor": str(page + 1)}

    async with large_server() as (server, spec), open_hub(spec) as hub:
        server.answers[b"tools/list"] = answer
        (ready,) = await hub.servers.wait_until_started()
        assert (ready.state, ready.tools) == ("ready", len(requested))
        assert len(requested) < 10
        assert connection.TOO_LONG in ready.problems
