"""The execution of one call: checks, hooks, argument repair, deadline, retries, result."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import (
    ApprovalNeeded,
    CallDenied,
    CallError,
    CallTimeout,
    CallUncertain,
    DragomanError,
    InvalidInput,
)
from dragoman.operations.approval import (
    DEFAULT_ANSWER,
    ApprovalItem,
    Grant,
    SuspendedCall,
    explain_mismatch,
)
from dragoman.operations.arguments.validation import invalid_input, make_problem
from dragoman.operations.call_hooks import CallEnd, CallHooks, HookDecision, HookedCall
from dragoman.operations.context import CallNode, Context, OperationCaller, current_context
from dragoman.operations.ledger import CallRecord, LedgerEntry, hash_input
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, CallStatus, to_failure, to_jsonable, to_jsonable_or_raw
from dragoman.operations.secret_handles import SECRET_RESULTS, CallSecrets, mask_arguments
from dragoman.operations.worker_threads import LargeValueWorker, run_detached

log = logging.getLogger(__name__)

META_PREFIX = "hub."  # of the ids of the meta-tools
MAX_ARGUMENTS = 10_000  # fields of an input
FIRST_RETRY_DELAY = 0.1  # seconds before the first retry; each further one is twice as long
MAX_RETRY_DELAY = 5.0
CallTarget: TypeAlias = Operation | DragomanError

SELF_CANCELLED = CallFailure(code=CallError.code, message="The operation cancelled its own task.")


class ExecutionResult(msgspec.Struct, frozen=True):
    """How an execution ended."""

    status: CallStatus
    result: Any = None
    error: CallFailure | None = None
    notes: tuple[str, ...] = ()
    attempts: int | None = None
    cost: float | None = None
    approval_id: str | None = None
    suspended_call: SuspendedCall | None = None


class PreparedCall(msgspec.Struct, frozen=True):
    """A call before it runs: its operation, or the error with which it fails.

    `earlier` is its ledger entry from before a crash; with `is_restart` it runs again under the same id.
    `input` is what it runs with; in the record's input, secret arguments are masked. `input_size` is the
    result of `measure` for it. `secrets` are those of its team.
    """

    target: CallTarget
    record: CallRecord
    context: Context
    earlier: LedgerEntry | None = None
    is_restart: bool = False
    secrets: CallSecrets | None = None
    input: Any = None
    input_size: int = 0


class AccessCheck(Protocol):
    """Checks whether a call may be made. Raises CallDenied or ApprovalNeeded if not."""

    def __call__(self, operation: Operation, record: CallRecord, *, context: Context) -> None: ...


class CallReview(msgspec.Struct, frozen=True):
    """A call checked before it runs: the hooks' decision and the approval it needs."""

    hook_decision: HookDecision | None = None
    item: ApprovalItem | None = None


