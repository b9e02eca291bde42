"""Approvals as JSON."""

from __future__ import annotations

from typing import Any

from dragoman.identity import Identity
from dragoman.operations.approval import OWNER, ApprovalItem, ApprovalRequest, Question, may_answer
from dragoman.operations.authorization import visible_owner
from dragoman.operations.permission.standing_rules import standing_items
from dragoman.session_ids import session_id_for


def may_answer_approvals(caller: Identity) -> bool:
    return caller.may("chat") or caller.may("admin")


def approval_to_json(
    approval: ApprovalRequest, caller: Identity, *, may_write: bool = False
) -> dict[str, Any]:
    """Return the approval as JSON; `mayAnswer` says whether this caller could answer it now.

    `may_write`: the caller may send messages to the session of the approval.
    """
    return {
        "id": approval.id,
        "status": approval.status,
        "owner": approval.owner,
        "operation": approval.operation,
        "operations": list(dict.fromkeys(item.operation for item in approval.items)) or [approval.operation],
        "input": approval.input,
        "inputHash": approval.input_hash,
        "question": question_to_json(approval.question),
        "answer": approval.answer,
        "items": [item_to_json(item) for item in approval.items],
        "createdAt": approval.created_at,
        "expiresAt": approval.expires_at,
        "answerers": approval.answerers,
        "mayAnswer": approval.status == "pending"
        and may_answer_approvals(caller)
        and (may_answer(approval, caller) or (may_write and OWNER in approval.answerers)),
        "mayAlwaysAllow": may_always_allow(approval, caller),
        "agent": approval.agent,
        "callId": approval.call_id,
        "runId": approval.run_id,
        "sessionId": session_id_for(caller.owner, approval.session_id),
        "toolCallId": approval.tool_call_id,
        "answeredAt": approval.answered_at,
        "answeredBy": approval.answered_by,
        "reason": approval.reason,
    }


def may_always_allow(approval: ApprovalRequest, caller: Identity) -> bool:
    """Return whether this caller may add a standing rule for such calls, judging by the request alone."""
    is_admin = visible_owner(caller) is None
    is_own = caller.owner == approval.owner and may_answer(approval, caller)
    return bool(standing_items(approval)) and (is_admin or is_own)


def item_to_json(item: ApprovalItem) -> dict[str, Any]:
    """Return one part of a call that needs approval as JSON."""
    return {
        "operation": item.operation,
        "input": item.input,
        "reason": item.reason,
        "question": question_to_json(item.question),
        "agent": item.agent,
    }


def question_to_json(question: Question | None) -> dict[str, Any] | None:
    return None if question is None else {"text": question.text, "options": question.options}
