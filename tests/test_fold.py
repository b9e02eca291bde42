"""Folding events into messages, and unfolding messages into events."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman import messages as m
from dragoman.errors import OutOfOrder
from dragoman.fold import Fold, fold
from dragoman.part_builders import BlockBuilder
from dragoman.unfold import current_position, events_since, unfold

JSON: st.SearchStrategy[Any] = st.text(max_size=8) | st.sampled_from(
    [
        None,
        True,
        0,
        -1.5,
        2**53,
        [],
        {},
        [[], None],
        {"ä": [1, {"b": None}]},
        {"constructor": 1},
        "null",
        '{"a"',
    ]
)
PM = st.none() | st.just({"acme": {"signature": "x"}})
NAMES = st.sampled_from(["hub_call", "weather", "a-b"])
WORDS = st.text(max_size=20)


@st.composite
def tool_parts(draw: st.DrawFn) -> m.ToolPart:
    """A tool call in a state that a finished message can hold."""
    name = draw(NAMES)
    dynamic = draw(st.booleans())
    state = draw(
        st.sampled_from(
            ["input-available", "approval-requested", "approval-responded", *sorted(m.FINAL_STATES)]
        )
    )
    fields: dict[str, Any] = {}
    if state in ("approval-requested", "approval-responded", "output-denied") or (
        draw(st.booleans()) and state != "input-available"
    ):
        approved = {"approval-requested": None, "output-denied": False}.get(state, True)
        if state == "approval-responded":
            approved = draw(st.booleans())
        fields["approval"] = m.Approval(
            "ap", approved, draw(st.none() | WORDS) if approved is not None else None
        )
    if state == "output-available":
        fields["output"] = draw(JSON)
        fields["result_provider_metadata"] = draw(PM)
    if state == "output-error":
        fields["error_text"] = draw(WORDS)
    return m.ToolPart(
        type="dynamic-tool" if dynamic else f"tool-{name}",
        tool_call_id="c",
        state=state,  # type: ignore[arg-type]
        tool_name=name if dynamic else None,
        title=draw(st.none() | WORDS),
        input=draw(JSON),
        provider_executed=draw(st.none() | st.just(True)),
        call_provider_metadata=draw(PM),
        **fields,
    )


def standing() -> st.SearchStrategy[m.Part]:
    """Every other part that an assistant message can hold."""
    return st.one_of(
        st.builds(m.TextPart, WORDS, st.just("done"), PM),
        st.builds(m.ReasoningPart, WORDS, st.just("done"), PM),
        st.builds(m.SourceUrlPart, WORDS, WORDS, st.none() | WORDS, PM),
        st.builds(m.SourceDocumentPart, WORDS, WORDS, WORDS, st.none() | WORDS, PM),
        st.builds(m.FilePart, WORDS, WORDS, st.none(), PM),
        st.builds(m.DataPart, st.just("data-note"), JSON, st.none()),
    )


@st.composite
def finished_messages(draw: st.DrawFn) -> m.Message:
    """A finished assistant message: steps of parts, ids unique."""
    parts: list[m.Part] = []
    for step in range(draw(st.integers(0, 3))):
        parts.append(m.StepStartPart())
        for index, part in enumerate(draw(st.lists(standing() | tool_parts(), max_size=4))):
            parts.append(_unique(part, f"{step}-{index}"))
    metadata = draw(st.none() | st.just({}) | st.builds(lambda value: {"a": {"b": value}}, JSON))
    return m.Message(id="msg", role="assistant", parts=tuple(parts), metadata=metadata)


def _unique(part: m.Part, key: str) -> m.Part:
    from msgspec.structs import replace

    if not isinstance(part, m.ToolPart):
        return replace(part, id=key) if isinstance(part, m.DataPart) and len(key) % 2 else part
    approval = replace(part.approval, id=f"ap-{key}") if part.approval else None
    return replace(part, tool_call_id=f"call-{key}", approval=approval)


@pytest.mark.promise("retold-message-is-the-same")
@given(finished_messages())
def test_a_retold_message_folds_to_the_same_message(message: m.Message) -> None:
    assert fold(None, unfold(message)) == message


@given(finished_messages())
def test_a_message_survives_its_json(message: m.Message) -> None:
    assert m.decode(m.encode(message)) == message


@given(finished_messages())
def test_events_survive_their_json(message: m.Message) -> None:
    events = unfold(message)
    assert [e.decode(e.encode(event)) for event in events] == events


RUN: list[e.Event] = [
    e.Start("msg", {"model": "up/x"}),
    e.StartStep(),
    e.ReasoningStart("r"),
    e.ReasoningDelta("r", "think"),
    e.ReasoningDelta("r", "ing"),
    e.TextStart("t"),
    e.TextDelta("t", "Grüße"),
    e.ReasoningEnd("r", {"acme": {"signature": "s"}}),
    e.TextDelta("t", " an alle"),
    e.Data("data-progress", {"done": 1}, "p"),
    e.TextEnd("t"),
    e.ToolInputStart("c1", "hub_call"),
    e.ToolInputDelta("c1", '{"a":'),
    e.ToolInputDelta("c1", "1}"),
    e.ToolInputStart("c2", "hub_list"),
    e.ToolInputDelta("c2", "nonsense"),
    e.ToolInputAvailable("c1", "hub_call", {"a": 1}),
    e.ToolInputError("c2", "hub_list", "nonsense", "no JSON"),
    e.Data("data-progress", {"done": 2}, "p"),
    e.ToolOutputAvailable("c1", "half", preliminary=True),
    e.ToolOutputAvailable("c1", "whole"),
    e.FinishStep("tool-calls"),
    e.StartStep(),
    e.TextStart("t"),
    e.TextDelta("t", "done"),
    e.MessageMetadata({"more": {"a": 1}}),
    e.TextEnd("t"),
    e.FinishStep("stop"),
    e.Finish("stop", {"more": {"b": 2}}),
]


WAITS: list[e.Event] = [
    e.Start("msg"),
    e.StartStep(),
    e.ToolInputAvailable("c", "agents_clerk", {"prompt": "pay"}),
    e.ToolOutputAvailable("c", "half", preliminary=True),
    e.ToolApprovalRequest("a1", "c"),
    e.Data("data-question", {"status": "pending"}, "a1"),
    e.ToolApprovalResponse("a1", approved=True, reason="blue"),
    e.ToolApprovalRequest("a2", "c"),
    e.ToolApprovalResponse("a2", approved=False),
    e.ToolOutputAvailable("c", "more", preliminary=True),
    e.ToolApprovalRequest("a3", "c"),
    e.ToolApprovalRequest("a4", "c"),
    e.ToolApprovalResponse("a4", approved=True),
    e.ToolOutputAvailable("c", "whole"),
    e.FinishStep("tool-calls"),
    e.Finish("stop"),
]


def regrouped(cuts: Sequence[int]) -> list[e.Event]:
    """The run with its deltas cut elsewhere."""
    events: list[e.Event] = []
    for index, event in enumerate(RUN):
        cut = cuts[index % len(cuts)]
        match event:
            case e.TextDelta(id=key, delta=delta):
                events += [e.TextDelta(key, delta[:cut]), e.TextDelta(key, delta[cut:])]
            case e.ToolInputDelta(tool_call_id=key, input_text_delta=delta):
                events += [e.ToolInputDelta(key, delta[:cut]), e.ToolInputDelta(key, delta[cut:])]
            case _:
                events.append(event)
    return events


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(1, 7), min_size=1))
def test_folding_does_not_depend_on_how_deltas_are_cut_or_batched(cuts: list[int], sizes: list[int]) -> None:
    growing, events, at = Fold(), regrouped(cuts), 0
    while at < len(events):
        size = sizes[at % len(sizes)]
        growing.add(events[at : at + size])
        at += size
    assert growing.message() == fold(None, RUN)


@given(st.sampled_from([RUN, WAITS]), st.lists(st.integers(0, len(RUN)), max_size=4))
def test_a_follower_told_from_marks_sees_the_same_message(run: list[e.Event], places: list[int]) -> None:
    growing, seen, at = Fold(), Fold(), None
    for index, event in enumerate([*run, None]):
        if index in places or event is None:
            seen.add(events_since(growing, at) if index else [])
            at = current_position(growing) if index else None
        if event is not None:
            growing.add([event])
    assert seen.message() == growing.message()


def test_what_waits_after_a_preliminary_output_has_none_any_more() -> None:
    waiting = fold(None, WAITS[:5]).parts[-1]
    assert isinstance(waiting, m.ToolPart)
    assert (waiting.state, waiting.output, waiting.preliminary) == ("approval-requested", UNSET, None)


ASKED: list[e.Event] = [
    e.Start("m"),
    e.StartStep(),
    e.ToolInputStart("c", "agents_worker"),
    e.ToolInputDelta("c", "{}"),
    e.ToolInputAvailable("c", "agents_worker", {}),
    e.ToolOutputAvailable("c", "so far", preliminary=True),
    e.ToolApprovalRequest("a", "c"),
    e.ToolApprovalResponse("a", approved=True),
    e.ToolOutputAvailable("c", "further", preliminary=True),
    e.ToolApprovalRequest("b", "c"),
    e.ToolApprovalResponse("b", approved=False),
    e.ToolOutputAvailable("c", "over"),
]


def test_a_follower_hears_of_an_approval_that_a_call_wants_in_the_midst_of_its_work() -> None:
    for place, event in enumerate(ASKED[6:], 6):
        behind, growing = fold_of(ASKED[: place - 1]), fold_of(ASKED[: place + 1])
        events = events_since(growing, current_position(behind))
        assert events[-1:] == [event], place
        assert events_since(growing, current_position(growing)) == [], "events that were sent are sent again"


def test_a_follower_of_a_call_with_a_preliminary_output_gets_its_whole_input() -> None:
    """The call is not over: it may still ask for an approval, whose card shows the input and its metadata."""
    described = replace(ASKED[4], provider_metadata={"acme": {"calls": []}})
    run = [*ASKED[:4], described, *ASKED[5:]]
    retold = events_since(fold_of(run[:6]))
    assert retold[-2:] == [described, ASKED[5]]
    assert fold(None, [*retold, *run[6:]]) == fold(None, run)


DENIED_BELOW: dict[str, list[e.Event]] = {
    "an output": [e.ToolOutputAvailable("c", "over")],
    "an error": [e.ToolOutputError("c", "no")],
    "a preliminary output, then an output": [
        e.ToolOutputAvailable("c", "further", preliminary=True),
        e.ToolOutputAvailable("c", "over"),
    ],
    "another request": [
        e.ToolApprovalRequest("d", "c"),
        e.ToolApprovalResponse("d", approved=True),
        e.ToolOutputAvailable("c", "over"),
    ],
}


@pytest.mark.parametrize("case", DENIED_BELOW)
def test_a_call_that_has_an_output_has_no_refused_approval(case: str) -> None:
    """The refused approval was for a call of its sub-agent. The AI SDK rejects such a part."""
    run = [*ASKED[:-1], *DENIED_BELOW[case]]
    whole = fold(None, run)
    part = whole.parts[-1]
    assert isinstance(part, m.ToolPart)
    assert part.approval is None or part.approval.approved
    assert part.state in m.FINAL_STATES
    for place in range(3, len(run)):
        behind, growing = fold_of(run[:place]), fold_of(run)
        behind.add(events_since(growing, current_position(behind)))
        assert behind.message() == whole, place
    assert fold(None, events_since(fold_of(run))) == whole


def fold_of(events: list[e.Event]) -> Fold:
    growing = Fold()
    growing.add(events)
    return growing


def test_a_resume_in_mid_stream_goes_on_with_the_live_tail() -> None:
    whole = fold(None, RUN)
    for cut in range(1, len(RUN)):
        growing = fold_until(cut)
        assert fold(None, [*events_since(growing), *RUN[cut:]]) == whole, RUN[cut]


def fold_until(cut: int) -> Fold:
    """The run up to `cut`."""
    growing = Fold()
    growing.add(RUN[:cut])
    return growing


STEP: list[e.Event] = [e.Start("m"), e.StartStep()]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([e.TextStart("t")], "before start"),
        ([e.Start("m"), e.Start("m")], "between steps"),
        ([e.Start("m"), e.TextStart("t")], "between steps"),
        ([*STEP, e.TextDelta("t", "x")], "which is not open"),
        ([*STEP, e.TextEnd("t")], "which is not open"),
        ([*STEP, e.TextStart("t"), e.TextStart("t")], "already open"),
        ([*STEP, e.TextStart("t"), e.FinishStep()], "blocks are open"),
        ([*STEP, e.ToolInputStart("c", "x"), e.FinishStep()], "not complete"),
        ([*STEP, e.ToolInputDelta("c", "x")], "no tool call 'c'"),
        ([*STEP, e.ToolOutputAvailable("c", 1)], "no tool call 'c'"),
        ([*STEP, e.ToolInputAvailable("c", "x", {}), e.ToolInputDelta("c", "x")], "input-available"),
        ([*STEP, e.ToolInputAvailable("c", "x", {}), e.ToolInputStart("c", "x")], "already"),
        (
            [
                *STEP,
                e.ToolInputAvailable("c", "x", {}),
                e.ToolOutputAvailable("c", 1),
                e.ToolOutputError("c", ""),
            ],
            "output-available",
        ),
        (
            [
                *STEP,
                e.ToolInputAvailable("c", "x", {}),
                e.FinishStep(),
                e.StartStep(),
                e.ToolOutputAvailable("c", 1),
            ],
            "outside the step",
        ),
        ([*STEP, e.ToolApprovalResponse("a", True)], "which no call waits for"),
        ([*STEP, e.Finish()], "inside a step"),
        ([*STEP, e.ErrorEvent("x")], "inside a step"),
        ([e.Start("m"), e.Finish(), e.StartStep()], "after finish"),
        ([e.Start("m"), e.Abort(), e.StartStep()], "only finish may follow"),
    ],
)
def test_an_event_out_of_order_is_refused_with_a_clear_error(events: list[e.Event], message: str) -> None:
    with pytest.raises(OutOfOrder, match=message):
        fold(None, events)


def test_a_continued_message_takes_the_outputs_of_its_old_calls_before_the_next_step() -> None:
    first = fold(
        None, [*STEP, e.ToolInputAvailable("c", "ask", {"q": 1}), e.FinishStep(), e.Finish("tool-calls")]
    )
    whole = fold(
        first,
        [e.Start("m"), e.ToolOutputAvailable("c", "yes"), e.StartStep(), e.FinishStep(), e.Finish("stop")],
    )
    assert whole.parts == (
        m.StepStartPart(),
        m.ToolPart("tool-ask", "c", "output-available", input={"q": 1}, output="yes"),
        m.StepStartPart(),
    )
    with pytest.raises(OutOfOrder, match="while folding"):
        fold(first, [e.Start("other")])


def test_a_reset_step_drops_the_parts_of_the_step() -> None:
    events: list[e.Event] = [
        *STEP,
        e.TextStart("t"),
        e.TextDelta("t", "no"),
        e.ToolInputStart("c", "x"),
        e.ResetStep(),
    ]
    whole = fold(
        None,
        [
            *events,
            e.ToolInputAvailable("c", "x", 1),
            e.ToolOutputAvailable("c", 2),
            e.FinishStep(),
            e.Finish(),
        ],
    )
    assert whole.parts == (
        m.StepStartPart(),
        m.ToolPart("tool-x", "c", "output-available", input=1, output=2),
    )


def test_calls_and_steps_are_folded_in_time_in_proportion_to_their_number() -> None:
    """The square of the number would be minutes, which ends the test by its time limit."""
    count = 40_000
    questions = [
        event
        for n in range(count)
        for event in (e.ToolInputAvailable(f"c{n}", "x", 1), e.ToolApprovalRequest(f"a{n}", f"c{n}"))
    ]
    answered = [e.ToolApprovalResponse(f"a{n}", True) for n in reversed(range(count))]
    steps = [
        event
        for n in range(count)
        for event in (
            e.StartStep(),
            e.ToolInputAvailable(f"d{n}", "x", 1),
            e.ToolOutputAvailable(f"d{n}", 2),
            e.FinishStep(),
        )
    ]
    message = fold(None, [*STEP, *questions, *answered, e.FinishStep(), *steps, e.Finish()])
    states = [part.state for part in message.parts if isinstance(part, m.ToolPart)]
    assert states == ["approval-responded"] * count + ["output-available"] * count


def test_the_results_of_a_continued_answer_stand_before_its_first_new_step() -> None:
    """Whoever has read the calls has read the end of their step; whoever comes later gets them within it."""
    before: list[e.Event] = [
        e.Start("m"),
        e.StartStep(),
        e.ToolInputAvailable("c", "look", {}),
        e.FinishStep(),
    ]
    continued = Fold(fold(None, before))
    continued.add([e.Start("m")])
    read = [event.type for event in events_since(continued)]
    assert (read[1], read[-1]) == ("start-step", "finish-step")
    position = current_position(continued)
    continued.add([e.ToolOutputAvailable("c", 1), e.StartStep()])
    live = [event.type for event in events_since(continued, position)]
    assert live == ["tool-output-available", "start-step"]
    late = [event.type for event in events_since(continued)]
    assert late[-3:] == ["tool-output-available", "finish-step", "start-step"]


def test_an_open_text_takes_little_more_memory_than_its_characters() -> None:
    """A small string takes ten times the memory of its text, and a stream that is open has all of its own."""
    open_text = Fold()
    open_text.add([*STEP, e.TextStart("t")])
    for number in range(1_000):
        open_text.add([e.TextDelta("t", f" {number:03}")])
    block = open_text.builders[-1]
    assert isinstance(block, BlockBuilder)
    assert sum(map(sys.getsizeof, block.fragments)) < 3 * 4_000
    assert block.text() == "".join(f" {number:03}" for number in range(1_000))