class Execution:
    """Runs one call."""

    def __init__(
        self, caller: OperationCaller, prepared: PreparedCall, *, check: AccessCheck, worker: LargeValueWorker
    ) -> None:
        self._prepared = prepared
        self._record = prepared.record  # hooks may change its input
        self._effective_input: Any = prepared.input  # after repair
        self._hooks = applicable_hooks(prepared)
        self._check = check
        self._worker = worker
        self._node = CallNode(caller, prepared.record.id)
        self._notes = prepared.context.notes
        self._attempts = 0

    async def run(self) -> ExecutionResult:
        """Run the call. Every exception becomes a failure, except the caller's cancellation.

        Raises ApprovalNeeded if approval is missing. A large result for a model is a `msgspec.Raw`.
        """
        target, started_at = self._prepared.target, monotonic()
        if isinstance(target, DragomanError):
            return ExecutionResult("failed", error=to_failure(target))
        result = await self._seal(await self._run_to_end(target))
        if self._hooks is None:
            return result
        return await self._revise(result, self._hooks, seconds=monotonic() - started_at)

    async def _seal(self, result: ExecutionResult) -> ExecutionResult:
        """Return the result without secrets. The results of the calls in a batch are sealed already."""
        secrets, record = self._prepared.secrets, self._prepared.record
        if secrets is None or secrets.is_empty:
            return result
        value = result.result
        if not is_meta_call(record) and record.operation not in SECRET_RESULTS:
            value = await self._worker.run(secrets.seal, value)
        error = None if result.error is None else secrets.seal_failure(result.error)
        return replace(result, result=value, error=error, notes=tuple(secrets.seal(list(result.notes))))

    async def review(self) -> CallReview:
        """Check the call without running it, and without using up approvals.

        Raises CallDenied if it must not run; a missing approval is in the review.
        """
        target = self._prepared.target
        if isinstance(target, DragomanError):
            raise target
        hook_decision = None
        try:
            if self._hooks is None:
                self._check(target, self._record, context=self._prepared.context)
            else:
                self._check_not_denied(target)
                await self._parse_input(target)
                hook_decision = await self._ask_hooks(self._hooks)
                self._apply_hook_decision(target, hook_decision)
                self._check_hook_decision(target, hook_decision, consume=False)
        except ApprovalNeeded as error:
            return CallReview(hook_decision, error.items[0])
        except CallError:
            if hook_decision is None:
                raise
        return CallReview(hook_decision)

    async def _run_to_end(self, target: Operation) -> ExecutionResult:
        """Run the operation and return its result, before hooks revise it."""
        record = self._prepared.record
        try:
            value = await self._check_and_run(target)
            is_bounded = self._prepared.context.for_model and not is_meta_call(record) and self._hooks is None
            result = await self._worker.run(to_jsonable_or_raw if is_bounded else to_jsonable, value)
            return self._make_result("done", result=result)
        except ApprovalNeeded:
            raise
        except DragomanError as error:
            schema = target.input_schema if isinstance(error, InvalidInput) else None
            return self._make_result(status_for_error(error), error=to_failure(error, input_schema=schema))
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            return self._make_result("failed", error=SELF_CANCELLED)
        except GeneratorExit:  # this coroutine is being closed
            raise
        except BaseException as error:  # operations are foreign code, which may raise anything
            log.warning("Call %s of %s failed", record.id, record.operation, exc_info=error)
            return self._make_result("failed", error=to_failure(error))

    def _make_result(
        self, status: CallStatus, *, result: Any = None, error: CallFailure | None = None
    ) -> ExecutionResult:
        return ExecutionResult(
            status,
            result,
            error,
            notes=self._notes,
            attempts=self._attempts if self._attempts > 1 else None,
            cost=self._node.cost or None,
        )

    async def _check_and_run(self, operation: Operation) -> Any:
        """Check, parse and run by the deadline; end the remaining children with the call."""
        record, context = self._prepared.record, self._prepared.context
        if self._hooks is None:
            self._check(operation, record, context=context)
            hooked_arguments = None
        else:
            hooked_arguments = await self._apply_hooks(operation, self._hooks)
        if context.budget is not None and not is_meta_call(record):
            context.budget.count_call()
            await context.budget.count_shared_call()
        arguments = await self._parse_input(operation) if hooked_arguments is None else hooked_arguments
        arguments = self._reveal_secrets(operation, arguments)
        context_inside = function_context(self._prepared, self._node, operation=operation)
        parent, self._node.deadline = context.node, context_inside.deadline
        # With the same deadline as the parent, the parent call times out and cancels this one.
        is_parent_deadline = parent is not None and parent.deadline == context_inside.deadline
        limit = asyncio.timeout_at(None if is_parent_deadline else context_inside.deadline)
        token = current_context.set(context_inside)
        try:
            async with limit:
                return await self._run_limited(operation, arguments, context=context_inside)
        except TimeoutError:
            if limit.expired():
                raise CallTimeout(f"{operation.id} timed out: it did not end by its deadline.") from None
            raise
        finally:
            current_context.reset(token)
            await self._node.close()

    def _reveal_secrets(self, operation: Operation, arguments: Any) -> Any:
        """Return the arguments with values in place of handles. Raises CallDenied.

        A call that a spoke makes below its own cannot use secrets: its input is not revealed.
        """
        secrets, input = self._prepared.secrets, self._effective_input
        is_outside = bool(self._prepared.context.intermediaries)
        revealed = input if secrets is None or is_outside else secrets.reveal(input, operation)
        return arguments if revealed is input else operation.parse(revealed)

    async def _apply_hooks(self, operation: Operation, hooks: CallHooks) -> Any:
        """Return the arguments to run with, once policy and hooks allow the call."""
        self._check_not_denied(operation)
        arguments = await self._parse_input(operation)
        hook_decision = self._prepared.context.hook_decision
        if hook_decision is None:
            hook_decision = await self._ask_hooks(hooks)
        self._notes += hook_decision.notes
        if hook_decision.input is not None:
            arguments = self._apply_hook_decision(operation, hook_decision)
        self._check_hook_decision(operation, hook_decision, consume=True)
        return arguments

    def _check_not_denied(self, operation: Operation) -> None:
        """Raise CallDenied if the policy denies the call despite any approval; hooks then never see it."""
        with suppress(ApprovalNeeded):
            self._check(operation, self._record, context=replace(self._prepared.context, grant=None))

    async def _ask_hooks(self, hooks: CallHooks) -> HookDecision:
        """Return the hooks' decision, by the caller's deadline."""
        try:
            async with asyncio.timeout_at(self._prepared.context.deadline):
                return await hooks.before(self._hooked_call())
        except TimeoutError:
            operation = self._record.operation
            raise CallTimeout(f"{operation} was not started: its hooks ran past the deadline.") from None

    def _apply_hook_decision(self, operation: Operation, hook_decision: HookDecision) -> Any:
        """Use the input that hooks have set, if any, and return the arguments parsed from it."""
        if hook_decision.input is None:
            return None
        input_hash = hash_input(hook_decision.input)
        self._record = replace(self._record, input=hook_decision.input, input_hash=input_hash)
        self._effective_input = hook_decision.input
        try:
            return operation.parse(hook_decision.input)
        except InvalidInput as error:
            message = f"A hook set an input that {operation.id} does not accept: {error.message}"
            raise CallError(message) from None

    def _check_hook_decision(
        self, operation: Operation, hook_decision: HookDecision, *, consume: bool
    ) -> None:
        """Raise CallDenied or ApprovalNeeded if the hooks or the policy says so."""
        record, context = self._record, self._prepared.context
        if hook_decision.block is not None:
            raise CallDenied(f"{operation.id} was blocked: {hook_decision.block}")
        if hook_decision.ask is not None:
            provider = operation.call_provider
            item = ApprovalItem(
                operation.id, record.input, record.input_hash, reason=hook_decision.ask, provider=provider
            )
            grant = context.grant
            is_granted = None if grant is None else grant.consume if consume else grant.covers
            if is_granted is None or not is_granted(operation.id, record.input_hash, provider=provider):
                # The policy first: its rule may name who may answer.
                self._check(operation, record, context=context)
                message = f"{operation.id} needs approval: {hook_decision.ask}"
                raise ApprovalNeeded(message, items=[explain_mismatch(item, grant)])
            context = replace(context, grant=Grant([item]))
        self._check(operation, record, context=context)

    async def _revise(self, result: ExecutionResult, hooks: CallHooks, *, seconds: float) -> ExecutionResult:
        """Return the result after hooks have revised it."""
        end = CallEnd(status=result.status, result=result.result, failure=result.error, duration=seconds)
        try:
            revision = await hooks.after(self._hooked_call(), end)
        except Exception:
            log.exception("The hooks after call %s of %s failed", self._record.id, self._record.operation)
            return result
        if revision is None:
            return result
        is_withheld = result.error is None and revision.failure is not None
        return replace(
            result,
            status="failed" if is_withheld else result.status,
            result=revision.result,
            error=revision.failure,
            notes=result.notes + revision.notes,
        )

    def _hooked_call(self) -> HookedCall:
        """Return the call for the hooks, with the input that it runs with."""
        record, effective_input, target = self._record, self._effective_input, self._prepared.target
        return HookedCall(
            operation=record.operation,
            input=mask_arguments(record.operation, effective_input)
            if isinstance(effective_input, Mapping)
            else {},
            effect=target.policy_effect if isinstance(target, Operation) else record.effect,
            owner=record.owner,
            key_id=self._prepared.context.identity.key_id,
            call_id=record.id or None,
            tool_call_id=record.tool_call_id,
            session_id=record.session_id,
            run_id=record.run_id,
            agent=record.agent,
            step=record.step,
        )

    async def _parse_input(self, operation: Operation) -> Any:
        """Return the arguments; a large input is checked in a thread."""
        prepared = self._prepared
        parse = partial(self._parse_or_repair, operation)
        return await self._worker.run(parse, prepared.input, size=prepared.input_size)

    def _parse_or_repair(self, operation: Operation, input: Any) -> Any:
        """Return the arguments. The input of a model is repaired once if it nearly fits."""
        if isinstance(input, Mapping) and len(input) > MAX_ARGUMENTS:
            problem = make_problem((), f"at most {MAX_ARGUMENTS} arguments", got=f"{len(input)} arguments")
            raise invalid_input([problem])
        try:
            return operation.parse(input)
        except InvalidInput as error:
            if not self._prepared.context.for_model or is_meta_call(self._prepared.record):
                raise
            from dragoman.operations.arguments import argument_repair  # late: imports the validator

            repaired = argument_repair.repair_arguments(input, operation.input_schema)
            if repaired is None or not repaired.notes:
                raise
            try:
                arguments = operation.parse(repaired.value)
            except InvalidInput:
                raise error from None
            self._notes += tuple(repaired.notes)
            self._effective_input = repaired.value
            return arguments

    async def _run_limited(self, operation: Operation, arguments: Any, *, context: Context) -> Any:
        """Run within the operation's call limiter, and retry transient failures."""
        if operation.gate is None:
            return await self._run_with_retries(operation, arguments, context=context)
        async with operation.gate.acquire(operation.id):
            return await self._run_with_retries(operation, arguments, context=context)

    async def _run_with_retries(self, operation: Operation, arguments: Any, *, context: Context) -> Any:
        while True:
            self._attempts += 1
            work = operation.run(arguments, context)
            try:
                return await (
                    work if is_meta_call(self._prepared.record) else run_detached(work, operation.id)
                )
            except (DragomanError, ConnectionError) as error:
                if self._attempts > operation.retries or not is_retryable(error):
                    raise
                delay = retry_delay(error, self._attempts)
                log.info("Call %s of %s is retried: %s", context.call_id, operation.id, error)
            await asyncio.sleep(delay)


