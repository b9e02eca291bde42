"""The live tail of a run, where its followers have had nothing yet, or its last events are being stored."""

from __future__ import annotations

import asyncio

import pytest

from dragoman import events as e
from dragoman.agent.run_end import failure_events
from dragoman.events import Event
from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.runs.live_tail import LiveTail


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
