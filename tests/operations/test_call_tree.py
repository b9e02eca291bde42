"""The call tree: children, deadlines, aborts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.errors import CallError
from dragoman.operations import Calls, Context, Registry, current, operation
from dragoman.operations.ledger import CallCompletion, CallRecord, MemoryLedger
from dragoman.operations.outcome import CallStatus
from tests.loop_clock import LoopClock
from tests.waiting import LIMIT


class Site:
    """Operations that wait, and what happens to them."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.all_began = asyncio.Event()
        self.expected = 1
        self.ledger = MemoryLedger()

    async def wait(self, name: str) -> None:
        self.began.append(name)
        if len(self.began) >= self.expected:
            self.all_began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    def registry(self) -> Registry:
        @operation("t")
        async def leaf(name: str) -> None:
            await self.wait(name)

        @operation("t")
        async def branch(names: list[str], context: Context) -> None:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(context.call("t.leaf", {"name": name}))

        @operation("t")
        async def root() -> None:
            await current().call("t.branch", {"names": ["a", "b"]})

        @operation("t")
        async def hasty(context: Context) -> str:
            self.child_task = asyncio.create_task(context.call("t.leaf", {"name": "left behind"}))
            await self.all_began.wait()
            self.context = context
            return "done"

        return Registry(leaf, branch, root, hasty)

    def statuses(self) -> dict[str, list[CallStatus]]:
        found: dict[str, list[CallStatus]] = {}
        for entry in self.ledger._entries.values():
            found.setdefault(entry.record.operation, []).append(entry.status)
        return found


@asynccontextmanager
async def site() -> AsyncIterator[tuple[Site, Calls]]:
    made = Site()
    async with Calls(made.registry(), made.ledger) as calls, asyncio.timeout(LIMIT):
        yield made, calls


@pytest.mark.promise("cancelled-call-cancels-its-children")
async def test_cancelling_a_call_cancels_its_children() -> None:
    async with site() as (here, calls):
        here.expected = 2
        task = asyncio.create_task(calls.call("t.root", context=Context()))
        await here.all_began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(here.cancelled) == ["a", "b"]
        assert here.statuses() == {
            "t.root": ["aborted"],
            "t.branch": ["aborted"],
            "t.leaf": ["aborted", "aborted"],
        }


async def test_children_know_their_parents_and_repeat_under_the_same_keys() -> None:
    @operation("t")
    async def leaf(context: Context) -> str | None:
        return context.idempotency_key

    @operation("t")
    async def root(context: Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(context.call("t.leaf")) for _ in range(3)]
        return [task.result() for task in tasks]

    ledger = MemoryLedger()
    async with Calls(Registry(leaf, root), ledger) as calls:
        outcomes = [
            await calls.call(
                "t.root", context=Context(run_id="run", tool_call_id="tool", session_id="session")
            )
            for _ in range(2)
        ]
    assert [outcome.result for outcome in outcomes] == [["run:tool:0", "run:tool:1", "run:tool:2"]] * 2
    for outcome in outcomes:
        below = [entry.record for entry in ledger.children(outcome.call_id)]
        assert [(each.operation, each.run_id, each.session_id) for each in below] == [
            ("t.leaf", "run", "session")
        ] * 3


async def test_calls_of_no_run_have_a_key_of_their_own() -> None:
    @operation("t")
    async def key(context: Context) -> tuple[str | None, str | None]:
        return context.idempotency_key, context.call_id

    async with Calls(Registry(key), MemoryLedger()) as calls:
        first = await calls.call("t.key", context=Context())
        second = await calls.call("t.key", context=Context(idempotency_key="mine"))
    assert first.result == [first.call_id, first.call_id]
    assert second.result == ["mine", second.call_id]


async def test_a_child_that_is_left_behind_ends_with_its_parent() -> None:
    async with site() as (here, calls):
        outcome = await calls.call("t.hasty", context=Context())
        assert outcome.result == "done"
        assert here.cancelled == ["left behind"]
        assert here.child_task.cancelled()
        assert here.statuses() == {"t.hasty": ["done"], "t.leaf": ["aborted"]}


async def test_a_call_that_has_ended_can_make_no_further_calls() -> None:
    async with site() as (here, calls):
        await calls.call("t.hasty", context=Context())
        with pytest.raises(CallError, match="has ended; it cannot make further calls"):
            await here.context.call("t.leaf", {"name": "late"})
        assert here.began == ["left behind"]


async def test_a_failed_child_is_an_error_with_its_code_in_the_parent() -> None:
    @operation("t")
    async def parent(context: Context) -> str:
        try:
            await context.call("t.nowhere")
        except CallError as error:
            return f"{error.code}: {error}"
        return "no error"

    async with Calls(Registry(parent), MemoryLedger()) as calls:
        outcome = await calls.call("t.parent", context=Context())
    assert outcome.result == "not_found: There is no operation 't.nowhere'."