def applicable_hooks(prepared: PreparedCall) -> CallHooks | None:
    """Return the hooks of the call: only for a model's calls, and not for meta-tools."""
    context = prepared.context
    return context.hooks if context.for_model and not is_meta_call(prepared.record) else None


def status_for_error(error: DragomanError) -> CallStatus:
    """Return the status of a call that raised this error."""
    match error:
        case CallDenied():
            return "denied"
        case CallUncertain():
            return "uncertain"
        case _:
            return "failed"


def is_meta_call(record: CallRecord) -> bool:
    """Return whether this is a call of a meta-tool, which only makes other calls."""
    return record.operation.startswith(META_PREFIX)


def is_retryable(error: Exception) -> bool:
    """Return whether another attempt can succeed."""
    return isinstance(error, ConnectionError) or (isinstance(error, DragomanError) and error.transient)


def retry_delay(error: Exception, attempt: int) -> float:
    """Return the seconds before the next attempt: the error's `retry_after`, else doubling, with jitter."""
    retry_after = error.retry_after if isinstance(error, DragomanError) else None
    jitter = random.uniform(0.5, 1.0)  # noqa: S311 - it spreads retries, nothing secret
    return (
        retry_after
        if retry_after is not None
        else min(FIRST_RETRY_DELAY * 2.0 ** (attempt - 1), MAX_RETRY_DELAY) * jitter
    )


