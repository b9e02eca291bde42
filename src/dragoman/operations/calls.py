"""Calls: the one way in to every operation, with identity, policy, deadline, record and abort."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded, CallError, DragomanError, NotFound, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.operations.approval import ApprovalRequest, MemoryApprovalStore, SuspendedCall
from dragoman.operations.arguments.validation import invalid_input, make_problem
from dragoman.operations.artifact import MemoryArtifactStore
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.call_hooks import CallHooks
from dragoman.operations.concurrency import CancellableCall, LargeValueWorker, LazyThreadPool
from dragoman.operations.context import Context, ProgressCallback
from dragoman.operations.execution import (
    CallReview,
    CallTarget,
    Execution,
    ExecutionResult,
    PreparedCall,
    is_meta_call,
)
from dragoman.operations.ledger import CallCompletion, CallRecord, CallTracer, Ledger, hash_input
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, CallOutcome, to_failure
from dragoman.operations.permission.access_control import APPROVAL_HINT, AccessControl, ApprovalFlow
from dragoman.operations.permission.policy import Policy, Verdict
from dragoman.operations.registry import Registry
from dragoman.operations.repeated_failures import RepeatedFailureLimiter

log = logging.getLogger(__name__)
T = TypeVar("T")

RECORD_TIMEOUT = 5.0  # how long writing down an aborted call may hold its end up
MAX_NAME_LENGTH = 200

ABORTED = CallFailure(code="aborted", message="the call was stopped")
NOT_RECORDED = CallFailure(
    code=Unavailable.code, message="the call was not run: it could not be written down", transient=True
)
APPROVAL_UNAVAILABLE_HINT = "it was not run: it needs an approval, and nobody could be asked"


class CallSettings(msgspec.Struct, frozen=True):
    """Sync functions share `threads` threads; `tracer` sees each call; a call that failed `max_failures`
    times for a run is not run again unchanged.
    """

    threads: int = 16
    tracer: CallTracer | None = None
    max_failures: int = 3
    hooks: CallHooks | None = None


DEFAULT_SETTINGS = CallSettings()


class Calls:
    """Calls operations, and writes each call down.

    `access_control` decides who may call what, and asks for approval; without one all may be called but
    what wants an approval by itself. `overflow` keeps what is too big for a model. `clock` gives unix
    seconds. Use it with `async with`, or close() it.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        *,
        access_control: AccessControl | None = None,
        overflow: ArtifactOverflow | None = None,
        clock: Callable[[], float] = time.time,
        settings: CallSettings = DEFAULT_SETTINGS,
    ) -> None:
        self.access_control = access_control or AccessControl(
            Policy(), MemoryApprovalStore(clock), clock=clock
        )
        self.approval_flow = ApprovalFlow(self.access_control, ledger, clock=clock)
        self.overflow = overflow or ArtifactOverflow(MemoryArtifactStore())
        self._registry = registry
        self._ledger = ledger
        self._clock = clock
        self._tracer = settings.tracer
        self._hooks = settings.hooks
        self._failure_limiter = RepeatedFailureLimiter(settings.max_failures, clock=clock)
        self._worker = LargeValueWorker()
        self._threads = LazyThreadPool(settings.threads, "operation")
        self._running: dict[str, CancellableCall] = {}
        self._end_tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what is still being written down; let the threads go, without waiting for busy ones."""
        if self._end_tasks:
            await asyncio.wait(self._end_tasks, timeout=RECORD_TIMEOUT)
        self._threads.close()
        self._worker.close()

    async def call(
        self,
        operation: str | Operation,
        input: Mapping[str, Any] | None = None,
        *,
        context: Context,
        on_progress: ProgressCallback | None = None,
    ) -> CallOutcome:
        """Call an operation, by its id or itself, and say what came of it.

        The call is written down before it runs; when that fails it does not run. It ends by the earlier of
        `context.deadline` and its own timeout. Cancelling the task that awaits it aborts it with all that it
        called, and raises CancelledError; everything else that can go wrong is told in the outcome. One that
        wants an approval is not run: the outcome is `pending`, with the id of what to answer.
        """
        above = context.node
        call_id = (context.grant.call_id if context.grant and above else None) or new_id("call")
        try:
            index = 0 if above is None else above.add_child(call_id)
        except CallError as error:
            failure = to_failure(error)
            return CallOutcome(
                call_id=call_id, operation=operation_name(operation), ok=False, error=failure, status="failed"
            )
        try:
            if isinstance(operation, str):
                await self.wait_for_operations([operation], context)
            key = make_idempotency_key(context, index) or call_id
            hooks = context.hooks or self._hooks
            inside = replace(context, on_progress=on_progress, idempotency_key=key, hooks=hooks)
            return await self._record_and_run(
                self._prepare(operation, input, call_id=call_id, context=inside)
            )
        finally:
            if above is not None:
                above.remove_child(call_id)

    def abort(self, call_id: str, reason: str = "it was stopped") -> bool:
        """Stop a call that is under way, with all below it; whoever made it is told. False when it is not."""
        live = self._running.get(call_id)
        return live is not None and live.stop(reason)

    def is_visible(self, operation: Operation, context: Context) -> bool:
        """Whether the caller may know of an operation: not, when the policy denies it."""
        return self.access_control.evaluate(operation, context).decision != "deny"

    async def wait_for_operations(self, ids: Sequence[str], context: Context) -> None:
        """Wait, up to the deadline, for operations that are not here while somebody brings them."""
        await self._registry.wait_for(ids, deadline=context.deadline)

    def get_operation(self, operation: str, context: Context) -> Operation:
        """The operation of this id. NotFound, also for one that the caller may not call."""
        found = self._registry.get(operation, allow=lambda each: self.is_visible(each, context))
        if not self.is_visible(found, context):
            raise NotFound(f"no operation {operation[:MAX_NAME_LENGTH]!r}")
        return found

    async def review(self, operation: str, input: Mapping[str, Any], *, context: Context) -> CallReview:
        """What hooks say of this call, and what somebody would have to approve before it.

        Nothing, when nobody has to or it cannot run. The ruling is to be handed on with the call itself.
        """
        attempt = self._prepare(operation, input, call_id="", context=context)
        try:
            return await Execution(
                self, attempt, check=self.access_control.preview, worker=self._worker
            ).review()
        except DragomanError:
            return CallReview()

    def decide(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> Verdict:
        """What the policy says of a call."""
        return self.access_control.policy.decide(operation, identity=identity, agent=agent)

    async def answer_approval(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer a request for approval; see `Consent.answer`."""
        return await self.approval_flow.answer(approval_id, approved=approved, by=by, reason=reason)

    async def offload(self, function: Callable[[], T]) -> T:
        """What a blocking function returns, run in a thread. Cancelling drops the result, not the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads.pool, copy_context().run, convert_exit_exceptions, function
        )

    def _prepare(
        self, operation: str | Operation, input: Any, *, call_id: str, context: Context
    ) -> PreparedCall:
        target, kept, digest = self._resolve_target(operation, context), {} if input is None else input, ""
        try:
            digest = hash_input(kept)
        except (TypeError, ValueError, RecursionError) as error:
            target, kept = invalid_input([make_problem((), f"JSON ({error})")]), None
        if not isinstance(kept, Mapping) and isinstance(target, Operation):
            target = invalid_input([make_problem((), "an object", got=kept)])
        meant = operation if isinstance(target, DragomanError) else target
        record = CallRecord(
            id=call_id,
            operation=operation_name(meant),
            effect="read" if isinstance(meant, str) else meant.effect,
            owner=context.identity.owner,
            input=kept,
            input_hash=digest,
            idempotency_key=context.idempotency_key or call_id,
            started_at=self._clock(),
            parent_id=context.call_id or context.parent_id,
            run_id=context.run_id,
            session_id=context.session_id,
            tool_call_id=context.tool_call_id,
            agent=context.agent,
            step=context.step,
        )
        return PreparedCall(target, record, context)

    def _resolve_target(self, operation: str | Operation, context: Context) -> CallTarget:
        if isinstance(operation, Operation):
            return operation
        try:
            return self._registry.get(operation, allow=lambda each: self.is_visible(each, context))
        except NotFound as error:
            return error

    async def _record_and_run(self, attempt: PreparedCall) -> CallOutcome:
        """Take up what was approved, then intent, attempt, end; the end also when it is cancelled."""
        try:
            attempt = await self.approval_flow.resume_approved(attempt)
            held = await self.approval_flow.find_pending(attempt)
            if held is not None:
                return to_outcome(replace(attempt.record, id=held.call_id or ""), pending_result(held))
        except DragomanError as error:
            attempt = PreparedCall(error, attempt.record, attempt.context)
        record = attempt.record
        live = self._running[record.id] = CancellableCall()
        ending: ExecutionResult | None = None
        try:
            if await self._record_start(attempt):
                ending = await self._run_traced(attempt)
                await self._record_end(record, ending)
            else:
                ending = ExecutionResult("failed", error=NOT_RECORDED)
        except asyncio.CancelledError:
            ending = ending or ExecutionResult("aborted", error=replace(ABORTED, hint=live.stop_reason))
            await self._record_end_shielded(record, ending)
            if live.stop_reason is None:
                raise
        finally:
            del self._running[record.id]
            others = live.finish()
        if others:
            raise asyncio.CancelledError
        return to_outcome(record, ending)

    async def _record_start(self, attempt: PreparedCall) -> bool:
        record = attempt.record
        wait = record.effect != "read" and not is_meta_call(record)
        try:
            if is_resumed(attempt):
                await self._ledger.record_resume(record)
            else:
                await self._ledger.record_start(record, wait=wait)
        except (StoreError, Unavailable) as error:
            log.error("call %s of %s is not run: %s", record.id, record.operation, error)
            return False
        except Exception:
            log.exception("call %s of %s is not run", record.id, record.operation)
            return False
        return True

    async def _record_end(self, record: CallRecord, ending: ExecutionResult) -> None:
        """Write the end down. A result is not kept back because that fails: the work has been done."""
        ended = CallCompletion(
            status=ending.status,
            ended_at=None if ending.status == "pending" else self._clock(),
            result=ending.result,
            error=ending.error,
            cost=ending.cost,
            attempts=ending.attempts,
            notes=ending.notes,
        )
        wait = record.parent_id is None  # a child's end is kept before its parent's
        try:
            await self._ledger.record_end(record.id, ended, wait=wait)
        except (StoreError, Unavailable) as error:
            log.error("the end of call %s of %s is not written: %s", record.id, record.operation, error)
        except Exception:
            log.exception("the end of call %s of %s is not written", record.id, record.operation)

    async def _record_end_shielded(self, record: CallRecord, ending: ExecutionResult) -> None:
        task = asyncio.create_task(self._record_end(record, ending))
        self._end_tasks.add(task)
        task.add_done_callback(self._end_tasks.discard)
        await asyncio.wait([task], timeout=RECORD_TIMEOUT)

    async def _run_traced(self, attempt: PreparedCall) -> ExecutionResult:
        if self._tracer is None:
            return await self._run(attempt)
        with self._tracer.call(attempt.record) as watch:
            ending = await self._run(attempt)
            watch.set_outcome(ending.result, ending.error)
            return ending

    async def _run(self, attempt: PreparedCall) -> ExecutionResult:
        """Run it, unless it failed too often or somebody has to approve it first."""
        record, context = attempt.record, attempt.context
        counted = context.for_model and not is_meta_call(record)
        try:
            if counted:
                self._failure_limiter.check(record, context)
            ending = await Execution(
                self, attempt, check=self.access_control.check, worker=self._worker
            ).run()
        except CallError as error:
            return await self._handle_refusal(attempt, error)
        if counted and ending.status in ("done", "failed"):
            ending = replace(
                ending, error=self._failure_limiter.record_result(record, context, failure=ending.error)
            )
        if counted and ending.status == "done":
            fitting = self.overflow.shorten(ending.result, record, now=self._clock(), worker=self._worker)
            ending = replace(ending, result=await fitting)
        return ending

    async def _handle_refusal(self, attempt: PreparedCall, error: CallError) -> ExecutionResult:
        """What becomes of a call that was refused: it waits, if it can be approved and that be kept."""
        if not isinstance(error, ApprovalNeeded):
            return ExecutionResult("failed", error=to_failure(error))
        try:
            return await self._wait_for_approval(attempt, error)
        except (StoreError, Unavailable) as problem:
            log.warning("nobody could be asked to approve call %s: %s", attempt.record.id, problem.message)
            return ExecutionResult(
                "failed", error=replace(to_failure(problem), hint=APPROVAL_UNAVAILABLE_HINT)
            )

    async def _wait_for_approval(self, attempt: PreparedCall, error: ApprovalNeeded) -> ExecutionResult:
        """Use an approval that was given meanwhile, or ask for one."""
        context = attempt.context
        if context.node is not None and not context.may_wait:
            hint = "it is called from within another operation: allow it there by a rule of the policy"
            return ExecutionResult("denied", error=replace(to_failure(error), hint=hint))
        failure = replace(to_failure(error), hint=APPROVAL_HINT)
        if context.node is not None:
            waiting = SuspendedCall(attempt.record.id, error.items, error.state)
            return ExecutionResult("pending", error=failure, suspended_call=waiting)
        granted = await self.approval_flow.use_approval(attempt)
        if granted is not None:
            return await self._run(granted)
        return pending_result(await self.approval_flow.request_approval(attempt, error), failure)


def pending_result(approval: ApprovalRequest, failure: CallFailure | None = None) -> ExecutionResult:
    """How a call ends that waits for this approval."""
    error = failure or CallFailure(
        code=ApprovalNeeded.code, message="it waits for somebody's word already", hint=APPROVAL_HINT
    )
    waiting = SuspendedCall(approval.call_id or "", approval.items)
    return ExecutionResult("pending", error=error, approval_id=approval.id, suspended_call=waiting)


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


def is_resumed(attempt: PreparedCall) -> bool:
    """Whether it is a call that waited, and goes on."""
    grant = attempt.context.grant
    if grant is None:
        return False
    return attempt.context.node is None or grant.call_id == attempt.record.id


def operation_name(operation: str | Operation) -> str:
    return operation[:MAX_NAME_LENGTH] if isinstance(operation, str) else operation.id


def make_idempotency_key(context: Context, index: int) -> str | None:
    """The idempotency key: the same when a step of a run is done again. None for a call of no run."""
    if context.node is not None:
        return f"{context.idempotency_key}:{index}"
    if context.idempotency_key is None and context.run_id and context.tool_call_id:
        return f"{context.run_id}:{context.tool_call_id}"
    return context.idempotency_key


def convert_exit_exceptions(function: Callable[[], T]) -> T:
    """What the function returns; what a future cannot carry out of a thread becomes a CallError."""
    try:
        return function()
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise CallError(f"the operation raised {type(error).__name__}") from error
