"""What a chat request does to a stored session."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dragoman import events as e
from dragoman.errors import BadRequest, Conflict, NotFound
from dragoman.messages import Approval, DataPart, Message, StepStartPart, TextPart, ToolPart
from dragoman.runs.history_changes import RunPlan, make_plan
from dragoman.wire.ui.client_request import (
    ClientApprovalAnswer,
    ClientToolOutput,
    ContinueAnswer,
    EditMessage,
    NewMessage,
    RegenerateAnswer,
)

ASK = Message("u1", "user", (TextPart("hi"),))
ANSWER = Message("a1", "assistant", (StepStartPart(), TextPart("ho", "done")))
MORE = Message("u2", "user", (TextPart("more"),))
NEW = Message("new", "assistant")
CALLS = Message(
    "a2",
    "assistant",
    (
        StepStartPart(),
        ToolPart("tool-ask", "c1", "input-available", input={}),
        ToolPart("tool-do", "c2", "approval-requested", input={}, approval=Approval("p")),
        ToolPart("tool-did", "c3", "output-available", input={}, output=1),
    ),
)


def test_a_new_message_is_answered_after_all_that_was_said() -> None:
    made = make_plan(NewMessage(MORE), [ASK, ANSWER], new_id="new")
    assert made == RunPlan(history=(ASK, ANSWER, MORE), assistant=NEW, user=MORE)


@pytest.mark.parametrize("turn", [NewMessage(ASK), EditMessage(ASK)])
def test_a_message_that_is_there_already_is_replaced_with_all_after_it(
    turn: NewMessage | EditMessage,
) -> None:
    edited = replace(turn, message=replace(ASK, parts=(TextPart("hi!"),)))
    made = make_plan(edited, [ASK, ANSWER, MORE], new_id="new")
    assert made == RunPlan(history=(edited.message,), assistant=NEW, user=edited.message, drop_from="u1")


@pytest.mark.parametrize("turn", [NewMessage(ASK), EditMessage(ASK)])
def test_a_message_that_is_sent_again_unchanged_gets_another_answer(turn: NewMessage | EditMessage) -> None:
    made = make_plan(turn, [ASK, ANSWER, MORE], new_id="new")
    assert made == RunPlan(history=[ASK], assistant=NEW, drop_from="a1")


def test_a_regenerated_answer_keeps_the_question() -> None:
    made = make_plan(RegenerateAnswer(ASK), [ASK, ANSWER, MORE], new_id="new")
    assert made == RunPlan(history=[ASK], assistant=NEW, drop_from="a1")
    assert make_plan(RegenerateAnswer(MORE), [ASK, ANSWER, MORE], new_id="new").drop_from is None


def test_outputs_and_answers_are_checked_against_the_record() -> None:
    turn = ContinueAnswer(
        "a2",
        (ClientToolOutput("c1", {"y": 1}), ClientToolOutput("c3", "forged")),
        (ClientApprovalAnswer("p", "c2", approved=True),),
    )
    made = make_plan(turn, [ASK, CALLS], new_id="new")
    assert made.assistant == CALLS
    assert made.history == [ASK]
    assert made.input_events == [
        e.ToolApprovalResponse("p", approved=True),
        e.ToolOutputAvailable("c1", {"y": 1}),
    ]


@pytest.mark.parametrize(
    ("turn", "error", "complaint"),
    [
        (ContinueAnswer("nobody"), NotFound, "there is no message"),
        (ContinueAnswer("a1"), Conflict, "not the last"),
        (ContinueAnswer("a2", (ClientToolOutput("c9", 1),)), Conflict, "no tool call 'c9'"),
        (ContinueAnswer("a2", (ClientToolOutput("c2", 1),)), Conflict, "waits for an approval"),
        (
            ContinueAnswer("a2", (), (ClientApprovalAnswer("q", "c2", approved=True),)),
            Conflict,
            "no approval 'q'",
        ),
        (
            ContinueAnswer("a2", (), (ClientApprovalAnswer("p", "c1", approved=True),)),
            Conflict,
            "no approval 'p'",
        ),
    ],
)
def test_what_the_record_does_not_hold_is_refused(
    turn: ContinueAnswer, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        make_plan(turn, [ASK, ANSWER, MORE, CALLS], new_id="new")


def test_an_answer_that_comes_when_all_is_said_is_refused_and_a_failed_run_can_be_tried_again() -> None:
    parts = (StepStartPart(), ToolPart("tool-ask", "c1", "output-available", input={}, output="blue"))
    late = ContinueAnswer("a2", (ClientToolOutput("c1", "red"),))
    over = Message("a2", "assistant", parts, {"finishReason": "stop"})
    with pytest.raises(Conflict, match="answered already"):
        make_plan(late, [ASK, over], new_id="new")
    failed = Message("a2", "assistant", parts, {"finishReason": "error"})
    assert make_plan(late, [ASK, failed], new_id="new").input_events == []


@pytest.mark.parametrize(
    "turn", [ContinueAnswer("a2"), ContinueAnswer("a2", (ClientToolOutput("c3", "forged"),))]
)
def test_a_message_that_waits_does_not_go_on_without_a_word(turn: ContinueAnswer) -> None:
    with pytest.raises(Conflict, match="waits for an answer to ask, do"):
        make_plan(turn, [ASK, CALLS], new_id="new")


@pytest.mark.parametrize("output", ["", " ", None, {"answer": ""}, {"answer": None}, "x" * 10_001])
def test_what_is_no_answer_to_a_question_is_refused(output: object) -> None:
    question = {"id": "q", "toolCallId": "c1", "text": "?", "options": [], "status": "pending"}
    waiting = Message("a2", "assistant", (*CALLS.parts, DataPart("data-question", question, "q")))
    with pytest.raises(BadRequest):
        make_plan(ContinueAnswer("a2", (ClientToolOutput("c1", output),)), [ASK, waiting], new_id="new")
    long = ClientApprovalAnswer("q", "c1", approved=True, reason="x" * 10_001)
    with pytest.raises(BadRequest):
        make_plan(ContinueAnswer("a2", (), (long,)), [ASK, waiting], new_id="new")
