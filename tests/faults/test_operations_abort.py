"""Stopping a chat ends its operations, spokes and MCP calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clients.driver import Driver
from tests.effort import rounds
from tests.faults.operations_hub import Json, World, batch, find, statuses, world
from tests.loop_clock import LoopClock
from tests.waiting import until

READERS = 4  # threads that read the database begin one after the other
TIMES = rounds(quick=5, thorough=100)
TIME_LIMIT = 5.0  # seconds of an agent: long enough for the whole chain to begin on a busy machine
CHAIN = batch("near.start", "raw.hang", "near.quick")
LINKS = ("start", "relay", "wait")
BELOW = {"hub.call": "aborted", "near.start": "aborted", "far.relay": "aborted", "near.wait": "aborted"}
STOPPED = {**BELOW, "raw.hang": "aborted", "near.quick": "done"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operations write, in this process and in the spoke's."""
    monkeypatch.setenv("CHAIN_LOG", str(tmp_path / "log"))


async def check(here: World, session: str, *, times: int = 1) -> None:
    """Nothing of the chain is left anywhere, and the tree says how each of its calls ended."""
    await until(lambda: all(here.count(f"stopped {link}") == times for link in LINKS))
    await until(lambda: here.count("cancelled") == here.count("call hang"))
    await until(lambda: no_open_calls(here))  # of a client that left nobody waits for what is written down
    await until(lambda: here.hub.external.spoke_server.status()[0]["calls"] == 0)
    run = await here.run(session)

    async def has_ended() -> bool:
        return bool((await here.tree(run))["status"] != "running")

    await until(has_ended)  # the run is stored as ended after its calls are
    tree = await here.tree(run)
    assert tree["status"] == "aborted"
    assert {name: status for name, status in statuses(tree).items() if name in STOPPED} == STOPPED


async def no_open_calls(here: World) -> bool:
    return await here.open_calls() == 0


@pytest.mark.promise("chain-abort")
async def test_a_chat_that_is_stopped_again_and_again_in_the_middle_of_a_chain_leaves_nothing(
    tmp_path: Path,
) -> None:
    clock = LoopClock()
    async with world(tmp_path, CHAIN) as here:
        tasks: set[asyncio.Task[object]] = set()
        threads = 0
        for number in range(TIMES):
            chatting = asyncio.create_task(here.chat(f"s{number}"))
            await here.under_way(number + 1)
            with clock.stopped():  # nothing waits for a time
                assert (await here.http.post(f"/api/chat/s{number}/stop")).json()["stopped"]
            assert '"finishReason":"aborted"' in await chatting
            await check(here, f"s{number}", times=number + 1)
            if number == 2:  # connections and threads that stay are there by now
                tasks, threads = set(asyncio.all_tasks()), threading.active_count()
        await until(lambda: len(asyncio.all_tasks()) <= len(tasks))
        assert threading.active_count() <= threads + READERS


async def test_a_client_that_hangs_up_on_a_hub_without_grace_stops_the_chain(tmp_path: Path) -> None:
    async with world(tmp_path, CHAIN, disconnect_grace=0) as here:
        chatting = asyncio.create_task(here.chat("s"))
        await here.under_way()
        chatting.cancel()
        await check(here, "s")


async def test_a_client_that_hangs_up_leaves_the_chain_running_for_the_grace(tmp_path: Path) -> None:
    async with world(tmp_path, CHAIN, disconnect_grace=60) as here:
        chatting = asyncio.create_task(here.chat("s"))
        await here.under_way()
        chatting.cancel()
        await asyncio.wait([chatting])
        await until(lambda: here.active_run("s").tail.follower_count == 0)  # type: ignore[union-attr]
        assert here.count("stopped wait") == 0
        assert (await here.http.post("/api/chat/s/stop")).json()["stopped"]
        await check(here, "s")


async def test_a_node_in_the_middle_is_stopped_with_all_below_it_and_the_run_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path, batch("near.patient", "near.quick")) as here:
        chatting = asyncio.create_task(here.chat("s"))
        await until(lambda: here.count("begin wait"))
        run = await here.run("s")
        middle = find(await here.tree(run), "far.relay")["id"]
        assert (await here.http.post(f"/api/calls/{middle}/abort")).json() == {"id": middle, "aborted": True}
        response = await chatting
        assert "went on: The call was aborted." in response
        assert "Done." in response
        await until(lambda: here.count("stopped relay") == 1)  # the spoke says so in its own time
        links = ("patient", "start", "relay", "wait")
        assert [here.count(f"stopped {link}") for link in links] == [0, 0, 1, 1]
        ended = statuses(await here.tree(run))
        ended = {
            name: ended[name] for name in ("sim/any", "near.patient", "near.start", "far.relay", "near.wait")
        }
        assert list(ended.values()) == ["done", "done", "failed", "aborted", "aborted"]
        await until(lambda: no_open_calls(here))


async def test_the_deadline_of_an_agent_stops_the_chain(tmp_path: Path) -> None:
    agents = {"default": {"timeout": TIME_LIMIT}}
    async with world(tmp_path, CHAIN, agents=agents) as here:
        assert "the time limit of the agent was reached" in await here.chat("s")
        await check(here, "s")


async def test_the_deadline_of_an_agent_reaches_an_mcp_server_that_its_model_called(tmp_path: Path) -> None:
    steps: list[Json] = [{"tools": [{"name": "raw_hang", "input": {}, "id": "c1"}]}, {"text": "Done."}]
    agents = {"default": {"timeout": TIME_LIMIT, "operations": ["raw.hang"]}}
    async with world(tmp_path, steps, agents=agents) as here:
        assert "the time limit of the agent was reached" in await here.chat("s")
        await until(lambda: here.count("cancelled") == 1)
        await until(lambda: no_open_calls(here))


async def test_a_hub_that_is_told_to_end_stops_the_chain_and_says_so(tmp_path: Path) -> None:
    options = {"limits": {"drain": 0.1}, "agents": {"default": {"after_crash": "close"}}}
    async with world(tmp_path, CHAIN, **options) as here:  # hosts would hand another run over
        chatting = asyncio.create_task(here.chat("s"))
        await here.under_way()
    assert "the hub is shutting down" in await chatting
    await until(lambda: all(here.count(f"stopped {link}") == 1 for link in LINKS))
    async with world(tmp_path, CHAIN) as again:
        assert await again.open_calls() == 0
        ended = statuses(await again.tree(await again.run("s")))
        assert {name: status for name, status in ended.items() if name in STOPPED} == STOPPED


@pytest.mark.parametrize("sdk", ["7", "6"])
async def test_the_stop_button_of_a_stock_client_stops_the_chain(tmp_path: Path, sdk: str) -> None:
    async with world(tmp_path, CHAIN) as here:
        page = Driver(sdk, Client(str(here.http.base_url).rstrip("/")))  # type: ignore[arg-type]
        report = await asyncio.to_thread(
            page,
            {"do": "send", "text": "go", "wait": False},
            {"do": "request", "method": "POST", "path": "/api/operations/near.meet/call", "body": {}},
            {"do": "stop"},
            id="s",
        )
        assert report.chat["status"] == "ready"
        assert report.result("stop")["json"]["stopped"]
        await check(here, "s")


@dataclass(frozen=True)
class Client:
    """What the driver knows of a hub without keys."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def api(self) -> str:
        return f"{self.url}/api/chat"
