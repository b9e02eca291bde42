"""The live tail of a run, where its followers have had nothing yet."""

from __future__ import annotations

from dragoman.agent.outcome import failure_events
from dragoman.events import Event
from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.runs.live import LiveTail


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
