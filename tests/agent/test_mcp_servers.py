"""Agents with MCP servers, given as paths, commands or URLs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.agent.mcp_server_specs import server_specs
from dragoman.errors import ConfigError, Conflict, Unavailable
from dragoman.mcp.server_spec import ServerSpec
from dragoman.providers.scripted import ScriptedCall
from tests.agent.scripted import add, calling, provider, scripted, types
from tests.ports import free_port
from tests.waiting import poll

SERVER = Path(__file__).parents[1] / "mcp" / "client" / "sdk_server.py"
SUM = ScriptedCall("sdk_server_add", {"a": 2, "b": 2})
LIMIT = 120.0
QUIET = asyncio.subprocess.DEVNULL
SCRIPT = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


server.run("stdio")
"""


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[str]:
    """The server in a process of its own, on a free port; its URL."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), kind, str(port), stdout=QUIET, stderr=QUIET
    )
    try:
        await poll(lambda: answers(port))
        yield f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}"
    finally:
        process.kill()
        await process.wait()


async def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_url_is_asked_by_the_transport_that_it_names(kind: str) -> None:
    call = ScriptedCall("server_add", {"a": 2, "b": 2})
    async with served(kind) as url, Agent(scripted(calling(call), "{outputs}"), mcp=[url]) as agent:
        assert (await agent.spawn("What is 2 + 2?").result).text == '{"sum":4}'


async def test_a_script_that_is_given_by_its_path_is_started(tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text(SCRIPT)
    call = ScriptedCall("sums_add", {"a": 2, "b": 2})
    async with Agent(scripted(calling(call), "{outputs}"), mcp=[script]) as agent:
        assert (await agent.spawn("What is 2 + 2?").result).text == '{"result":4}'


async def test_a_command_is_started_and_its_tools_are_the_agents() -> None:
    command = [sys.executable, str(SERVER), "stdio"]
    async with Agent(scripted(calling(SUM), "{outputs}"), operations=[add], mcp=[command]) as agent:
        assert {"math_add", "sdk_server_add"} <= set(agent.overhead().names)
        assert [status.state for status in agent.servers] == ["ready"]
        result = await agent.spawn("What is 2 + 2?").result
        assert (result.exit_reason, result.text) == ("success", '{"sum":4}')
    assert agent.servers == ()
    assert agent.overhead().names == ["math_add"]


async def test_an_agent_that_is_not_connected_says_so() -> None:
    agent = Agent(scripted("hi"), mcp=[[sys.executable, str(SERVER), "stdio"]])
    with pytest.raises(Conflict, match="not connected"):
        agent.spawn("hi")
    assert provider(agent).requests == []


async def test_a_server_that_does_not_start_is_reported_with_its_reason() -> None:
    agent = Agent(scripted("hi"), mcp=[["/no/such/program"], [sys.executable, "-c", "raise SystemExit(3)"]])
    before = asyncio.all_tasks()
    with pytest.raises(Unavailable) as refused:
        async with agent:
            raise AssertionError("it must not be entered")
    assert "program" in refused.value.message
    assert asyncio.all_tasks() <= before


def test_servers_are_named_after_what_they_are() -> None:
    specs = server_specs(
        [
            str(SERVER),
            ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/tmp"],
            "http://localhost:3000/sse",
            "https://mcp.example.com/mcp",
            "https://mcp.example.com/other",
            ServerSpec(name="own", command=("x",)),
        ]
    )
    assert [(spec.name, spec.transport) for spec in specs] == [
        ("sdk_server", "auto"),
        ("server-filesystem", "auto"),
        ("server", "sse"),
        ("example", "http"),
        ("example_2", "http"),
        ("own", "auto"),
    ]
    assert specs[0].command == (sys.executable, str(SERVER))


@pytest.mark.parametrize("server", ["", [], "nowhere.py", [1], [[]]])
def test_what_is_no_server_is_refused(server: Any) -> None:
    with pytest.raises(ConfigError):
        server_specs([server])


async def test_a_run_over_mcp_hides_nothing() -> None:
    command = [sys.executable, str(SERVER), "stdio"]
    async with Agent(scripted(calling(SUM), "4"), mcp=[command]) as agent:
        event_types = await types(agent.spawn("What is 2 + 2?"))
    assert "tool-output-available" in event_types
