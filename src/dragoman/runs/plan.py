"""What a chat request means for the stored session: which message goes, which comes, which goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dragoman import events as e
from dragoman.errors import Conflict, NotFound
from dragoman.messages import FINAL_STATES, Message, ToolPart
from dragoman.wire.chat import ApprovalAnswer, Continue, Edit, NewTurn, Regenerate, ToolOutput, Turn


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run starts with: `drop_from` and all after it goes, `user` is added, `assistant` grows.

    `given` are the events that the front end's outputs and answers come to, checked against the record.
    """

    history: Sequence[Message]
    assistant: Message
    user: Message | None = None
    drop_from: str | None = None
    given: Sequence[e.Event] = ()


def plan(turn: Turn, stored: Sequence[Message], *, new_id: str) -> Plan:
    """The plan for a turn. Raises NotFound and Conflict when the request does not fit the record."""
    match turn:
        case NewTurn(message=message) | Edit(message=message):
            return _answer(message, stored, new_id=new_id)
        case Regenerate(message=message):
            return _again(message, stored, new_id=new_id)
        case Continue():
            return _continue(turn, stored)


def _answer(message: Message, stored: Sequence[Message], *, new_id: str) -> Plan:
    at = _find(stored, message.id)
    before = stored if at is None else stored[:at]
    return Plan(
        history=(*before, message),
        assistant=Message(id=new_id, role="assistant"),
        user=message,
        drop_from=None if at is None else message.id,
    )


def _again(message: Message, stored: Sequence[Message], *, new_id: str) -> Plan:
    at = _find(stored, message.id)
    if at is None:
        return _answer(message, stored, new_id=new_id)
    after = stored[at + 1].id if at + 1 < len(stored) else None
    return Plan(history=stored[: at + 1], assistant=Message(id=new_id, role="assistant"), drop_from=after)


def _continue(turn: Continue, stored: Sequence[Message]) -> Plan:
    at = _find(stored, turn.message_id)
    if at is None:
        raise NotFound(
            f"the session holds no message {turn.message_id!r}", hint="load it again from /messages"
        )
    if at != len(stored) - 1 or stored[at].role != "assistant":
        raise Conflict(f"message {turn.message_id!r} is not the last answer of the session; it cannot go on")
    calls = {part.tool_call_id: part for part in stored[at].parts if isinstance(part, ToolPart)}
    outputs = [_output(said, calls) for said in turn.outputs]
    answers = [_approval(said, calls) for said in turn.answers]
    given = [event for event in (*answers, *outputs) if event is not None]
    return Plan(history=stored[:at], assistant=stored[at], given=given)


def _output(said: ToolOutput, calls: Mapping[str, ToolPart]) -> e.Event | None:
    call = calls.get(said.tool_call_id)
    if call is None:
        raise Conflict(f"the session's record holds no tool call {said.tool_call_id!r}")
    if call.state in FINAL_STATES or call.provider_executed:
        return None
    if call.state != "input-available":
        raise Conflict(f"the tool call {said.tool_call_id!r} waits for an approval, not for an output")
    if said.error_text is not None:
        return e.ToolOutputError(said.tool_call_id, said.error_text)
    return e.ToolOutputAvailable(said.tool_call_id, said.output)


def _approval(said: ApprovalAnswer, calls: Mapping[str, ToolPart]) -> e.Event | None:
    call = calls.get(said.tool_call_id)
    if call is None or call.approval is None or call.approval.id != said.approval_id:
        raise Conflict(f"the session's record holds no approval {said.approval_id!r} for this call")
    if call.state != "approval-requested":
        return None
    return e.ToolApprovalResponse(said.approval_id, said.approved, said.reason)


def _find(stored: Sequence[Message], message_id: str) -> int | None:
    return next((index for index, message in enumerate(stored) if message.id == message_id), None)
