"""Execution: one call of an operation, from the check of its input to its end, whatever that is."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
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
from dragoman.operations.approval import DEFAULT_ANSWER, ApprovalItem, Grant, SuspendedCall
from dragoman.operations.arguments.argument_repair import repair_arguments
from dragoman.operations.call_hooks import CallEnd, CallHooks, HookedCall, Ruling
from dragoman.operations.concurrency import LargeValueWorker, run_detached
from dragoman.operations.context import CallNode, Context, OperationCaller, current_context
from dragoman.operations.ledger import CallRecord, hash_input
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, CallStatus, to_failure, to_jsonable, to_jsonable_or_raw

log = logging.getLogger(__name__)

META_PREFIX = "hub."  # how the meta-tools' ids begin
FIRST_RETRY_DELAY = 0.1  # seconds before the first retry; each further one is twice as long
MAX_RETRY_DELAY = 5.0
CallTarget: TypeAlias = Operation | DragomanError

SELF_CANCELLED = CallFailure(code=CallError.code, message="the operation cancelled its own work")


class ExecutionResult(msgspec.Struct, frozen=True):
    """How a call ended."""

    status: CallStatus
    result: Any = None
    error: CallFailure | None = None
    notes: tuple[str, ...] = ()
    attempts: int | None = None
    cost: float | None = None
    approval_id: str | None = None
    suspended_call: SuspendedCall | None = None


class PreparedCall(msgspec.Struct, frozen=True):
    """A call to be made: the operation that is meant, or why there is none."""

    target: CallTarget
    record: CallRecord
    context: Context


class AccessCheck(Protocol):
    """Whether a call may be made: raises CallDenied or ApprovalNeeded when not."""

    def __call__(self, operation: Operation, record: CallRecord, *, context: Context) -> None: ...


class CallReview(msgspec.Struct, frozen=True):
    """A call looked at before it is made: what hooks said of it, and what somebody has to approve first."""

    ruling: Ruling | None = None
    item: ApprovalItem | None = None


class Execution:
    """Runs one call."""

    def __init__(
        self, caller: OperationCaller, prepared: PreparedCall, *, check: AccessCheck, worker: LargeValueWorker
    ) -> None:
        self._prepared = prepared
        self._record = prepared.record  # as it runs: hooks may change its input
        self._effective_input: Any = prepared.record.input  # as it was mended
        self._hooks = applicable_hooks(prepared)
        self._check = check
        self._worker = worker
        self._node = CallNode(caller, prepared.record.id)
        self._notes = prepared.context.notes
        self._attempts = 0

    async def run(self) -> ExecutionResult:
        """Run it; whatever is raised becomes a failure, but for the caller's cancelling.

        ApprovalNeeded is raised when nobody has approved it. A big result for a model is a `msgspec.Raw`.
        """
        target, began = self._prepared.target, monotonic()
        if isinstance(target, DragomanError):
            return ExecutionResult("failed", error=to_failure(target))
        ending = await self._run_to_end(target)
        if self._hooks is None:
            return ending
        return await self._revise(ending, self._hooks, seconds=monotonic() - began)

    async def review(self) -> CallReview:
        """Look at it without running it. The check must take nothing of what was approved.

        CallDenied when it must not run; ApprovalNeeded is told in the review.
        """
        target = self._prepared.target
        if isinstance(target, DragomanError):
            raise target
        ruling = None
        try:
            if self._hooks is None:
                self._check(target, self._record, context=self._prepared.context)
            else:
                self._check_not_denied(target)
                self._parse_input(target)
                ruling = await self._ask_hooks(self._hooks)
                self._apply(target, ruling)
                self._check_ruling(target, ruling, consume=False)
        except ApprovalNeeded as error:
            return CallReview(ruling, error.items[0])
        except CallError:
            if ruling is None:
                raise
        return CallReview(ruling)

    async def _run_to_end(self, target: Operation) -> ExecutionResult:
        """How it ends, as far as it is the operation's doing."""
        record = self._prepared.record
        try:
            value = await self._check_and_run(target)
            told = self._prepared.context.for_model and not is_meta_call(record) and self._hooks is None
            result = await self._worker.run(to_jsonable_or_raw if told else to_jsonable, value)
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
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # foreign code raises such, too
            log.warning("call %s of %s failed", record.id, record.operation, exc_info=error)
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
        """Check, parse, run by the deadline; the children that are left are ended with it."""
        record, context = self._prepared.record, self._prepared.context
        if self._hooks is None:
            self._check(operation, record, context=context)
            given = None
        else:
            given = await self._apply_hooks(operation, self._hooks)
        if context.budget is not None and not is_meta_call(record):
            context.budget.count_call()
        arguments = self._parse_input(operation) if given is None else given
        inside = function_context(self._prepared, self._node, operation=operation)
        above, self._node.deadline = context.node, inside.deadline
        is_above = above is not None and above.deadline == inside.deadline  # then the caller is stopped by it
        limit = asyncio.timeout_at(None if is_above else inside.deadline)
        token = current_context.set(inside)
        try:
            async with limit:
                return await self._run_limited(operation, arguments, inside=inside)
        except TimeoutError:
            if limit.expired():
                raise CallTimeout(f"{operation.id} was stopped: it did not end by its deadline") from None
            raise
        finally:
            current_context.reset(token)
            await self._node.close()

    async def _apply_hooks(self, operation: Operation, hooks: CallHooks) -> Any:
        """The arguments that it runs with, once policy and hooks let it pass."""
        self._check_not_denied(operation)
        arguments = self._parse_input(operation)
        ruling = self._prepared.context.ruling
        if ruling is None:
            ruling = await self._ask_hooks(hooks)
        self._notes += ruling.notes
        if ruling.input is not None:
            arguments = self._apply(operation, ruling)
        self._check_ruling(operation, ruling, consume=True)
        return arguments

    def _check_not_denied(self, operation: Operation) -> None:
        """CallDenied where the policy says so, whatever was approved: hooks then need not know of it."""
        with suppress(ApprovalNeeded):
            self._check(operation, self._record, context=replace(self._prepared.context, grant=None))

    async def _ask_hooks(self, hooks: CallHooks) -> Ruling:
        """What the hooks say, by the caller's deadline."""
        try:
            async with asyncio.timeout_at(self._prepared.context.deadline):
                return await hooks.before(self._hooked_call())
        except TimeoutError:
            operation = self._record.operation
            raise CallTimeout(f"{operation} was not started: its hooks took until the deadline") from None

    def _apply(self, operation: Operation, ruling: Ruling) -> Any:
        """Go by the input that the hooks gave, if they gave one; the arguments that it stands for."""
        if ruling.input is None:
            return None
        changed = hash_input(ruling.input)
        self._record = replace(self._record, input=ruling.input, input_hash=changed)
        self._effective_input = ruling.input
        try:
            return operation.parse(ruling.input)
        except InvalidInput as error:
            said = f"a hook changed the input to what {operation.id} does not take: {error.message}"
            raise CallError(said) from None

    def _check_ruling(self, operation: Operation, ruling: Ruling, *, consume: bool) -> None:
        """Let it pass as it is now. CallDenied or ApprovalNeeded, by the hooks and by the policy."""
        record, context = self._record, self._prepared.context
        if ruling.block is not None:
            raise CallDenied(f"{operation.id} was blocked: {ruling.block}")
        if ruling.ask is not None:
            item = ApprovalItem(operation.id, record.input, record.input_hash, reason=ruling.ask)
            grant = context.grant
            look = None if grant is None else grant.consume if consume else grant.covers
            if look is None or not look(operation.id, record.input_hash):
                self._check(
                    operation, record, context=context
                )  # a rule says who may answer, so it goes first
                said = f"{operation.id} needs somebody's approval: {ruling.ask}"
                raise ApprovalNeeded(said, items=[item])
            context = replace(context, grant=Grant([item]))
        self._check(operation, record, context=context)

    async def _revise(self, ending: ExecutionResult, hooks: CallHooks, *, seconds: float) -> ExecutionResult:
        """The end as hooks change it."""
        end = CallEnd(status=ending.status, result=ending.result, failure=ending.error, duration=seconds)
        try:
            revision = await hooks.after(self._hooked_call(), end)
        except Exception:
            log.exception("the hooks after call %s of %s failed", self._record.id, self._record.operation)
            return ending
        if revision is None:
            return ending
        withheld = ending.error is None and revision.failure is not None
        return replace(
            ending,
            status="failed" if withheld else ending.status,
            result=revision.result,
            error=revision.failure,
            notes=ending.notes + revision.notes,
        )

    def _hooked_call(self) -> HookedCall:
        """The call as hooks see it: with the input that it runs with."""
        record, given = self._record, self._effective_input
        return HookedCall(
            operation=record.operation,
            input=given if isinstance(given, Mapping) else {},
            effect=record.effect,
            owner=record.owner,
            key_id=self._prepared.context.identity.key_id,
            call_id=record.id or None,
            tool_call_id=record.tool_call_id,
            session_id=record.session_id,
            run_id=record.run_id,
            agent=record.agent,
            step=record.step,
        )

    def _parse_input(self, operation: Operation) -> Any:
        """The arguments. What a model wrote nearly right is mended, once."""
        given = self._prepared.record.input
        try:
            return operation.parse(given)
        except InvalidInput as error:
            if not self._prepared.context.for_model or is_meta_call(self._prepared.record):
                raise
            mended = repair_arguments(given, operation.input_schema)
            if mended is None or not mended.notes:
                raise
            try:
                arguments = operation.parse(mended.value)
            except InvalidInput:
                raise error from None
            self._notes += tuple(mended.notes)
            self._effective_input = mended.value
            return arguments

    async def _run_limited(self, operation: Operation, arguments: Any, *, inside: Context) -> Any:
        """Run it inside its gate, and again where a failure may pass."""
        if operation.gate is None:
            return await self._run_with_retries(operation, arguments, inside=inside)
        async with operation.gate.acquire(operation.id):
            return await self._run_with_retries(operation, arguments, inside=inside)

    async def _run_with_retries(self, operation: Operation, arguments: Any, *, inside: Context) -> Any:
        while True:
            self._attempts += 1
            work = operation.run(arguments, inside)
            try:
                return await (
                    work if is_meta_call(self._prepared.record) else run_detached(work, operation.id)
                )
            except (DragomanError, ConnectionError) as error:
                if self._attempts > operation.retries or not is_retryable(error):
                    raise
                wait = retry_delay(error, self._attempts)
                log.info("call %s of %s is tried again: %s", inside.call_id, operation.id, error)
            await asyncio.sleep(wait)


