"""Calls: the one entry point to every operation.

Identity, policy, approvals, hooks, deadline, ledger and abort are applied here and not by the callers (HTTP,
MCP, spokes, the agent loop), so that calls behave the same wherever they come from.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded, CallError, DragomanError, NotFound, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.large_json import measure
from dragoman.offload import offload
from dragoman.operations.approval import ApprovalRequest, MemoryApprovalStore, SuspendedCall
from dragoman.operations.arguments.validation import invalid_input, make_problem
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.call_hooks import CallHooks
from dragoman.operations.call_observer import CallEvents
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
from dragoman.operations.prepared_call import (
    is_resumed,
    make_idempotency_key,
    make_record,
    operation_name,
    pending_result,
    recorded_result,
    to_outcome,
    to_result,
    with_earlier,
)
from dragoman.operations.registry import Registry
from dragoman.operations.repeated_failures import RepeatedFailureLimiter
from dragoman.operations.replayed_calls import (
    grant_to_try_again,
    is_about_uncertain_call,
    question_item,
    recorded_end,
    settled_end,
    uncertain_end,
)
from dragoman.operations.results.artifact import MemoryArtifactStore
from dragoman.operations.secret_handles import CallSecrets, SecretLookup, shield_input
from dragoman.operations.worker_threads import CancellableCall, LargeValueWorker, LazyThreadPool

log = logging.getLogger(__name__)
T = TypeVar("T")

RECORD_TIMEOUT = 5.0  # how long recording an aborted call may delay its end

ABORTED = CallFailure(code="aborted", message="The call was aborted.")
NOT_RECORDED = CallFailure(
    code=Unavailable.code, message="The call did not run: it could not be recorded.", transient=True
)
UNCERTAIN_TEXT = "The hub stopped while this call ran, and it is not known whether it took effect."
APPROVAL_UNAVAILABLE_HINT = "The call needs approval, and the request could not be stored."


class CallSettings(msgspec.Struct, frozen=True):
    """Settings of `Calls`.

    Sync functions share `threads` threads; `tracer` opens a span for each call; a call that failed
    `max_failures` times in a run does not run again unchanged; `events` observes each call.
    """

    threads: int = 16
    tracer: CallTracer | None = None
    max_failures: int = 3
    hooks: CallHooks | None = None
    events: CallEvents | None = None


DEFAULT_SETTINGS = CallSettings()


class Calls:
    """Calls operations and records each call.

    `access_control` decides who may call what and requests approvals; the default allows everything except
    operations that need approval by themselves. `overflow` stores results that are too big for a model.
    `clock` returns unix seconds. Use with `async with`, or call close().
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
        self.secrets: SecretLookup | None = None
        """Finds the secrets that a call may use; they are redacted everywhere else."""
        self.overflow = overflow or ArtifactOverflow(MemoryArtifactStore())
        self._registry = registry
        self._ledger = ledger
        self._clock = clock
        self._tracer = settings.tracer
        self._hooks = settings.hooks
        self._events = settings.events
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
        """Wait for records that are being written; release the threads without waiting for busy ones."""
        if self._end_tasks:
            await asyncio.wait(self._end_tasks, timeout=RECORD_TIMEOUT)
        self.release_threads()

    def release_threads(self) -> None:
        """Release the threads without waiting for busy ones; needs no event loop."""
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
        """Call an operation and return its outcome.

        The call is recorded before it runs; if that fails, it does not run. It ends at the earlier of
        `context.deadline` and the operation's timeout. Cancelling the awaiting task aborts the call with
        all calls below it and raises CancelledError; every other failure is in the outcome. A call that
        needs approval does not run: its outcome is `pending` and has the approval's id.
        """
        parent = context.node
        key = make_idempotency_key(context)
        earlier = context.replayed_calls.get(key) if context.replayed_calls and key else None
        call_id = (context.grant.call_id if context.grant and parent else None) or (
            earlier.record.id if earlier is not None else new_id("call")
        )
        try:
            if parent is not None:
                parent.add_child(call_id)
        except CallError as error:
            failure = to_failure(error)
            return CallOutcome(
                call_id=call_id, operation=operation_name(operation), ok=False, error=failure, status="failed"
            )
        try:
            if isinstance(operation, str):
                await self.wait_for_operations([operation], context)
            hooks = context.hooks or self._hooks
            call_context = replace(
                context, on_progress=on_progress, idempotency_key=key or call_id, hooks=hooks
            )
            attempt = await self._prepare(operation, input, call_id=call_id, context=call_context)
            return await self._record_and_run(with_earlier(attempt, earlier))
        finally:
            if parent is not None:
                parent.remove_child(call_id)

    def abort(self, call_id: str, reason: str = "it was stopped") -> bool:
        """Abort a running call with all calls below it. Return False if it is not running."""
        running = self._running.get(call_id)
        return running is not None and running.stop(reason)

    def is_visible(self, operation: Operation, context: Context) -> bool:
        """Return whether the caller may see an operation: unless the policy denies it."""
        return self.access_control.evaluate(operation, context).decision != "deny"

    async def wait_for_operations(self, ids: Sequence[str], context: Context) -> None:
        """Wait, up to the deadline, for operations that are being registered and that the caller may see."""
        allow = partial(self.is_visible, context=context)
        await self._registry.wait_for(ids, deadline=context.deadline, allow=allow)

    def get_operation(self, operation: str, context: Context) -> Operation:
        """Return the operation of this id. Raises NotFound, also if the caller may not call it."""
        return self._resolve(operation, context)

    async def review(self, operation: str, input: Mapping[str, Any], *, context: Context) -> CallReview:
        """Return what hooks decide about a call and which approval it needs, without running it.

        Empty if it needs none or cannot run. Pass the hooks' decision on with the call itself.
        """
        key = make_idempotency_key(context)
        earlier = context.replayed_calls.get(key) if context.replayed_calls and key else None
        if earlier is not None and earlier.status != "pending":  # it was allowed before a crash
            return CallReview()
        attempt = await self._prepare(operation, input, call_id="", context=context)
        try:
            return await Execution(
                self, attempt, check=self.access_control.preview, worker=self._worker
            ).review()
        except DragomanError:
            return CallReview()

    def decide(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> Verdict:
        """Return the policy's verdict on a call."""
        return self.access_control.policy.decide(operation, identity=identity, agent=agent)

    async def answer_approval(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer an approval request; see `ApprovalFlow.answer`."""
        return await self.approval_flow.answer(approval_id, approved=approved, by=by, reason=reason)

    def publish(self, context: Context, name: str, *, data: Any, in_answer: bool = False) -> None:
        """Publish a domain event for a call; see `Context.publish`."""
        if self._events is not None:
            sealed = context.seal(data) if context.seal else data
            self._events.publish(context, name, data=sealed, in_answer=in_answer)

    async def offload(self, function: Callable[[], T]) -> T:
        """Run a blocking function in a thread. Cancelling drops the result; the thread runs on."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads.pool, copy_context().run, convert_exit_exceptions, function
        )

    async def _prepare(
        self, operation: str | Operation, input: Any, *, call_id: str, context: Context
    ) -> PreparedCall:
        for refresh in self.access_control.refreshers:
            refresh(context)
        if isinstance(operation, str) and (alias := self._registry.find_alias(operation)) is not None:
            operation, input = alias.target, alias.input(input)
        target: CallTarget = self._resolve_target(operation, context)
        arguments = shown = {} if input is None else input
        secrets, digest, size = None, "", measure(arguments)
        try:
            if self.secrets is not None:
                secrets = await self._load_secrets(context)
                shield = partial(shield_input, operation_name(operation), arguments, secrets=secrets)
                arguments, shown = await offload(size, shield)
                size = size if secrets is None else measure(arguments)
        except DragomanError as error:
            target, arguments, shown, size = error, None, None, 0
        try:
            digest = await offload(size, partial(hash_input, arguments, size=size))
        except (TypeError, ValueError, RecursionError) as error:
            target = invalid_input([make_problem((), f"JSON ({error})")])
            arguments, shown, size = None, None, 0
        if not isinstance(arguments, Mapping) and isinstance(target, Operation):
            target = invalid_input([make_problem((), "an object", got=arguments)])
        called = operation if isinstance(target, DragomanError) else target
        record = make_record(
            called, shown, input_hash=digest, context=context, call_id=call_id, now=self._clock()
        )
        if isinstance(target, Operation):
            policy = self.access_control.describe(target, context)
            record = record if policy is None else replace(record, policy=policy)
        return PreparedCall(target, record, context, secrets=secrets, input=arguments, input_size=size)

    async def _load_secrets(self, context: Context) -> CallSecrets | None:
        """Return the secrets of the caller's team; None without any."""
        loading = None if self.secrets is None else self.secrets(context)
        return None if loading is None else await loading

    def _resolve_target(self, operation: str | Operation, context: Context) -> CallTarget:
        if isinstance(operation, Operation):
            return operation.for_caller(context)
        try:
            return self._resolve(operation, context)
        except NotFound as error:
            if context.for_model:  # a model does not learn of operations that it may not call
                return error
            try:
                # The check denies it, with an error that says so.
                return self._registry.get(operation, owner=context.identity.owner)
            except NotFound:
                return error

    def _resolve(self, operation: str, context: Context) -> Operation:
        """Return the operation of this id. Raises NotFound, also if it is denied or private to another."""
        visible = self._registry.get(
            operation,
            allow=lambda candidate: self.is_visible(candidate, context),
            owner=context.identity.owner,
        )
        return visible.for_caller(context)

    async def _record_and_run(self, attempt: PreparedCall) -> CallOutcome:
        """Apply an approval, record the start, run, record the end.

        The end is also recorded on cancellation.
        """
        try:
            attempt = await self.approval_flow.resume_approved(attempt)
            settled = await self._settle_cut_off(attempt)
            if isinstance(settled, ExecutionResult):
                return to_outcome(attempt.record, settled)
            attempt = settled
            pending = await self.approval_flow.find_pending(attempt)
            if pending is not None:
                return to_outcome(replace(attempt.record, id=pending.call_id or ""), pending_result(pending))
        except DragomanError as error:
            attempt = replace(attempt, target=error, earlier=None, is_restart=False)
        record = attempt.record
        running = self._running[record.id] = CancellableCall()
        ending: ExecutionResult | None = None
        try:
            if await self._record_start(attempt):
                ending = await self._run_traced(attempt)
                await self._record_end(record, recorded_result(attempt, ending))
            else:
                ending = ExecutionResult("failed", error=NOT_RECORDED)
        except asyncio.CancelledError:
            ending = ending or ExecutionResult("aborted", error=replace(ABORTED, hint=running.stop_reason))
            await self._record_end_shielded(record, recorded_result(attempt, ending))
            if running.stop_reason is None:
                raise
        finally:
            del self._running[record.id]
            cancelled_by_caller = running.finish()
        if cancelled_by_caller:
            raise asyncio.CancelledError
        return to_outcome(record, ending)

    async def _settle_cut_off(self, attempt: PreparedCall) -> PreparedCall | ExecutionResult:
        """Return the result of a call that ended before a crash or is uncertain; else the call to run."""
        record, grant, earlier = attempt.record, attempt.context.grant, attempt.earlier
        if grant is not None and is_resumed(attempt) and is_about_uncertain_call(grant):
            retry = grant_to_try_again(grant)
            if retry is not None:
                return replace(attempt, context=replace(attempt.context, grant=retry), is_restart=True)
            end = to_result(settled_end(grant))
            await self._record_end(record, end)
            return end
        if earlier is None or (earlier.status == "pending" and is_resumed(attempt)):
            return attempt
        end_before = recorded_end(earlier)
        if end_before is not None:
            return to_result(end_before)
        target = attempt.target
        if earlier.status == "uncertain" and not isinstance(target, Operation):
            return to_result(uncertain_end(f"{UNCERTAIN_TEXT} {target.message}"))
        if earlier.status == "uncertain" and isinstance(target, Operation) and not target.resumes:
            return await self._ask_what_happened(attempt, target)
        return replace(attempt, is_restart=True)

    async def _ask_what_happened(self, attempt: PreparedCall, operation: Operation) -> ExecutionResult:
        """Ask the user whether the call took effect; it waits for the answer."""
        if attempt.context.node is not None and not attempt.context.may_wait:
            return to_result(uncertain_end(UNCERTAIN_TEXT))
        item, state = question_item(self.access_control.approval_item(attempt, operation))
        error = ApprovalNeeded("It is not known whether the call took effect.", items=[item], state=state)
        if attempt.context.node is not None:
            suspended = SuspendedCall(attempt.record.id, error.items, error.state)
            return ExecutionResult("pending", error=to_failure(error), suspended_call=suspended)
        return pending_result(await self.approval_flow.request_approval(attempt, error))

    async def _record_start(self, attempt: PreparedCall) -> bool:
        record = attempt.record
        only_stores = isinstance(attempt.target, Operation) and attempt.target.only_stores
        wait = record.effect != "read" and not only_stores and not is_meta_call(record)
        try:
            if attempt.is_restart:
                await self._ledger.record_restart(record)
            elif is_resumed(attempt):
                await self._ledger.record_resume(record)
            else:
                await self._ledger.record_start(record, wait=wait)
        except (StoreError, Unavailable) as error:
            log.error("Call %s of %s did not run: %s", record.id, record.operation, error)
            return False
        except Exception:
            log.exception("Call %s of %s did not run", record.id, record.operation)
            return False
        if self._events is not None:
            self._events.call_started(record)
        return True

    async def _record_end(self, record: CallRecord, ending: ExecutionResult) -> None:
        """Record the end. A failure of that is only logged, because the operation has run."""
        completion = CallCompletion(
            status=ending.status,
            ended_at=None if ending.status == "pending" else self._clock(),
            result=ending.result,
            error=ending.error,
            cost=ending.cost,
            attempts=ending.attempts,
            notes=ending.notes,
        )
        if self._events is not None:
            self._events.call_ended(record, completion)
        wait = record.parent_id is None  # children are written before their parent, which waits for the disk
        try:
            await self._ledger.record_end(record.id, completion, wait=wait)
        except (StoreError, Unavailable) as error:
            log.error("The end of call %s of %s was not recorded: %s", record.id, record.operation, error)
        except Exception:
            log.exception("The end of call %s of %s was not recorded", record.id, record.operation)

    async def _record_end_shielded(self, record: CallRecord, ending: ExecutionResult) -> None:
        task = asyncio.create_task(self._record_end(record, ending))
        self._end_tasks.add(task)
        task.add_done_callback(self._end_tasks.discard)
        await asyncio.wait([task], timeout=RECORD_TIMEOUT)

    async def _run_traced(self, attempt: PreparedCall) -> ExecutionResult:
        if self._tracer is None:
            return await self._run(attempt)
        with self._tracer.call(attempt.record) as span:
            ending = await self._run(attempt)
            span.set_outcome(recorded_result(attempt, ending).result, ending.error)
            return ending

    async def _run(self, attempt: PreparedCall) -> ExecutionResult:
        """Run the call, unless it failed too often or needs approval first."""
        record, context = attempt.record, attempt.context
        is_counted = context.for_model and not is_meta_call(record)
        try:
            if is_counted:
                self._failure_limiter.check(record, context)
            ending = await Execution(
                self, attempt, check=self.access_control.check, worker=self._worker
            ).run()
        except CallError as error:
            return await self._handle_refusal(attempt, error)
        if is_counted and ending.status in ("done", "failed"):
            ending = replace(
                ending, error=self._failure_limiter.record_result(record, context, failure=ending.error)
            )
        if is_counted and ending.status == "done":
            shortened = self.overflow.shorten(ending.result, record, now=self._clock(), worker=self._worker)
            ending = replace(ending, result=await shortened)
        return ending

    async def _handle_refusal(self, attempt: PreparedCall, error: CallError) -> ExecutionResult:
        """Return the result of a refused call: `pending` if approval can be requested, else failed."""
        if not isinstance(error, ApprovalNeeded):
            return ExecutionResult("failed", error=to_failure(error))
        try:
            return await self._wait_for_approval(attempt, error)
        except (StoreError, Unavailable) as problem:
            log.warning(
                "The approval of call %s could not be requested: %s", attempt.record.id, problem.message
            )
            return ExecutionResult(
                "failed", error=replace(to_failure(problem), hint=APPROVAL_UNAVAILABLE_HINT)
            )

    async def _wait_for_approval(self, attempt: PreparedCall, error: ApprovalNeeded) -> ExecutionResult:
        """Use an approval given in the meantime, or request one."""
        context = attempt.context
        if context.node is not None and not context.may_wait:
            hint = "Another operation called it, so it cannot wait for approval: allow it by a policy rule."
            return ExecutionResult("denied", error=replace(to_failure(error), hint=hint))
        failure = replace(to_failure(error), hint=APPROVAL_HINT)
        if context.node is not None:
            suspended = SuspendedCall(attempt.record.id, error.items, error.state)
            return ExecutionResult("pending", error=failure, suspended_call=suspended)
        approved = await self.approval_flow.use_approval(attempt)
        if approved is not None:
            return await self._run(approved)
        return pending_result(await self.approval_flow.request_approval(attempt, error), failure)


def convert_exit_exceptions(function: Callable[[], T]) -> T:
    """Call a function; exceptions that a future cannot carry out of a thread become CallError."""
    try:
        return function()
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise CallError(f"The operation raised {type(error).__name__}.") from error
