"""Operations that swallow their cancellation hold nobody up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dragoman import operation
from dragoman.operations import worker_threads
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import CallOutcome
from dragoman.operations.registry import Registry
from tests.loop_clock import LoopClock
from tests.waiting import LIMIT


class World:
    """Calls of operations that will not be stopped."""

    def __init__(self, *things: Callable[..., Any]) -> None:
        self.ledger = MemoryLedger()
        self.calls = Calls(Registry(*things), self.ledger)

    def begin(self, id: str, context: Context | None = None) -> asyncio.Task[CallOutcome]:
        """A call in a task of its own."""
        made = self.calls.call(id, {}, context=context or Context())
        return asyncio.ensure_future(made)

    async def reached(self, id: str) -> str:
        """The call of this operation, once it runs and waits for something."""
        async with asyncio.timeout(LIMIT):
            while True:
                entries = [each for each in self.ledger._entries.values() if each.status == "running"]
                found = [each.record.id for each in entries if each.record.operation == id]
                await asyncio.sleep(0)
                if found:
                    return found[0]

    def statuses(self) -> dict[str, str]:
        """How the calls ended, by operation."""
        return {each.record.operation: each.status for each in self.ledger._entries.values()}


@asynccontextmanager
async def world(*things: Callable[..., Any]) -> AsyncIterator[World]:
    made = World(*things)
    async with asyncio.timeout(LIMIT), made.calls:
        yield made


@operation("x", effect="once")
async def deaf() -> str:
    """Ends when it is cancelled, as if nothing was."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "I had other plans"
    return "never"


@operation("x", effect="once")
async def clumsy() -> None:
    """Fails when it is cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("while it cleaned up")


@operation("x", effect="once")
async def hang() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


def stubborn(*ids: str, events: list[Any]) -> Callable[..., Any]:
    """An operation that calls these one after the other, whatever comes of each."""

    @operation("x", effect="once", name="stubborn")
    async def run(context: Context) -> None:
        """Go on, whatever fails."""
        for id in ids:
            try:
                events.append(await context.call(id, {}))
            except Exception as error:  # noqa: BLE001 - that is what it does
                events.append(type(error).__name__)

    return run


async def test_what_called_an_operation_that_will_not_be_cancelled_does_not_go_on() -> None:
    for child in ("x.deaf", "x.clumsy"):
        events: list[Any] = []
        async with world(deaf, clumsy, hang, stubborn(child, "x.hang", events=events)) as made:
            calling = made.begin("x.stubborn")
            await made.reached(child)
            assert made.calls.abort(await made.reached("x.stubborn"))
            outcome = await calling
            assert (outcome.status, events) == ("aborted", [])
            assert "x.hang" not in made.statuses()
            assert made.statuses()["x.stubborn"] == "aborted"


async def test_a_deadline_ends_what_called_an_operation_that_will_not_be_cancelled() -> None:
    events: list[Any] = []
    async with world(deaf, hang, stubborn("x.deaf", "x.hang", events=events)) as made:
        deadline = asyncio.get_running_loop().time() + 50
        calling = made.begin("x.stubborn", Context(deadline=deadline))
        await made.reached("x.deaf")
        LoopClock().set_ahead(50)
        outcome = await calling
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert outcome.error.code == "call_timeout"
        assert events == []


async def test_a_task_whose_call_would_not_be_stopped_can_still_be_stopped_call_by_call() -> None:
    async with world(deaf, hang) as made:

        async def both() -> tuple[CallOutcome, CallOutcome]:
            first = await made.calls.call("x.deaf", {}, context=Context())
            return first, await made.calls.call("x.hang", {}, context=Context())

        task = asyncio.ensure_future(both())
        assert made.calls.abort(await made.reached("x.deaf"))
        assert made.calls.abort(await made.reached("x.hang"))
        first, second = await task
        assert (first.status, second.status) == ("aborted", "aborted")
        assert task.cancelling() == 0


async def test_a_child_that_is_stopped_alone_leaves_what_called_it() -> None:
    events: list[Any] = []
    async with world(hang, deaf, stubborn("x.hang", "x.deaf", events=events)) as made:
        calling = made.begin("x.stubborn")
        for child in ("x.hang", "x.deaf"):
            assert made.calls.abort(await made.reached(child))
        assert (await calling).ok
        assert events == ["CallError", "CallError"]


async def test_whatever_is_raised_a_call_has_an_end_in_the_record() -> None:
    class Odd(BaseException):
        """A BaseException that is not an Exception."""

    @operation("x", effect="once")
    async def odd() -> None:
        """Raise it."""
        raise Odd("no such luck")

    @operation("x", effect="once")
    async def group() -> None:
        """Raise several."""
        raise BaseExceptionGroup("both", [Odd("one"), asyncio.CancelledError()])

    async with world(odd, group) as made:
        outcomes = [await made.begin("x.odd"), await made.begin("x.group")]
        assert [outcome.status for outcome in outcomes] == ["failed", "failed"]
        assert made.statuses() == {"x.odd": "failed", "x.group": "failed"}


@pytest.mark.promise("abort-cannot-be-swallowed")
async def test_one_that_never_ends_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "CANCEL_GRACE_SECONDS", 0.05)
    over = asyncio.Event()

    @operation("x", effect="once")
    async def immortal() -> None:
        """Take no notice of being cancelled."""
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    events: list[Any] = []
    async with world(immortal, stubborn("x.immortal", "x.immortal", events=events)) as made:
        calling = made.begin("x.stubborn")
        await made.reached("x.immortal")
        assert made.calls.abort(await made.reached("x.stubborn"))
        assert (await calling).status == "aborted"
        assert made.statuses() == {"x.stubborn": "aborted", "x.immortal": "aborted"}
        over.set()


async def test_a_generator_in_a_thread_ends_at_its_next_value() -> None:
    going, ended = threading.Event(), threading.Event()

    @operation("x", effect="read")
    def count() -> Iterator[int]:
        """Count, until somebody closes it."""
        try:
            yield 1
            going.wait(LIMIT)
            yield 2
            yield from iter(int, 1)
        finally:
            ended.set()

    async with world(count) as made:
        reports: asyncio.Queue[int] = asyncio.Queue()
        counting = made.calls.call("x.count", context=Context(), on_progress=reports.put_nowait)
        calling = asyncio.ensure_future(counting)
        assert await reports.get() == 1
        assert made.calls.abort(await made.reached("x.count"))
        assert (await calling).status == "aborted"
        going.set()
        assert await asyncio.to_thread(ended.wait, LIMIT)
        assert reports.empty()
