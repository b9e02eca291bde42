"""Approval requests and questions in a message: the events that ask, and the answers to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.messages import DataPart, Message, Part, ToolPart
from dragoman.operations.approval import EXPIRED_REASON, ApprovalRequest, Question

QUESTION_PART = "data-question"
APPROVAL_STATES = ("approval-requested", "approval-responded")
UNANSWERED = "the question was not answered"
WITHDRAWN = "withdrawn: another message was sent instead of an answer"


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """An answer to a waiting tool call. `text` is the reason, or the answer to a question."""

    id: str
    approved: bool
    text: str | None = None


def request_events(
    id: str, tool_call_id: str, *, question: Question | None, has_output: bool
) -> list[e.Event]:
    """Return the events that ask for an approval or for the answer to a question.

    If the call has shown output already (`has_output`), an approval request also marks its part as waiting.
    """
    if question is None:
        return [e.ToolApprovalRequest(id, tool_call_id)]
    events: list[e.Event] = [e.ToolApprovalRequest(id, tool_call_id)] if has_output else []
    body = {"id": id, "toolCallId": tool_call_id, "text": question.text, "options": list(question.options)}
    return [*events, e.Data(QUESTION_PART, {**body, "status": "pending"}, id)]


def response_event(answer: ApprovalAnswer, parts: Iterable[Part]) -> e.ToolApprovalResponse | e.Data:
    """Return the event that records an answer; for a question, the question's own data part."""
    part = next((part for part in question_parts(parts) if part.id == answer.id), None)
    if part is None:
        return e.ToolApprovalResponse(answer.id, answer.approved, answer.text)
    detail = {"answer": answer.text} if answer.approved else {"reason": answer.text}
    fields = {key: value for key, value in detail.items() if value is not None}
    status = "answered" if answer.approved else "declined"
    return e.Data(QUESTION_PART, {**part.data, "status": status, **fields}, answer.id)


def stored_answer(approval: ApprovalRequest) -> ApprovalAnswer:
    """Return the answer that a stored approval request holds."""
    if approval.status == "expired":
        return ApprovalAnswer(approval.id, approved=False, text=EXPIRED_REASON)
    approved = approval.status in ("approved", "used")
    return ApprovalAnswer(approval.id, approved, approval.answer or approval.reason)


def question_parts(parts: Iterable[Part]) -> Sequence[DataPart]:
    """Return the question parts of a message, answered or not."""
    return [part for part in parts if isinstance(part, DataPart) and part.type == QUESTION_PART]


def pending_questions(parts: Iterable[Part]) -> dict[str, DataPart]:
    """Return the unanswered questions by the id of the tool call that asks."""
    by_call = {question_call_id(part.data): part for part in question_parts(parts)}
    return {key: part for key, part in by_call.items() if part.data["status"] == "pending"}


def pending_approval_id(parts: Iterable[Part], tool_call_id: str) -> str:
    """Return the id of the latest approval request or question of a waiting call."""
    parts_list = list(parts)
    question = pending_questions(parts_list).get(tool_call_id)
    if question is not None:
        return str(question.id)
    calls = [part for part in parts_list if isinstance(part, ToolPart) and part.tool_call_id == tool_call_id]
    return str(next(part.approval.id for part in calls if part.approval is not None))


def question_answer(event: e.Event) -> tuple[str, ApprovalAnswer] | None:
    """Return the tool call id and the answer in a question's event; None for any other event."""
    if not isinstance(event, e.Data) or event.type != QUESTION_PART or event.data["status"] == "pending":
        return None
    body = event.data
    approved = body["status"] == "answered"
    return question_call_id(body), ApprovalAnswer(
        body["id"], approved, body.get("answer") if approved else body.get("reason")
    )


def question_call_id(body: Any) -> str:
    """Return the id of the tool call that a question belongs to."""
    return str(body["toolCallId"])


def declined_data(question: DataPart, reason: str) -> dict[str, Any]:
    """Return the data of a question's part that says that it was declined."""
    return {**question.data, "status": "declined", "reason": reason}


def decline_requests(message: Message, reason: str) -> tuple[Message, list[str]]:
    """Return the message with its waiting approvals and questions declined, and the ids of these requests."""
    questions = pending_questions(message.parts)
    requested = {
        part.approval.id
        for part in message.tool_calls
        if part.state == "approval-requested" and part.approval is not None
    }
    question_ids = {str(part.id) for part in questions.values()}
    parts = tuple(_declined_part(part, questions, reason=reason) for part in message.parts)
    return replace(message, parts=parts), sorted(requested | question_ids)


def _declined_part(part: Part, questions: Mapping[str, DataPart], *, reason: str) -> Part:
    match part:
        case ToolPart(state="approval-requested", approval=approval) if approval is not None:
            return replace(
                part, state="output-denied", approval=replace(approval, approved=False, reason=reason)
            )
        case ToolPart(state="input-available", tool_call_id=id) if id in questions:
            return replace(part, state="output-error", error_text=f"{UNANSWERED}: {reason}")
        case DataPart(type="data-question", data=data) if data["status"] == "pending":
            return replace(part, data=declined_data(part, reason))
        case _:
            return part


def approval_answer(call: ToolPart) -> ApprovalAnswer | None:
    """Return the answer that a call's part records; None while there is none."""
    approval = call.approval
    if call.state != "approval-responded" or approval is None:
        return None
    return ApprovalAnswer(approval.id, approval.approved is True, approval.reason)


def denial_event(call: ToolPart, answer: ApprovalAnswer) -> e.Event:
    """Return the output event of a call that was declined."""
    if call.approval is not None:
        return e.ToolOutputDenied(call.tool_call_id)
    return e.ToolOutputError(call.tool_call_id, f"{UNANSWERED}: {answer.text}" if answer.text else UNANSWERED)