def applicable_hooks(attempt: PreparedCall) -> CallHooks | None:
    """What is asked about the call: nobody but for those that a model makes, and not for meta-tools."""
    context = attempt.context
    return context.hooks if context.for_model and not is_meta_call(attempt.record) else None


def status_for_error(error: DragomanError) -> CallStatus:
    """How a call ends that raised an error of the hub's."""
    match error:
        case CallDenied():
            return "denied"
        case CallUncertain():
            return "uncertain"
        case _:
            return "failed"


def is_meta_call(record: CallRecord) -> bool:
    """Whether the call does nothing itself: what it calls is written down for sure before it runs."""
    return record.operation.startswith(META_PREFIX)


def is_retryable(error: Exception) -> bool:
    """Whether another attempt can help."""
    return isinstance(error, ConnectionError) or (isinstance(error, DragomanError) and error.transient)


def retry_delay(error: Exception, attempt: int) -> float:
    """Seconds before the next attempt: as the error asks, or longer each time, with chance in it."""
    asked = error.retry_after if isinstance(error, DragomanError) else None
    chance = random.uniform(0.5, 1.0)  # noqa: S311 - it spreads retries, nothing secret
    return (
        asked
        if asked is not None
        else min(FIRST_RETRY_DELAY * 2.0 ** (attempt - 1), MAX_RETRY_DELAY) * chance
    )


