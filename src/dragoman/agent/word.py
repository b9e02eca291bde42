"""Words: what somebody outside is asked about a tool call, an approval or an answer, and what he said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.messages import DataPart, Part, ToolPart
from dragoman.operations.approval import LATE, Approval, Question

QUESTION = "data-question"
WANTED = ("approval-requested", "approval-responded")  # the states of a call that asks by an approval
UNANSWERED = "the question was not answered"


class Word(msgspec.Struct, frozen=True):
    """What was said of a call that waited; `said` is the reason, or the answer to a question."""

    id: str
    approved: bool
    said: str | None = None


def request(id: str, call: str, *, question: Question | None, shown: bool) -> list[e.Event]:
    """The events that ask. Where output of the call was `shown` already, its part must say that it waits."""
    if question is None:
        return [e.ToolApprovalRequest(id, call)]
    asked: list[e.Event] = [e.ToolApprovalRequest(id, call)] if shown else []
    body = {"id": id, "toolCallId": call, "text": question.text, "options": list(question.options)}
    return [*asked, e.Data(QUESTION, {**body, "status": "pending"}, id)]


def response(word: Word, parts: Iterable[Part]) -> e.ToolApprovalResponse | e.Data:
    """The event that tells what was said: of a question, with the question's own part."""
    part = next((part for part in questions(parts) if part.id == word.id), None)
    if part is None:
        return e.ToolApprovalResponse(word.id, word.approved, word.said)
    said = {"answer": word.said} if word.approved else {"reason": word.said}
    known = {key: value for key, value in said.items() if value is not None}
    status = "answered" if word.approved else "declined"
    return e.Data(QUESTION, {**part.data, "status": status, **known}, word.id)


def word_of(approval: Approval) -> Word:
    """What was said, as it is kept."""
    if approval.status == "expired":
        return Word(approval.id, approved=False, said=LATE)
    approved = approval.status in ("approved", "used")
    return Word(approval.id, approved, approval.answer or approval.reason)


def questions(parts: Iterable[Part]) -> Sequence[DataPart]:
    """The questions among the parts of a message, answered or not."""
    return [part for part in parts if isinstance(part, DataPart) and part.type == QUESTION]


def pending(parts: Iterable[Part]) -> dict[str, DataPart]:
    """The questions that nobody has answered, by the tool calls that ask them."""
    asked = {call_of(part.data): part for part in questions(parts)}
    return {key: part for key, part in asked.items() if part.data["status"] == "pending"}


def word_id(parts: Iterable[Part], call: str) -> str:
    """The id of what a call that waits has asked for last."""
    held = list(parts)
    question = pending(held).get(call)
    if question is not None:
        return str(question.id)
    calls = [part for part in held if isinstance(part, ToolPart) and part.tool_call_id == call]
    return str(next(part.approval.id for part in calls if part.approval is not None))


def answered(event: e.Event) -> tuple[str, Word] | None:
    """The tool call that a question's answer is for, and what was said; None for any other event."""
    if not isinstance(event, e.Data) or event.type != QUESTION or event.data["status"] == "pending":
        return None
    body = event.data
    approved = body["status"] == "answered"
    return call_of(body), Word(body["id"], approved, body.get("answer") if approved else body.get("reason"))


def call_of(body: Any) -> str:
    """The tool call that a question belongs to."""
    return str(body["toolCallId"])


def given(call: ToolPart) -> Word | None:
    """What was said of a call that wanted an approval, as its part keeps it; None where nothing was."""
    approval = call.approval
    if call.state != "approval-responded" or approval is None:
        return None
    return Word(approval.id, approval.approved is True, approval.reason)


def denied(call: ToolPart, word: Word) -> e.Event:
    """The output of a call that somebody did not want."""
    if call.approval is not None:
        return e.ToolOutputDenied(call.tool_call_id)
    return e.ToolOutputError(call.tool_call_id, f"{UNANSWERED}: {word.said}" if word.said else UNANSWERED)
