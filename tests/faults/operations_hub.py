"""A hub in this process with a spoke and an MCP server in their own, and a model that calls them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from dragoman.cli.serving.lifecycle import host_hub
from dragoman.config import parse_config
from dragoman.identity import LOCAL
from dragoman.runs.run import HubRun
from dragoman.server.app import Hub
from dragoman.server.http.listener import bind_listener, listener_url
from dragoman.session_ids import hub_session_id
from tests.serving import ask, write_script
from tests.waiting import LIMIT, until

HERE = Path(__file__).parent
CHAIN = HERE / "operations_chain.py"
SPOKE = HERE / "operations_spoke.py"
RAW = HERE.parent / "mcp" / "client" / "raw_server.py"
Json = dict[str, Any]


def batch(*tools: str, **input: Any) -> list[Json]:
    """The steps of a model that calls these at once, and then is done."""
    calls = [{"tool": tool, "input": input} for tool in tools]
    return [{"tools": [{"name": "hub_call", "input": {"calls": calls}, "id": "c1"}]}, {"text": "Done."}]


def configured(folder: Path, steps: Sequence[Mapping[str, Any]], **more: Any) -> Json:
    """The configuration of a hub whose model plays these steps, with the chain and the MCP server."""
    script = write_script(folder, steps, play="turns")
    server = {"command": [sys.executable, "-S", "-E", str(RAW), str(folder / "raw.txt")]}
    return {
        "providers": {"sim": {"type": "scripted", "script": str(script)}},
        "model": "sim/any",
        "operations": [str(CHAIN)],
        "mcp_servers": {"raw": server},
        **more,
    }


class World:
    """A hub that is served, and what its users and operations do."""

    def __init__(self, hub: Hub, http: httpx2.AsyncClient, folder: Path) -> None:
        self.hub = hub
        self.http = http
        self.folder = folder

    async def chat(self, session: str) -> str:
        """Send a message, and read the whole answer."""
        response = await self.http.post("/api/chat", json=ask("go", session=session))
        assert response.status_code == 200, response.text
        return response.text

    async def run(self, session: str) -> str:
        """The id of the session's newest run."""
        return (await self.hub.store.runs.list(hub_session_id(session, owner=LOCAL.owner)))[-1].id

    def active_run(self, session: str) -> HubRun | None:
        """The active run of the session."""
        return self.hub.runs.get_active(hub_session_id(session, owner=LOCAL.owner))

    async def tree(self, id: str) -> Json:
        """The tree of a run or a call."""
        found: Json = (await self.http.get(f"/api/calls/{id}/tree")).json()["tree"]
        return found

    def count(self, line: str) -> int:
        """How often the operations, or the MCP server, wrote this."""
        return words(self.folder / "log")[line] + words(self.folder / "raw.txt")[line]

    async def under_way(self, times: int = 1) -> None:
        """Wait until the chain has come to its last link, so many times, and the MCP server is at work."""
        await until(lambda: self.count("begin wait") == times and self.count("call hang") == times)

    async def open_calls(self) -> int:
        """How many calls of the ledger have not ended."""
        found = [await self.hub.store.calls.list({"status": s}) for s in ("running", "pending")]
        return sum(map(len, found))


def words(file: Path) -> Counter[str]:
    """The lines of a file; those of cancelled requests without their numbers."""
    if not file.exists():
        return Counter()
    return Counter(
        "cancelled" if line.startswith("cancelled ") else line for line in file.read_text().splitlines()
    )


@asynccontextmanager
async def world(folder: Path, steps: Sequence[Mapping[str, Any]], **config: Any) -> AsyncIterator[World]:
    """A served hub, once its spoke and its MCP server are there."""
    parsed = parse_config(configured(folder, steps, **config))
    listener = bind_listener("127.0.0.1", 0)
    url = listener_url(listener)
    async with (
        spoke(url),
        httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False) as http,
        host_hub(parsed, folder / "hub", listener=listener, require_keys=False) as served,
    ):
        here = World(served.hub, http, folder)
        await until(lambda: {"far.relay", "raw.hang"} <= set(ids(served.hub)))
        yield here


@asynccontextmanager
async def spoke(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`dragoman spoke`, killed at the end if it still runs."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", "spoke", str(SPOKE), "--hub", url, "--id", "one"),
        cwd=HERE.parents[1],
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


def ids(hub: Hub) -> Iterable[str]:
    """The operations that a hub has."""
    return (each.id for each in hub._services.registry.list())


def statuses(node: Json) -> dict[str, str]:
    """The status of each node by its name."""
    found = {node["name"]: node["status"]}
    for child in node.get("children", ()):
        found |= statuses(child)
    return found


def find(node: Json, name: str) -> Json:
    """The node of this name."""
    found = [node] if node["name"] == name else []
    return (found + [find(child, name) for child in node.get("children", ()) if name in statuses(child)])[0]
