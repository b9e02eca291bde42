"""What an answer waits for: approvals, answers to questions, and outputs of client-side tools."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.agent.approval_events import pending_questions, question_call_id, question_parts
from dragoman.errors import BadRequest
from dragoman.messages import Message
from dragoman.wire.ui.client_request import ClientApprovalAnswer, ClientToolOutput

DECLINED = "declined"


class RequestedInputs(msgspec.Struct, frozen=True):
    """What a message asks for, or has asked for: tool call ids by the id of the approval or question.

    `waiting` are the ids of those without an answer, and of calls of client-side tools without an output.
    """

    approvals: Mapping[str, str]
    questions: Mapping[str, str]
    waiting: frozenset[str]

    @classmethod
    def of_message(cls, message: Message) -> RequestedInputs:
        """Return what a message asks for."""
        calls = message.tool_calls
        approvals = {call.approval.id: call.tool_call_id for call in calls if call.approval is not None}
        questions = {str(part.id): question_call_id(part.data) for part in question_parts(message.parts)}
        pending = pending_questions(message.parts)
        waiting = {str(part.id) for part in pending.values()}
        for call in calls:
            if call.state == "approval-requested" and call.approval is not None:
                waiting.add(call.approval.id)
            elif (
                call.state == "input-available"
                and not call.provider_executed
                and call.tool_call_id not in pending
            ):
                waiting.add(call.tool_call_id)
        return cls(approvals, questions, frozenset(waiting))

    def answer_approval(self, id: str, *, approved: bool, reason: str | None = None) -> ClientApprovalAnswer:
        """Return the answer to an approval of the message."""
        return ClientApprovalAnswer(id, self.approvals[id], approved, reason)

    def answer_question(self, id: str, answer: str | None) -> ClientToolOutput:
        """Return the answer to a question of the message; None declines it."""
        if answer is None:
            return ClientToolOutput(self.questions[id], error_text=DECLINED)
        return ClientToolOutput(self.questions[id], answer)


def read_approval_answer(payload: object, *, field: str) -> tuple[bool, str | None]:
    """Return whether a payload approves, and its reason: `true`, or `{"approved": true, "reason"?}`.

    Raises BadRequest for anything else: a free text is not an approval.
    """
    if isinstance(payload, bool):
        return payload, None
    if isinstance(payload, Mapping) and isinstance(payload.get("approved"), bool):
        reason = payload.get("reason")
        return payload["approved"], reason if isinstance(reason, str) else None
    hint = 'send {"approved": true} or {"approved": false}'
    raise BadRequest(f"{field} does not say whether the call is approved", field=field, hint=hint)


def read_answer(payload: object, *, field: str) -> str:
    """Return the text of an answer to a question: a string, or `{"answer": "..."}`. Raises BadRequest."""
    answer = payload.get("answer") if isinstance(payload, Mapping) else payload
    if isinstance(answer, str):
        return answer
    raise BadRequest(f"{field} is not an answer", field=field, hint='send {"answer": "..."}')
