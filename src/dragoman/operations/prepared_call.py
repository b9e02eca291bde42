"""Prepared calls: their idempotency keys, whether they continue an earlier one, and results as outcomes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded
from dragoman.ids import new_id
from dragoman.operations.approval import ApprovalRequest, SuspendedCall
from dragoman.operations.context import Context
from dragoman.operations.execution import ExecutionResult, PreparedCall
from dragoman.operations.ledger import CallCompletion, CallRecord, LedgerEntry
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, CallOutcome
from dragoman.operations.permission.access_control import APPROVAL_HINT

MAX_NAME_LENGTH = 200


def make_record(
    called: str | Operation, input: Any, *, input_hash: str, context: Context, call_id: str, now: float
) -> CallRecord:
    """Return the record of a call that starts at `now`."""
    return CallRecord(
        id=call_id,
        operation=operation_name(called),
        effect="read" if isinstance(called, str) else called.effect,
        owner=context.identity.owner,
        input=input,
        input_hash=input_hash,
        idempotency_key=context.idempotency_key or call_id,
        started_at=now,
        parent_id=context.call_id or context.parent_id,
        run_id=context.run_id,
        session_id=context.session_id,
        tool_call_id=context.tool_call_id,
        agent=context.agent,
        step=context.step,
    )


def operation_name(operation: str | Operation) -> str:
    return operation[:MAX_NAME_LENGTH] if isinstance(operation, str) else operation.id


def recorded_result(attempt: PreparedCall, ending: ExecutionResult) -> ExecutionResult:
    """Return a result for the ledger and traces, without secrets that only the caller may see."""
    secrets = attempt.secrets
    return ending if secrets is None else replace(ending, result=secrets.seal(ending.result))


def pending_result(approval: ApprovalRequest, failure: CallFailure | None = None) -> ExecutionResult:
    """Return the result of a call that waits for this approval."""
    error = failure or CallFailure(
        code=ApprovalNeeded.code, message="The call already waits for approval.", hint=APPROVAL_HINT
    )
    suspended = SuspendedCall(approval.call_id or "", approval.items)
    return ExecutionResult("pending", error=error, approval_id=approval.id, suspended_call=suspended)


def to_outcome(record: CallRecord, ending: ExecutionResult) -> CallOutcome:
    return CallOutcome(
        call_id=record.id,
        operation=record.operation,
        ok=ending.status == "done",
        result=ending.result,
        error=ending.error,
        status=ending.status,
        approval_id=ending.approval_id,
        suspended_call=ending.suspended_call,
        notes=ending.notes,
    )


def to_result(end: CallCompletion) -> ExecutionResult:
    return ExecutionResult(end.status, end.result, end.error, notes=end.notes)


def with_earlier(attempt: PreparedCall, earlier: LedgerEntry | None) -> PreparedCall:
    """Return the call with its ledger entry from before a crash.

    If the entry is of another call, return the call without it, under another idempotency key.
    """
    record = attempt.record
    if earlier is None:
        return attempt
    before = earlier.record
    is_same = before.operation == record.operation or not isinstance(attempt.target, Operation)
    if is_same and before.input_hash == record.input_hash:
        return replace(attempt, earlier=earlier)
    id = new_id("call")
    key = f"{record.idempotency_key}:{id}"
    return replace(
        attempt,
        record=replace(record, id=id, idempotency_key=key),
        context=replace(attempt.context, idempotency_key=key),
    )


def is_resumed(attempt: PreparedCall) -> bool:
    """Return whether a suspended call resumes."""
    grant = attempt.context.grant
    if grant is None:
        return False
    return attempt.context.node is None or grant.call_id == attempt.record.id


def make_idempotency_key(context: Context) -> str | None:
    """Return the idempotency key: the same when a step of a run is repeated.

    None for a call outside runs.
    """
    if context.node is not None:
        name = context.node.child_count if context.call_key is None else context.call_key
        return f"{context.idempotency_key}:{name}"
    scope = context.key_scope or context.run_id
    if context.idempotency_key is None and scope and context.tool_call_id:
        return f"{scope}:{context.tool_call_id}"
    return context.idempotency_key
