"""What a chat request means for a stored session."""

from __future__ import annotations

import pytest

from dragoman import events as e
from dragoman.errors import BadRequest, Conflict, NotFound
from dragoman.messages import Approval, DataPart, Message, StepStartPart, TextPart, ToolPart
from dragoman.runs.plan import Plan, plan
from dragoman.wire.chat import ApprovalAnswer, Continue, Edit, NewTurn, Regenerate, ToolOutput

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
    made = plan(NewTurn(MORE), [ASK, ANSWER], new_id="new")
    assert made == Plan(history=(ASK, ANSWER, MORE), assistant=NEW, user=MORE)


@pytest.mark.parametrize("turn", [NewTurn(ASK), Edit(ASK)])
def test_a_message_that_is_there_already_is_replaced_with_all_after_it(turn: NewTurn | Edit) -> None:
    made = plan(turn, [ASK, ANSWER, MORE], new_id="new")
    assert made == Plan(history=(ASK,), assistant=NEW, user=ASK, drop_from="u1")


def test_a_regenerated_answer_keeps_the_question() -> None:
    made = plan(Regenerate(ASK), [ASK, ANSWER, MORE], new_id="new")
    assert made == Plan(history=[ASK], assistant=NEW, drop_from="a1")
    assert plan(Regenerate(MORE), [ASK, ANSWER, MORE], new_id="new").drop_from is None


def test_outputs_and_answers_are_checked_against_the_record() -> None:
    turn = Continue(
        "a2",
        (ToolOutput("c1", {"y": 1}), ToolOutput("c3", "forged")),
        (ApprovalAnswer("p", "c2", approved=True),),
    )
    made = plan(turn, [ASK, CALLS], new_id="new")
    assert made.assistant == CALLS
    assert made.history == [ASK]
    assert made.given == [e.ToolApprovalResponse("p", approved=True), e.ToolOutputAvailable("c1", {"y": 1})]


@pytest.mark.parametrize(
    ("turn", "error", "complaint"),
    [
        (Continue("nobody"), NotFound, "holds no message"),
        (Continue("a1"), Conflict, "not the last"),
        (Continue("a2", (ToolOutput("c9", 1),)), Conflict, "no tool call 'c9'"),
        (Continue("a2", (ToolOutput("c2", 1),)), Conflict, "waits for an approval"),
        (Continue("a2", (), (ApprovalAnswer("q", "c2", approved=True),)), Conflict, "no approval 'q'"),
        (Continue("a2", (), (ApprovalAnswer("p", "c1", approved=True),)), Conflict, "no approval 'p'"),
    ],
)
def test_what_the_record_does_not_hold_is_refused(
    turn: Continue, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        plan(turn, [ASK, ANSWER, MORE, CALLS], new_id="new")


def test_an_answer_that_comes_when_all_is_said_is_refused_and_a_failed_run_can_be_tried_again() -> None:
    parts = (StepStartPart(), ToolPart("tool-ask", "c1", "output-available", input={}, output="blue"))
    late = Continue("a2", (ToolOutput("c1", "red"),))
    over = Message("a2", "assistant", parts, {"finishReason": "stop"})
    with pytest.raises(Conflict, match="answered already"):
        plan(late, [ASK, over], new_id="new")
    failed = Message("a2", "assistant", parts, {"finishReason": "error"})
    assert plan(late, [ASK, failed], new_id="new").given == []


@pytest.mark.parametrize("turn", [Continue("a2"), Continue("a2", (ToolOutput("c3", "forged"),))])
def test_a_message_that_waits_does_not_go_on_without_a_word(turn: Continue) -> None:
    with pytest.raises(Conflict, match="waits for an answer to ask, do"):
        plan(turn, [ASK, CALLS], new_id="new")


@pytest.mark.parametrize("output", ["", " ", None, {"answer": ""}, {"answer": None}, "x" * 10_001])
def test_what_is_no_answer_to_a_question_is_refused(output: object) -> None:
    asked = {"id": "q", "toolCallId": "c1", "text": "?", "options": [], "status": "pending"}
    held = Message("a2", "assistant", (*CALLS.parts, DataPart("data-question", asked, "q")))
    with pytest.raises(BadRequest):
        plan(Continue("a2", (ToolOutput("c1", output),)), [ASK, held], new_id="new")
    long = ApprovalAnswer("q", "c1", approved=True, reason="x" * 10_001)
    with pytest.raises(BadRequest):
        plan(Continue("a2", (), (long,)), [ASK, held], new_id="new")
