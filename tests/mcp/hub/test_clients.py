"""The official client at a served hub: over HTTP, through the bridge, over stdio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from dragoman.operations.meta_tools import META_TOOLS
from tests.mcp.hub.hub_process import World, is_alive, pids, raw, sdk, until, world, write

WAYS = ["http-auto", "http-legacy", "bridge-auto", "bridge-legacy", "own-auto", "own-legacy"]
PROGRAM = Path(sysconfig.get_path("scripts")) / "dragoman"
NAMES = [tool.name for tool in META_TOOLS]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A hub that wants keys, with two MCP servers."""
    folder = tmp_path_factory.mktemp("hub")
    servers = {"raw": raw(folder / "raw.txt"), "sdk": sdk()}
    with world(folder, servers, owner="ada", mcp={"pinned": ["sdk.add"]}) as opened:
        opened.settled("raw")
        opened.settled("sdk")
        yield opened


def program(folder: Path, *arguments: str, **env: str) -> StdioServerParameters:
    """The installed program; a client starts it with few variables."""
    stored = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    if "PYTHONPATH" in os.environ:
        stored["PYTHONPATH"] = str(Path(os.environ["PYTHONPATH"]).resolve())
    return StdioServerParameters(
        command=str(PROGRAM), args=["mcp", "--stdio", *arguments], env={**stored, **env}, cwd=folder
    )


@asynccontextmanager
async def connected(way: str, hub: World, folder: Path) -> AsyncIterator[Client]:
    kind, mode = way.split("-")
    key = hub.hub.key("bob", "--scope", "operations")
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
        if kind == "own":
            write(folder, {"raw": raw(folder / "own.txt"), "sdk": sdk()}, mcp={"pinned": ["sdk.add"]})
            target: Any = program(folder)
        elif kind == "bridge":
            target = program(folder, "--hub", hub.hub.url, "--key-env", "MY_KEY", MY_KEY=key)
        else:
            target = streamable_http_client(f"{hub.hub.url}/mcp", http_client=http)
        async with Client(target, mode=mode) as client:
            yield client


def batch(tool: str, **input: Any) -> dict[str, Any]:
    return {"calls": [{"tool": tool, "input": input}]}


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_calls_other_peoples_servers_through_the_hub(
    way: str, hub: World, tmp_path: Path
) -> None:
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
        heard.append(message)

    async with connected(way, hub, tmp_path) as client:
        sums = await client.call_tool("hub_call", batch("sdk.add", a=20, b=22))
        tools = [tool.name for tool in (await client.list_tools()).tools]
        found = await client.call_tool("hub_search", {"q": "add two numbers"})
        schema = await client.call_tool("hub_schema", {"tool": "sdk.add"})
        plain = await client.call_tool("sdk_add", {"a": 20, "b": 22})
        result = await client.call_tool("hub_call", batch("raw.progress"), progress_callback=hear)
        wrong = await client.call_tool("hub_call", batch("sdk.add", a="many"))
        failed = await client.call_tool("hub_call", batch("sdk.fail"))
    assert sums.structured_content == {"result": [{"success": True, "result": {"sum": 42}}]}
    assert tools == [*NAMES, "sdk_add"]
    assert found.structured_content["tools"][0]["tool"] == "sdk.add"
    assert schema.structured_content["effect"] == "read"
    assert plain.structured_content == {"sum": 42}
    assert result.structured_content == {"result": [{"success": True, "result": "done"}]}
    assert any("step 2" in (each or "") for each in heard)
    assert error_of(wrong)["inputSchema"]["properties"].keys() == {"a", "b"}
    assert "Error executing tool fail" in error_of(failed)["message"]
    assert (sums.meta or {})["dragoman/callId"].startswith("call_")


def error_of(result: Any) -> dict[str, Any]:
    assert result.is_error
    error: dict[str, Any] = json.loads(result.content[0].text)[0]["error"]
    return error


async def test_a_hub_of_its_own_ends_with_its_client_and_leaves_no_server_behind(tmp_path: Path) -> None:
    write(tmp_path, {"raw": raw(tmp_path / "own.txt")})
    async with Client(program(tmp_path), mode="auto") as client:
        await client.call_tool("hub_call", batch("raw.echo"))
        begun = pids(tmp_path / "own.txt")
        assert all(map(is_alive, begun))
    until(lambda: not any(map(is_alive, begun)))
    assert len(begun) == 1


async def test_the_bridge_says_what_is_wrong_with_its_key(hub: World, tmp_path: Path) -> None:
    target = program(tmp_path, "--hub", hub.hub.url, "--key-env", "MY_KEY", MY_KEY="dgm_wrong")
    with pytest.raises((MCPError, ExceptionGroup)) as refused:
        async with Client(target):
            pass
    assert "key" in str(leaves(refused.value))


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


async def test_a_key_for_chats_alone_is_refused_at_the_mcp_endpoint(hub: World) -> None:
    key = hub.hub.key("bob", "--scope", "chat")
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    both = {"accept": "application/json, text/event-stream"}
    without = hub.http.post("/mcp", json=body, headers={**both, "authorization": ""})
    wrong = hub.http.post("/mcp", json=body, headers={**both, "authorization": f"Bearer {key}"})
    assert (without.status_code, wrong.status_code) == (401, 403)


def test_the_program_of_these_tests_is_the_installed_one() -> None:
    assert PROGRAM.parent == Path(sys.executable).parent
    loaded_anew = {**os.environ, "PYTHONHASHSEED": "0"}  # not forked: tests/zygote.py
    done = subprocess.run([PROGRAM, "--version"], env=loaded_anew, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("dragoman ")
