"""Recovery after a crash of runs with open approvals."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from dragoman import messages as m
from dragoman.operations.approval import ApprovalItem, ApprovalRequest, ApprovalStatus, Question
from dragoman.operations.ledger import CallRecord, LedgerEntry
from dragoman.runs.interrupted_message import close_message, restore_approvals

CALL = m.ToolPart("tool-agents_clerk", "c", "output-available", input={}, output="so far", preliminary=True)
ANSWERED = m.DataPart(
    "data-question",
    {"id": "old", "toolCallId": "c", "text": "Who?", "options": [], "status": "answered"},
    "old",
)
RECORD = CallRecord(
    id="call_1",
    operation="agents.clerk",
    effect="once",
    owner="ann",
    input={},
    input_hash="h",
    idempotency_key="k",
    started_at=1.0,
    tool_call_id="c",
)
WAITS = LedgerEntry(record=RECORD, status="pending")


def approval_request(
    question: Question | None, *, status: ApprovalStatus = "pending", id: str = "apr"
) -> ApprovalRequest:
    return ApprovalRequest(
        id=id,
        owner="ann",
        operation="agents.clerk",
        input={},
        input_hash="h",
        items=(ApprovalItem("user.question", {}, "h", question=question),),
        created_at=1.0,
        expires_at=2.0,
        status=status,
        call_id="call_1",
        tool_call_id="c",
        state=b"far",
    )


def after_crash(*parts: m.Part, approval: ApprovalRequest) -> tuple[m.Part, ...]:
    message = m.Message("msg", "assistant", parts)
    return close_message(restore_approvals(message, [approval], calls=[WAITS]), [WAITS]).parts


@pytest.mark.parametrize("status", ["pending", "approved", "denied", "expired"])
def test_a_request_that_the_message_does_not_show_is_shown(status: ApprovalStatus) -> None:
    [call] = after_crash(CALL, approval=approval_request(None, status=status))
    assert isinstance(call, m.ToolPart)
    assert (call.state, call.approval) == ("approval-requested", m.Approval("apr"))
    assert (call.output, call.preliminary) == (UNSET, None)


def test_a_question_comes_behind_its_call_also_behind_one_that_was_answered() -> None:
    call, question, old = after_crash(CALL, ANSWERED, approval=approval_request(Question("Which?", ("red",))))
    assert isinstance(call, m.ToolPart)
    assert isinstance(question, m.DataPart)
    assert call.state == "approval-requested"
    assert question.data == {
        "id": "apr",
        "toolCallId": "c",
        "text": "Which?",
        "options": ["red"],
        "status": "pending",
    }
    assert old == ANSWERED


def test_what_is_shown_already_is_not_asked_twice() -> None:
    question = msgspec.structs.replace(
        ANSWERED, data={**ANSWERED.data, "id": "apr", "status": "pending"}, id="apr"
    )
    shown = msgspec.structs.replace(
        CALL, state="approval-requested", approval=m.Approval("apr"), output=UNSET, preliminary=None
    )
    assert after_crash(shown, question, approval=approval_request(Question("Who?"))) == (shown, question)


def test_what_was_used_or_has_ended_is_not_asked_again() -> None:
    [used] = after_crash(CALL, approval=approval_request(None, status="used"))
    assert isinstance(used, m.ToolPart)
    assert used.state == "output-error"
    done = msgspec.structs.replace(CALL, output="all", preliminary=None)
    assert after_crash(done, approval=approval_request(None)) == (done,)
