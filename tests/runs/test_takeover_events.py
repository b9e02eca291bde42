"""What readers are told when a run goes on at another host."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dragoman import events as e
from dragoman.errors import Conflict
from dragoman.fold import Fold
from dragoman.messages import Message, Part, StepStartPart, TextPart, ToolPart
from dragoman.runs.takeover_events import ContinuedEvents, covers, position_in, transition_events
from dragoman.unfold import events_since

FIRST_STEP: list[e.Event] = [
    e.Start("m"),
    e.StartStep(),
    e.TextStart("a"),
    e.TextDelta("a", "Let me look."),
    e.TextEnd("a"),
    e.ToolInputStart("c", "look"),
    e.ToolInputAvailable("c", "look", {}),
]
OUTPUT: list[e.Event] = [e.ToolOutputAvailable("c", 1)]
SECOND_STEP: list[e.Event] = [e.FinishStep(), e.StartStep(), e.TextStart("b"), e.TextDelta("b", "It is wr")]
LOOKED: tuple[Part, ...] = (StepStartPart(), TextPart("Let me look.", "done"))
CALLED = ToolPart("tool-look", "c", "input-available", input={})
DONE = ToolPart("tool-look", "c", "output-available", input={}, output=1)
ANSWER: list[e.Event] = [
    e.StartStep(),
    e.TextStart("x"),
    e.TextDelta("x", "It is 1."),
    e.TextEnd("x"),
    e.FinishStep(),
]


def fold_of(events: Sequence[e.Event]) -> Fold:
    fold = Fold()
    fold.add(events)
    return fold


def go_on(events: Sequence[e.Event], parts: Sequence[Part], later: Sequence[e.Event]) -> list[e.Event]:
    """Return what readers of `events` get when another host goes on from `parts` and sends `later`."""
    fold, message = fold_of(events), Message(id="m", role="assistant", parts=tuple(parts))
    sent = transition_events(fold, message)
    fold.add(sent)
    following = ContinuedEvents(fold, message).translate([e.Start("m"), *later, e.Finish("stop")])
    fold.add(following)
    goal = Fold(message)
    goal.add([e.Start("m"), *later, e.Finish("stop")])
    assert fold.message().parts == goal.message().parts
    return [*sent, *following]


def test_a_step_that_was_streaming_is_withdrawn_and_begun_again() -> None:
    sent = go_on([*FIRST_STEP, *OUTPUT, *SECOND_STEP], [*LOOKED, DONE], ANSWER)
    assert sent == [e.TextEnd("b"), e.ResetStep(), *ANSWER[1:], e.Finish("stop")]


def test_the_only_step_is_withdrawn() -> None:
    sent = go_on(FIRST_STEP[:4], [], ANSWER)
    assert sent[:2] == [e.TextEnd("a"), e.ResetStep()]


def test_a_call_under_way_goes_on_in_its_step() -> None:
    sent = go_on(FIRST_STEP, [*LOOKED, CALLED], [*OUTPUT, *ANSWER])
    assert sent == [*OUTPUT, e.FinishStep(), *ANSWER, e.Finish("stop")]


def test_what_was_stored_and_not_yet_told_is_sent() -> None:
    ended: list[e.Event] = [e.TextDelta("a", " me look."), e.TextEnd("a")]
    sent = go_on([*FIRST_STEP[:3], e.TextDelta("a", "Let")], [*LOOKED, DONE], ANSWER)
    assert sent[:2] == ended
    assert OUTPUT[0] in sent
    assert go_on(FIRST_STEP, [*LOOKED, DONE], ANSWER)[0] == OUTPUT[0]


def test_what_is_over_cannot_be_taken_back() -> None:
    fold = fold_of([*FIRST_STEP, *OUTPUT, *SECOND_STEP])
    with pytest.raises(Conflict):
        transition_events(fold, Message(id="m", role="assistant", parts=()))


@pytest.mark.parametrize("size", range(1, 14))
def test_a_replay_by_the_same_host_is_skipped_as_far_as_it_is_there(size: int) -> None:
    events: list[e.Event] = [*FIRST_STEP, *OUTPUT, *SECOND_STEP, e.TextDelta("b", "ong.")]
    fold, replayed = fold_of(events[:size]), Fold()
    pieces: list[list[e.Event]] = [[event] for event in events_since(fold_of(events))]
    for piece in pieces:
        replayed.add(piece)
        if covers(replayed, fold):
            break
    sent = events_since(replayed, position_in(replayed, fold))
    fold.add(sent)
    assert fold.message().parts == replayed.message().parts
    assert not any(isinstance(event, e.Start) for event in sent)
