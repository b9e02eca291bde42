"""The official Python client, both protocol eras, over HTTP and stdio."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from dragoman.operations.meta_tools import META_TOOLS
from tests.mcp.server import hub as hubs
from tests.mcp.server.hub import batch, served

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
WAYS = ["http-auto", "http-legacy", "stdio-auto", "stdio-legacy", "bridge-auto", "bridge-legacy"]


def program(*arguments: str) -> StdioServerParameters:
    command = ["-m", "tests.mcp.server.stdio_program", *arguments]
    return StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ), cwd=ROOT)


@asynccontextmanager
async def connected(way: str, **options: Any) -> AsyncIterator[Client]:
    kind, mode = way.split("-")
    async with served(pinned=("math.*",)) as hub:
        places: dict[str, Any] = {
            "http": hub.url,
            "stdio": program(),
            "bridge": program(hub.url),
        }
        async with Client(places[kind], mode=mode, **options) as client:
            yield client


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_finds_describes_and_calls_an_operation(way: str) -> None:
    replies: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (progress > 0, total) == (True, None)
        replies.append(message)

    async with connected(way) as client:
        tools = (await client.list_tools()).tools
        found = await client.call_tool("hub_search", {"q": "add"})
        schema = await client.call_tool("hub_schema", {"tool": "math.add"})
        called = await client.call_tool("hub_call", batch("math.add", a=1, b=2))
        plain = await client.call_tool("math_add", {"a": 1, "b": 2})
        counted = await client.call_tool("hub_call", batch("time.count"), progress_callback=hear)
    assert [tool.name for tool in tools] == [*(tool.name for tool in META_TOOLS), "math_add"]
    assert found.structured_content["tools"][0]["tool"] == "math.add"
    assert schema.structured_content["inputSchema"] == hubs.NUMBERS
    assert called.structured_content == {"result": [{"success": True, "result": 3}]}
    assert json.loads(text(called)) == [{"success": True, "result": 3}]
    assert (text(plain), plain.is_error) == ("3", False)
    assert counted.structured_content == {"result": [{"success": True, "result": "counted"}]}
    assert {"one", "two"}.intersection(replies), replies  # a report replaces one that was not sent yet


@pytest.mark.parametrize("way", WAYS)
async def test_what_goes_wrong_in_a_call_is_a_result_and_an_unknown_tool_is_an_error(way: str) -> None:
    async with connected(way) as client:
        wrong = await client.call_tool("hub_call", batch("math.add", a="x"))
        nothing = await client.call_tool("hub_schema", {"tool": "no.such"})
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("no_such_tool", {})
    entry = json.loads(text(wrong))[0]
    assert (wrong.is_error, entry["error"]["code"]) == (True, "invalid_input")
    assert entry["error"]["inputSchema"] == hubs.NUMBERS
    assert nothing.is_error
    assert json.loads(text(nothing))["error"]["code"] == "not_found"
    assert unknown.value.code == -32602


@pytest.mark.parametrize("way", WAYS)
async def test_the_server_names_its_namespaces_to_whoever_connects(way: str) -> None:
    async with connected(way) as client:
        assert "disk, math, time" in (client.instructions or "")


@pytest.mark.promise("mcp-deterministic")
async def test_the_list_of_tools_is_the_same_bytes_each_time() -> None:
    async with served() as hub:
        first, second = [
            (await hubs.post(hub, hubs.body("tools/list", modern=True))).content for _ in range(2)
        ]
    assert first == second
    tools = json.loads(first)["result"]["tools"]
    assert {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in tools} == {
        "hub_list": True,
        "hub_search": True,
        "hub_schema": True,
        "hub_call": False,
    }
    assert all(tool["_meta"] == {"anthropic/alwaysLoad": True} for tool in tools)


@pytest.mark.parametrize("name", ["hub_list", "hub.list", "list"])
@pytest.mark.parametrize("modern", [True, False])
async def test_a_meta_tool_has_three_spellings(name: str, modern: bool) -> None:
    async with served() as hub:
        answer = await hubs.post(hub, hubs.body("tools/call", modern=modern, name=name, arguments={}))
    assert answer.json()["result"]["structuredContent"]["namespaces"] == {"disk": 1, "math": 1, "time": 2}


def text(result: Any) -> str:
    reply: str = result.content[0].text
    return reply
