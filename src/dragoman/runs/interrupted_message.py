"""The message of a run that a crash cut off: restores its lost approvals, or closes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.agent.approval_events import (
    APPROVAL_STATES,
    pending_approval_id,
    question_call_id,
    question_parts,
    request_events,
)
from dragoman.events import Data
from dragoman.fold import merge_metadata
from dragoman.messages import (
    FINAL_STATES,
    DataPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolPart,
)
from dragoman.messages import Approval as Asked
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.ledger import LedgerEntry
from dragoman.operations.replayed_calls import is_cut_off


def restore_approvals(
    message: Message, approvals: Sequence[ApprovalRequest], *, calls: Sequence[LedgerEntry]
) -> Message:
    """Return the message with the approval requests that the crash kept from being written to it."""
    waiting = {call.record.id for call in calls if call.status == "pending"}
    question_ids = {part.id for part in question_parts(message.parts)}
    wanted = {
        pending.tool_call_id: pending
        for pending in approvals
        if pending.call_id in waiting and pending.status != "used"
    }
    parts: list[Part] = []
    for part in message.parts:
        approval = wanted.get(part.tool_call_id) if isinstance(part, ToolPart) else None
        if (
            not isinstance(part, ToolPart)
            or approval is None
            or shows_approval(part, approval.id, question_ids=question_ids)
        ):
            parts.append(part)
            continue
        parts.append(
            replace(
                part,
                state="approval-requested",
                approval=Asked(approval.id),
                output=msgspec.UNSET,
                preliminary=None,
            )
        )
        if approval.question is not None:
            event = request_events(
                approval.id, part.tool_call_id, question=approval.question, has_output=False
            )[0]
            parts += [DataPart(event.type, event.data, event.id)] if isinstance(event, Data) else []
    return replace(message, parts=tuple(parts))


def shows_approval(part: ToolPart, approval_id: str, *, question_ids: set[str | None]) -> bool:
    """Return whether the part shows the request already, or has ended."""
    if part.state in FINAL_STATES and not part.preliminary:
        return True
    return approval_id in question_ids or (part.approval is not None and part.approval.id == approval_id)


def close_message(
    message: Message, calls: Sequence[LedgerEntry], *, finish_reason: str = "interrupted"
) -> Message:
    """Return the message after a crash: blocks closed, every call with the output in the ledger."""
    ended = {call.record.tool_call_id: call for call in calls if _is_root(call, calls)}
    unbegun = _waiting_calls(message.parts, ended)
    parts = tuple(
        _reopened_part(part, unbegun) or _close_part(part, ended, calls=calls) for part in message.parts
    )
    return replace(
        message, parts=parts, metadata=merge_metadata(message.metadata, {"finishReason": finish_reason})
    )


def _waiting_calls(parts: Sequence[Part], entries: Mapping[str | None, LedgerEntry]) -> dict[str, str]:
    """Return approval ids by the calls that wait for an answer, or had not used it: these can still run."""
    asking_calls = {question_call_id(part.data) for part in question_parts(parts)}
    calls = [part for part in parts if isinstance(part, ToolPart) and part.state not in FINAL_STATES]
    entry_of = {part.tool_call_id: entries.get(part.tool_call_id) for part in calls}
    return {
        part.tool_call_id: pending_approval_id(parts, part.tool_call_id)
        for part in calls
        if (part.state in APPROVAL_STATES or part.tool_call_id in asking_calls)
        and ((entry := entry_of[part.tool_call_id]) is None or entry.status == "pending")
    }


def _reopened_part(part: Part, waiting: Mapping[str, str]) -> Part | None:
    """Return the part of a waiting call, or of its question, as unanswered; None for any other part."""
    match part:
        case ToolPart(tool_call_id=key, approval=approval) if key in waiting:
            if approval is None or part.state != "approval-responded":
                return part
            return replace(part, state="approval-requested", approval=Asked(approval.id))
        case DataPart(type="data-question", id=id, data=data) if id in waiting.values():
            fields = {name: value for name, value in data.items() if name not in ("answer", "reason")}
            return replace(part, data={**fields, "status": "pending"})
        case _:
            return None


def _is_root(call: LedgerEntry, calls: Sequence[LedgerEntry]) -> bool:
    return call.record.parent_id not in {other.record.id for other in calls}


def _close_part(
    part: Part, entries: Mapping[str | None, LedgerEntry], *, calls: Sequence[LedgerEntry]
) -> Part:
    match part:
        case TextPart(state="streaming") | ReasoningPart(state="streaming"):
            return replace(part, state="done")
        case ToolPart() if part.state not in FINAL_STATES or part.preliminary:
            return _close_tool_part(part, entries.get(part.tool_call_id), calls=calls)
        case _:
            return part


def _close_tool_part(part: ToolPart, call: LedgerEntry | None, *, calls: Sequence[LedgerEntry]) -> ToolPart:
    raw = part.raw_input if isinstance(part.raw_input, str) else None
    shown = part.input if part.input is not msgspec.UNSET else raw
    part = replace(part, input=shown, raw_input=msgspec.UNSET, preliminary=None, output=msgspec.UNSET)
    if call is not None and call.status == "done":
        return replace(part, state="output-available", output=call.result)
    if call is not None and call.error is not None:
        return replace(part, state="output-error", error_text=call.error.message)
    return replace(part, state="output-error", error_text=_interruption_text(part, call, calls=calls))


def _interruption_text(part: ToolPart, call: LedgerEntry | None, *, calls: Sequence[LedgerEntry]) -> str:
    """Return what the model is told of an interrupted call, so that it does not repeat what was done."""
    if part.input is msgspec.UNSET or call is None:
        return "not run: the hub stopped before this call began"
    children = [other for other in calls if other.record.parent_id == call.record.id]
    done = [f"{c.record.operation} returned {_excerpt(c.result)}" for c in children if c.status == "done"]
    unknown = [c.record.operation for c in (children or [call]) if c.status == "running" or is_cut_off(c)]
    sentences = ["the hub stopped while this call ran"]
    if done:
        sentences.append("finished before that, do not repeat: " + "; ".join(done))
    if unknown:
        sentences.append("not known whether it took effect: " + ", ".join(unknown))
    return ". ".join(sentences)


def _excerpt(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:200] + "…"