async def test_a_call_is_stopped_at_its_own_timeout() -> None:
    here = Site()

    @operation("t", timeout=50)
    async def slow() -> None:
        await here.wait("slow")

    async with Calls(Registry(slow), here.ledger) as calls, asyncio.timeout(LIMIT):
        calling = asyncio.create_task(calls.call("t.slow", context=Context()))
        await here.all_began.wait()
        LoopClock().set_ahead(51)
        outcome = await calling
    assert outcome.to_json()["error"] == {
        "code": "call_timeout",
        "message": "t.slow timed out: it did not end by its deadline.",
        "transient": True,
    }
    assert here.cancelled == ["slow"]
    assert here.statuses() == {"t.slow": ["failed"]}


async def test_deadlines_shrink_down_the_tree() -> None:
    @operation("t", timeout=5_000)
    async def leaf(context: Context) -> float | None:
        return context.deadline

    @operation("t", timeout=500)
    async def short(context: Context) -> tuple[float | None, Any]:
        return context.deadline, await context.call("t.leaf")

    @operation("t", timeout=50_000)
    async def long(context: Context) -> tuple[float | None, Any]:
        return context.deadline, await context.call("t.leaf")

    async with Calls(Registry(leaf, short, long), MemoryLedger()) as calls:
        now = asyncio.get_running_loop().time()
        own, below = (await calls.call("t.short", context=Context())).result
        assert now + 500 <= own <= asyncio.get_running_loop().time() + 500
        assert below == own
        own, below = (await calls.call("t.long", context=Context(deadline=now + 10_000))).result
        assert own == now + 10_000
        assert below < own


async def test_a_deadline_ends_the_children_too() -> None:
    async with site() as (here, calls):
        here.expected = 2
        deadline = asyncio.get_running_loop().time() + 50
        calling = asyncio.create_task(calls.call("t.root", context=Context(deadline=deadline)))
        await here.all_began.wait()
        LoopClock().set_ahead(50)
        outcome = await calling
        assert outcome.error is not None
        assert outcome.error.code == "call_timeout"
        assert sorted(here.cancelled) == ["a", "b"]


async def test_a_call_past_its_deadline_is_not_started() -> None:
    async with site() as (here, calls):
        deadline = asyncio.get_running_loop().time() - 1
        outcome = await calls.call("t.leaf", {"name": "late"}, context=Context(deadline=deadline))
        assert outcome.error is not None
        assert outcome.error.message == "t.leaf was not started: the deadline has passed."
        assert here.began == []


async def test_cancelling_a_sync_call_does_not_wait_for_its_thread() -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    free = threading.Event()

    @operation("t")
    def stuck() -> str:
        loop.call_soon_threadsafe(began.set)
        free.wait(LIMIT)
        return "too late"

    ledger = MemoryLedger()
    async with Calls(Registry(stuck), ledger) as calls, asyncio.timeout(LIMIT):
        task = asyncio.create_task(calls.call("t.stuck", context=Context()))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        free.set()
    (entry,) = ledger.children(None)
    assert (entry.status, entry.result) == ("aborted", None)


class SlowLedger(MemoryLedger):
    """A ledger that takes as long as it is made to, at one of its two steps."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self._step = step
        self.reached = asyncio.Event()
        self.free = asyncio.Event()

    async def pause(self, step: str) -> None:
        if step == self._step:
            self.reached.set()
            await self.free.wait()

    async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
        await super().record_start(record)
        await self.pause("begin")

    async def record_end(self, call_id: str, completion: CallCompletion, *, wait: bool = True) -> None:
        await self.pause("end")
        await super().record_end(call_id, completion, wait=wait)


@pytest.mark.parametrize(("step", "status"), [("begin", "aborted"), ("end", "done")])
async def test_the_end_is_written_down_even_when_the_call_is_cancelled_at_the_ledger(
    step: str, status: CallStatus
) -> None:
    @operation("t")
    async def quick() -> str:
        return "quick"

    ledger = SlowLedger(step)
    async with Calls(Registry(quick), ledger) as calls, asyncio.timeout(LIMIT):
        task = asyncio.create_task(calls.call("t.quick", context=Context()))
        await ledger.reached.wait()
        task.cancel()
        ledger.free.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    (entry,) = ledger.children(None)
    assert entry.status == status


async def test_closing_waits_for_ends_that_a_second_cancel_left_behind() -> None:
    ledger = SlowLedger("end")
    waiting = asyncio.Event()

    @operation("t")
    async def slow() -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(LIMIT):
        async with Calls(Registry(slow), ledger) as calls:
            task = asyncio.create_task(calls.call("t.slow", context=Context()))
            await waiting.wait()
            task.cancel()
            await ledger.reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ledger.children(None)[0].status == "running"
            asyncio.get_running_loop().call_soon(ledger.free.set)
        assert ledger.children(None)[0].status == "aborted"


async def test_two_hubs_live_in_one_process() -> None:
    @operation("t", name="who")
    async def first() -> str:
        return "first"

    @operation("t", name="who")
    async def second() -> str:
        return "second"

    async with (
        Calls(Registry(first), MemoryLedger()) as one,
        Calls(Registry(second), MemoryLedger()) as other,
    ):
        assert (await one.call("t.who", context=Context())).result == "first"
        assert (await other.call("t.who", context=Context())).result == "second"
