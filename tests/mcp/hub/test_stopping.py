"""A stopped or abandoned call is cancelled at the MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client

from tests.cli.program import scripted
from tests.clients import hub as hubs
from tests.clients.driver import Driver, shape_of
from tests.mcp.hub import hub_process
from tests.mcp.hub.hub_process import pids, raw
from tests.serving import Served, ask, serving
from tests.stopwatch import Stopwatch
from tests.waiting import poll, until

LIMIT = 0.1  # seconds, of the quickest round: a loaded machine delays others
ROUNDS = 7
BATCH = {"calls": [{"tool": "raw.hang", "input": {}}]}
STEPS: list[dict[str, Any]] = [
    {"tools": [{"name": "hub_call", "input": BATCH, "id": "c1"}]},
    {"text": "Done."},
]


class Bench:
    """A hub with a server that hears of calls and of their end."""

    def __init__(self, served: Served, state: Path) -> None:
        self.served = served
        self._state = state
        self._begun: list[asyncio.Task[Any]] = []

    def begin(self, request: Coroutine[Any, Any, Any]) -> None:
        """Make a request, and do not wait for its answer."""
        self._begun.append(asyncio.create_task(request))

    async def close(self) -> None:
        await asyncio.gather(*self._begun)

    async def heard(self, word: str, count: int) -> None:
        """Wait until the server has heard this so often."""
        await until(lambda: self._state.read_text().count(f"{word} ") >= count)

    async def statuses(self) -> set[str]:
        """What is known of the calls of the tool."""
        answer = await self.served.http.get("/api/calls", params={"operation": "raw.hang"})
        return {call["status"] for call in answer.json()["calls"]}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    state = tmp_path / "raw.txt"
    async with serving(tmp_path, STEPS, play="turns", mcp_servers={"raw": raw(state)}) as served:
        assert (await served.http.post("/api/operations/raw.echo/call", json={})).json()["success"]
        state.write_text("")
        bench = Bench(served, state)
        yield bench
        await bench.close()


async def chat_stopped(bench: Bench, number: int) -> Callable[[], Awaitable[Any]]:
    """A chat whose front end says stop."""
    body = ask("go", session=f"s{number}")
    bench.begin(bench.served.http.post("/api/chat", json=body))
    return lambda: bench.served.http.post(f"/api/chat/s{number}/stop")


async def call_aborted(bench: Bench, number: int) -> Callable[[], Awaitable[Any]]:
    """A call that somebody aborts."""
    http = bench.served.http
    bench.begin(http.post("/api/operations/raw.hang/call", json={}))
    await bench.heard("call", number)
    found = (await http.get("/api/calls", params={"operation": "raw.hang", "limit": "1"})).json()
    return lambda: http.post(f"/api/calls/{found['calls'][0]['id']}/abort")


async def caller_gone(bench: Bench, _: int) -> Callable[[], Awaitable[Any]]:
    """A caller of the API that leaves."""
    return leaving(bench.served.http.post("/api/operations/hub.call/call", json=BATCH))


async def client_gone(bench: Bench, _: int) -> Callable[[], Awaitable[Any]]:
    """An MCP client that leaves."""
    both = {"accept": "application/json, text/event-stream"}
    params = {"name": "hub_call", "arguments": BATCH}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return leaving(bench.served.http.post("/mcp", json=body, headers=both))


def leaving(request: Awaitable[Any]) -> Callable[[], Awaitable[Any]]:
    task = asyncio.ensure_future(request)

    async def leave() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError, httpx2.HTTPError):
            await task

    return leave


@pytest.mark.promise("mcp-stop")
@pytest.mark.parametrize("way", [chat_stopped, call_aborted, caller_gone, client_gone])
async def test_the_server_is_notified_at_once_that_the_answer_is_not_wanted(
    bench: Bench, way: Callable[[Bench, int], Awaitable[Callable[[], Awaitable[Any]]]]
) -> None:
    took: list[float] = []
    for number in range(1, ROUNDS + 1):
        stop = await way(bench, number)
        await bench.heard("call", number)
        watch = Stopwatch()
        stopping = asyncio.ensure_future(stop())
        await bench.heard("cancelled", number)
        took.append(watch.seconds())
        await stopping
    assert min(took) < LIMIT, took

    async def are_aborted() -> bool:
        return await bench.statuses() == {"aborted"}

    await poll(are_aborted)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_cancels_a_request_stops_the_server_too(bench: Bench, mode: str) -> None:
    took: list[float] = []
    async with Client(f"{bench.served.url}/mcp", mode=mode) as client:
        for number in range(1, ROUNDS + 1):
            leave = leaving(client.call_tool("hub_call", dict(BATCH)))
            await bench.heard("call", number)
            watch = Stopwatch()
            stopping = asyncio.ensure_future(leave())
            await bench.heard("cancelled", number)
            took.append(watch.seconds())
            await stopping
    assert min(took) < LIMIT, took


@pytest.mark.parametrize("sdk", ["7", "6"])
def test_use_chat_s_stop_reaches_the_server_and_the_chat_goes_on(sdk: str, tmp_path: Path) -> None:
    state = tmp_path / "raw.txt"
    config = {
        "providers": {"sim": scripted(tmp_path, "sim", STEPS)},
        "model": "sim/any",
        "mcp_servers": {"raw": raw(state)},
    }
    hub = hubs.start(tmp_path / "hub", config, keyless=True)
    try:
        assert hub.request("POST", "/api/operations/raw.echo/call", {})[1]["success"]
        report = Driver(sdk, hub)(
            {"do": "send", "text": "go", "wait": False},
            {"do": "stop", "after": {"tool": "input-available"}},
        )
        [process] = pids(state)
        hub_process.until(lambda: "cancelled " in state.read_text())
        assert "tool-hub_call" in shape_of(report.answer)
        assert report.result("stop")["status"] == 200
        [call] = hub.request("GET", "/api/calls?operation=raw.hang")[1]["calls"]
        assert (call["status"], call["runId"] is not None) == ("aborted", True)
        assert hub.request("POST", "/api/operations/raw.echo/call", {})[1]["success"]
        assert pids(state) == [process]
    finally:
        hub.stop()