def earliest_deadline(operation: Operation, context: Context) -> float | None:
    """The earlier of the caller's deadline and the operation's own. CallTimeout when it has passed."""
    now = asyncio.get_running_loop().time()
    if context.deadline is not None and context.deadline <= now:
        raise CallTimeout(f"{operation.id} was not started: the deadline has passed")
    if operation.timeout is None:
        return context.deadline
    own = now + operation.timeout
    return own if context.deadline is None else min(own, context.deadline)


def function_context(attempt: PreparedCall, node: CallNode, *, operation: Operation) -> Context:
    """The context that the call's function gets. What only the call itself is for ends here. CallTimeout."""
    record, context, grant = attempt.record, attempt.context, attempt.context.grant
    meta = is_meta_call(record)
    return replace(
        context,
        parent_id=record.parent_id,
        deadline=earliest_deadline(operation, context),
        idempotency_key=record.idempotency_key,
        call_id=record.id,
        node=node,
        approval=None,
        notes=(),
        ruling=None,
        for_model=context.for_model and meta,
        grant=grant if meta or operation.resumes else None,
        answer=None if grant is None or operation.make_question is None else grant.text or DEFAULT_ANSWER,
        state=None if grant is None else grant.state,
        may_wait=operation.resumes and (context.node is None or context.may_wait),
    )


def is_task_cancelled() -> bool:
    """Whether somebody cancels the task that this is."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