def earliest_deadline(operation: Operation, context: Context) -> float | None:
    """Return the earlier of the caller's and the operation's deadline.

    Raises CallTimeout if it has passed.
    """
    now = asyncio.get_running_loop().time()
    if context.deadline is not None and context.deadline <= now:
        raise CallTimeout(f"{operation.id} was not started: the deadline has passed.")
    if operation.timeout is None:
        return context.deadline
    deadline = now + operation.timeout
    return deadline if context.deadline is None else min(deadline, context.deadline)


def function_context(prepared: PreparedCall, node: CallNode, *, operation: Operation) -> Context:
    """Return the context for the operation's function, without the fields that only the call itself needs.

    Raises CallTimeout if the deadline has passed.
    """
    record, context, grant = prepared.record, prepared.context, prepared.context.grant
    is_meta = is_meta_call(record)
    return replace(
        context,
        parent_id=record.parent_id,
        deadline=earliest_deadline(operation, context),
        idempotency_key=record.idempotency_key,
        call_id=record.id,
        node=node,
        approval=None,
        notes=(),
        hook_decision=None,
        for_model=context.for_model and is_meta,
        grant=grant if is_meta or operation.resumes else None,
        answer=None if grant is None or operation.make_question is None else grant.text or DEFAULT_ANSWER,
        state=None if grant is None else grant.state,
        may_wait=operation.resumes and (context.node is None or context.may_wait),
        call_key=None,
        seal=None if prepared.secrets is None else prepared.secrets.seal,
        check_page=None if not prepared.secrets or prepared.secrets.is_empty else prepared.secrets.check_page,
    )


def is_task_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
