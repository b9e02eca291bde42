"""Stopping a call stops it at the spoke, with what it called."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.operations import Context, Registry, operation
from dragoman.spokes import Capacity, Spoke
from tests.effort import rounds
from tests.loop_clock import LoopClock
from tests.spokes.hubs import LIMIT, PATIENT, House, house
from tests.spokes.processes import process, words
from tests.waiting import until

TIMES = rounds(quick=10, thorough=100)
running: set[str] = set()


@operation("near")
async def hang(name: str) -> None:
    """Run until it is stopped."""
    running.add(name)
    try:
        await asyncio.Event().wait()
    finally:
        running.discard(name)


@operation("near")
async def start(context: Context) -> Any:
    """Call a spoke that calls the hub."""
    return await context.call("far.chain")


async def stop(task: asyncio.Task[Any]) -> None:
    """Stop a call, and wait for its end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.promise("spoke-abort")
async def test_a_chain_through_a_spoke_that_is_stopped_again_and_again_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    settings = replace(PATIENT, abort_wait=LIMIT)  # so that the end of a call waits for that at the spoke
    async with house(hang, start, settings=settings) as hub, process(hub.url, "one", log) as spoke:
        await hub.has("far.chain")
        for number in range(TIMES):
            calling = asyncio.create_task(hub.calls.call("near.start", context=Context()))
            await until(lambda: bool(running))
            async with asyncio.timeout(LIMIT / 2):
                await stop(calling)
            await until(lambda: not running)
            await until(lambda number=number: words(log, "stopped chain") == number + 1)  # type: ignore[misc]
        assert words(log, "begin chain") == TIMES
        assert hub.running() == []
        assert hub.board.status()[0]["calls"] == 0
        assert await hub.result("far.pid") == spoke.pid


async def test_a_call_that_the_spoke_gives_up_stops_the_hub_s_part_of_it() -> None:
    stopped: list[bool] = []

    @operation("far")
    async def impatient(context: Context) -> str:
        """Give the hub no time once it has begun."""
        try:
            async with asyncio.timeout(None) as patience, asyncio.TaskGroup() as group:
                group.create_task(give_up(patience))
                await context.call("near.hang", {"name": "x"})
        except TimeoutError:
            stopped.append(True)
        return "gave up"

    async def give_up(patience: asyncio.Timeout) -> None:
        await until(lambda: bool(running))
        patience.reschedule(asyncio.get_running_loop().time())

    async with house(hang) as hub, Spoke(Registry(impatient), hub=hub.url, key="key-a"):
        assert await hub.result("far.impatient") == "gave up"
        assert stopped == [True]
        await until(lambda: not running and hub.running() == [])


async def test_a_deadline_of_the_caller_ends_the_call_at_the_spoke() -> None:
    left: list[float | None] = []
    ended = asyncio.Event()

    @operation("far")
    async def linger(context: Context) -> None:
        """Stay."""
        left.append(context.remaining)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with house() as hub, Spoke(Registry(linger), hub=hub.url, key="key-a"):
        clock = LoopClock()
        deadline = asyncio.get_running_loop().time() + LIMIT
        calling = asyncio.create_task(hub.call("far.linger", deadline=deadline))
        await until(lambda: bool(left))
        clock.set_ahead(LIMIT)
        outcome = await calling
        assert outcome.error is not None
        assert outcome.error.code == "call_timeout"
        async with asyncio.timeout(LIMIT):
            await ended.wait()
        assert left[0] is not None
        assert 0 < left[0] <= LIMIT


async def test_a_spoke_that_does_not_stop_is_not_waited_for_but_keeps_its_place() -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @operation("far")
    async def stubborn() -> None:
        """Not to be stopped."""
        began.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    capacity = Capacity(window=2)
    async with house() as hub, Spoke(Registry(stubborn), hub=hub.url, key="key-a", capacity=capacity):
        calling = asyncio.create_task(hub.calls.call("far.stubborn", context=Context()))
        await began.wait()
        async with asyncio.timeout(LIMIT / 2):
            await stop(calling)
        assert busy(hub) == 1
        go.set()
        await until(lambda: busy(hub) == 0)


async def test_a_call_that_waits_for_a_place_is_stopped_without_a_word_to_the_spoke() -> None:
    go = asyncio.Event()
    begun: list[int] = []

    @operation("far")
    async def work(n: int) -> int:
        """Work."""
        begun.append(n)
        await go.wait()
        return n

    capacity = Capacity(window=1)
    async with house() as hub, Spoke(Registry(work), hub=hub.url, key="key-a", capacity=capacity):
        calls = [
            asyncio.create_task(hub.calls.call("far.work", {"n": n}, context=Context())) for n in range(3)
        ]
        await until(lambda: begun == [0])
        await stop(calls[1])
        go.set()
        assert [(await calls[n]).result for n in (0, 2)] == [0, 2]
        assert begun == [0, 2]


async def test_calls_that_are_stopped_at_any_moment_free_their_places() -> None:
    @operation("far")
    async def wait() -> None:
        """Wait."""
        await asyncio.Event().wait()

    async with house() as hub, Spoke(Registry(wait), hub=hub.url, key="key-a"):
        for turns in range(40):
            calling = asyncio.create_task(hub.calls.call("far.wait", context=Context()))
            for _ in range(turns):
                await asyncio.sleep(0)
            await stop(calling)
        await until(lambda: busy(hub) == 0)
        assert hub.running() == []


def busy(hub: House) -> int:
    calls: int = hub.board.status()[0]["calls"]
    return calls
