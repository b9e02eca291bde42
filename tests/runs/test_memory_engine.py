"""The queue in memory: the contract of an engine, as far as one process can hold it."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.runs.engine import MemoryEngine, QueuedTurn

pytestmark = pytest.mark.anyio


def turn(id: str, session_id: str = "s1") -> QueuedTurn:
    return QueuedTurn(id=id, session_id=session_id, kind="continue", subject=id)


class Recorder:
    """A handler that notes what it executes, and lets each turn wait until `allow` is set."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.allow = asyncio.Event()

    async def __call__(self, turn: QueuedTurn) -> None:
        self.begun.append(turn.id)
        await self.allow.wait()
        self.ended.append(turn.id)


async def until_idle(engine: MemoryEngine) -> None:
    """Wait until no turn is left: each of these ends within a few iterations of the event loop."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not await engine.list()


async def spin() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_turns_of_a_session_run_one_at_a_time_in_order_and_those_of_others_beside_them() -> None:
    engine, handler = MemoryEngine(at_once=8), Recorder()
    for each in (turn("a"), turn("b"), turn("c", "s2")):
        await engine.enqueue(each)
    engine.start(handler)
    await spin()
    assert handler.begun == ["a", "c"]
    handler.allow.set()
    await until_idle(engine)
    assert handler.begun == ["a", "c", "b"]


async def test_a_turn_that_waits_or_is_executed_is_not_queued_again() -> None:
    engine, handler = MemoryEngine(at_once=8), Recorder()
    engine.start(handler)
    for id in ("a", "b", "a", "b"):
        await engine.enqueue(turn(id))
        await spin()
    assert [each.id for each in await engine.list()] == ["a", "b"]
    handler.allow.set()
    await until_idle(engine)
    assert handler.begun == ["a", "b"]


async def test_no_more_turns_are_executed_at_once_than_the_engine_may() -> None:
    engine, handler = MemoryEngine(at_once=1), Recorder()
    engine.start(handler)
    for id in ("a", "b"):
        await engine.enqueue(turn(id, session_id=id))
    await spin()
    assert handler.begun == ["a"]
    handler.allow.set()
    await until_idle(engine)
    assert handler.ended == ["a", "b"]


async def test_a_turn_that_fails_does_not_hold_up_the_next_one_of_its_session() -> None:
    engine, executed = MemoryEngine(at_once=1), list[str]()

    async def fail(turn: QueuedTurn) -> None:
        executed.append(turn.id)
        raise ValueError(turn.id)

    engine.start(fail)
    await engine.enqueue(turn("a"))
    await engine.enqueue(turn("b"))
    await until_idle(engine)
    assert executed == ["a", "b"]


async def test_a_turn_is_taken_back_before_it_begins_and_not_after() -> None:
    engine, handler = MemoryEngine(at_once=8), Recorder()
    engine.start(handler)
    for id in ("a", "b", "c"):
        await engine.enqueue(turn(id))
    await spin()
    await engine.cancel("a")
    await engine.cancel("b")
    handler.allow.set()
    await until_idle(engine)
    assert handler.begun == ["a", "c"]


async def test_drain_waits_for_what_has_begun_and_begins_nothing_more() -> None:
    engine, handler = MemoryEngine(at_once=8), Recorder()
    engine.start(handler)
    await engine.enqueue(turn("a"))
    await engine.enqueue(turn("b"))
    await spin()
    draining = asyncio.create_task(engine.drain(60))
    await spin()
    handler.allow.set()
    await draining
    assert handler.ended == ["a"]
    await engine.close()
