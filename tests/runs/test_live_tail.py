"""The live tail of a run, where its followers have had nothing yet, or its last events are being stored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from dragoman import events as e
from dragoman.agent.run_end import failure_events
from dragoman.events import Event
from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.runs.live_tail import LiveTail
from tests.effort import rounds


def do_nothing() -> None: ...


async def test_a_run_that_fails_before_it_begins_has_one_start_for_those_who_follow_it() -> None:
    fold = Fold(Message(id="m", role="assistant", parts=()))
    tail = LiveTail(fold, on_empty=do_nothing, on_follow=do_nothing)
    with tail.follow(replay=True) as replayed, tail.follow(replay=False) as follower:
        tail.withdraw(failure_events(fold, text="it broke", code="internal"))
        tail.close()
        for each in (replayed, follower):
            seen: list[Event] = []
            while (batch := await each.next()) is not None:
                seen += batch
            assert [type(event).__name__ for event in seen] == ["Start", "ErrorEvent", "Finish"]


@pytest.mark.parametrize("written_first", [True, False])
async def test_who_joins_while_the_end_is_stored_gets_each_event_once(written_first: bool) -> None:
    fold = Fold(Message(id="m", role="assistant", parts=()))
    tail = LiveTail(fold, on_empty=do_nothing, on_follow=do_nothing)
    opening: list[Event] = [e.Start("m", None), e.Data("data-note", {"n": 1}, "d1")]
    tail.add(opening, is_held=True)
    tail.release(opening[:1])
    tail.hold(opening[1:], 1)
    text: list[Event] = [e.TextStart("t"), e.TextDelta("t", "Yes."), e.TextEnd("t")]
    end: list[Event] = [e.StartStep(), *text, e.FinishStep(), e.Finish("stop")]
    tail.add(end)
    tail.hold_end(end)
    with tail.follow(replay=True) as replayed:
        first = asyncio.create_task(replayed.next())
        await asyncio.sleep(0)
        if written_first:
            tail.release_held(1)
            await asyncio.sleep(0)
        tail.release_end(end)
        tail.close()
        seen = list(await first or ())
        while (batch := await replayed.next()) is not None:
            seen += batch
    names = [type(event).__name__ for event in seen]
    step = ["StartStep", "TextStart", "TextDelta", "TextEnd", "FinishStep"]
    assert names == ["Start", "Data", *step, "Finish"]


async def test_who_falls_behind_gets_the_input_of_a_call_that_has_ended_meanwhile() -> None:
    fold = Fold(Message(id="m", role="assistant", parts=()))
    tail = LiveTail(fold, on_empty=do_nothing, on_follow=do_nothing)
    call: list[list[Event]] = [
        [e.Start("m", None), e.StartStep(), e.ToolInputStart("c1", "bash")],
        [e.ToolInputDelta("c1", "{}")],
        [e.ToolInputAvailable("c1", "bash", {})],
        [e.ToolOutputAvailable("c1", "ok")],
    ]
    with tail.follow(replay=False) as follower:
        for batch in call:
            tail.add(batch)
            tail.release(batch)
        tail.close()
        seen: list[Event] = []
        while (events := await follower.next()) is not None:
            seen += events
    names = ["ToolInputStart", "ToolInputDelta", "ToolInputAvailable", "ToolOutputAvailable"]
    assert [type(event).__name__ for event in seen] == ["Start", "StartStep", *names]


def shown(events: Sequence[Event]) -> Message:
    fold = Fold()
    fold.add(events)
    return fold.message()


class Reader:
    """Follows a tail, and takes some deltas where they come from."""

    def __init__(self, tail: LiveTail, chance: random.Random) -> None:
        self.seen: list[Event] = []
        self._tail = tail
        self._chance = chance

    def write(self, batch: Sequence[Event]) -> bool:
        is_written = type(batch[0]) is e.TextDelta and self._chance.random() < 0.7
        self.seen.extend(batch if is_written else ())
        return is_written

    async def read(self) -> None:
        with self._tail.follow(replay=self._chance.random() < 0.5) as follower:
            follower.on_batch = self.write
            while (batch := await follower.next()) is not None:
                self.seen.extend(batch)
                await pass_turns(self._chance)  # its client is slow


async def pass_turns(chance: random.Random) -> None:
    for _ in range(chance.randrange(4)):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(rounds(quick=60, thorough=3_000)))
async def test_what_a_reader_writes_at_once_is_in_order_with_what_it_waits_for(seed: int) -> None:
    chance = random.Random(seed)
    fold = Fold(Message(id="m", role="assistant", parts=()))
    tail = LiveTail(fold, on_empty=do_nothing, on_follow=do_nothing)
    reader = Reader(tail, chance)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    batches: list[list[Event]] = [[e.Start("m", None), e.StartStep(), e.TextStart("t")]]
    batches += [[e.TextDelta("t", f" {word}")] for word in range(30)]
    for number, batch in enumerate(batches):
        is_held = chance.random() < 0.1
        tail.add(batch, is_held=is_held)
        if is_held:
            tail.hold(batch, number)
        else:
            tail.release(batch)
        if chance.random() < 0.3:
            tail.release_held(number)
        await pass_turns(chance)
    end: list[Event] = [e.TextEnd("t"), e.FinishStep(), e.Finish("stop")]
    tail.add(end)
    tail.hold_end(end)
    tail.release_end(end)
    tail.close()
    await reading
    assert shown(reader.seen) == fold.message()
