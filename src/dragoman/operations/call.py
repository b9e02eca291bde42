"""Calls: the one way in to every operation, with identity, deadline, record and abort."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from dragoman.errors import (
    CallDenied,
    CallError,
    CallTimeout,
    DragomanError,
    InvalidInput,
    NotFound,
    Unavailable,
)
from dragoman.ids import new_id
from dragoman.operations.context import Context, Node, running
from dragoman.operations.ledger import CallRecord, Ledger, Status, hash_input
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, Outcome, failure_of, to_jsonable
from dragoman.operations.registry import RESERVED, Registry
from dragoman.operations.schema import invalid, problem
from dragoman.operations.tracer import Tracer

log = logging.getLogger(__name__)
T = TypeVar("T")

END_SECONDS = 5.0  # how long writing down an aborted call may hold its end up
NAME_LIMIT = 200


class Check(Protocol):
    """Whether a call may be made: raises CallDenied when not. The one place where policy is asked."""

    async def __call__(self, operation: Operation, record: CallRecord, *, context: Context) -> None: ...


async def allow(operation: Operation, record: CallRecord, *, context: Context) -> None:
    """The check that lets every call pass."""


class Ending(msgspec.Struct, frozen=True):
    """How a call ended."""

    status: Status
    result: Any = None
    error: CallFailure | None = None


Target: TypeAlias = Operation | DragomanError


class Attempt(msgspec.Struct, frozen=True):
    """A call to be made: the operation that is meant, or why there is none."""

    target: Target
    record: CallRecord
    context: Context


SELF_CANCELLED = CallFailure(code=CallError.code, message="the operation cancelled its own work")
ABORTED = CallFailure(code="aborted", message="the call was stopped")
UNRECORDED = CallFailure(
    code=Unavailable.code, message="the call was not run: it could not be written down", transient=True
)


class Calls:
    """Calls operations, and writes each call down.

    `check` raises CallDenied for a call that may not be made; `clock` gives unix seconds. Sync functions
    share `threads` threads; `tracer` sees each call. Use it with `async with`, or close() it.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        *,
        threads: int = 16,
        clock: Callable[[], float] = time.time,
        check: Check = allow,
        tracer: Tracer | None = None,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._clock = clock
        self._check = check
        self._tracer = tracer
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="operation")
        self._late: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what is still being written down; let the threads go, without waiting for busy ones."""
        if self._late:
            await asyncio.wait(self._late, timeout=END_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(
        self, operation: str | Operation, input: Mapping[str, Any] | None = None, *, context: Context
    ) -> Outcome:
        """Call an operation, by its id or itself, and say what came of it.

        The call is written down before it runs; when that fails it does not run. It ends by the earlier of
        `context.deadline` and its own timeout. Cancelling the task that awaits it aborts it with all that it
        called, and raises CancelledError; everything else that can go wrong is told in the outcome.
        """
        call_id = new_id("call")
        above = context.node
        try:
            index = 0 if above is None else above.adopt(call_id)
        except CallError as error:
            return Outcome(call_id=call_id, operation=spell(operation), ok=False, error=failure_of(error))
        try:
            key = key_of(context, index) or call_id
            return await self._recorded(
                self._describe(operation, input, call_id=call_id, key=key, context=context)
            )
        finally:
            if above is not None:
                above.release(call_id)

    async def offload(self, function: Callable[[], T]) -> T:
        """What a blocking function returns, run in a thread. Cancelling drops the result, not the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, copy_context().run, guarded, function)

    def _describe(
        self, operation: str | Operation, input: Any, *, call_id: str, key: str, context: Context
    ) -> Attempt:
        target, kept, digest = self._find(operation), {} if input is None else input, ""
        try:
            digest = hash_input(kept)
        except (TypeError, ValueError, RecursionError) as error:
            target, kept = invalid([problem((), f"JSON ({error})")]), None
        if not isinstance(kept, Mapping) and isinstance(target, Operation):
            target = invalid([problem((), "an object", got=kept)])
        meant = operation if isinstance(target, DragomanError) else target
        record = CallRecord(
            id=call_id,
            operation=spell(meant),
            effect="read" if isinstance(meant, str) else meant.effect,
            owner=context.identity.owner,
            input=kept,
            input_hash=digest,
            idempotency_key=key,
            started_at=self._clock(),
            parent_id=context.call_id or context.parent_id,
            run_id=context.run_id,
            session_id=context.session_id,
            tool_call_id=context.tool_call_id,
        )
        return Attempt(target, record, context)

    def _find(self, operation: str | Operation) -> Target:
        if isinstance(operation, Operation):
            return operation
        try:
            return self._registry.get(operation)
        except NotFound as error:
            return error

    async def _recorded(self, attempt: Attempt) -> Outcome:
        """Intent, attempt, end; the end also when the attempt is cancelled."""
        record = attempt.record
        ending: Ending | None = None
        try:
            if await self._begin(record):
                ending = await self._watched(attempt)
                await self._end(record, ending)
            else:
                ending = Ending("failed", error=UNRECORDED)
        except asyncio.CancelledError:
            await self._end_shielded(record, ending or Ending("aborted", error=ABORTED))
            raise
        done = ending.status == "done"
        return Outcome(
            call_id=record.id, operation=record.operation, ok=done, result=ending.result, error=ending.error
        )

    async def _begin(self, record: CallRecord) -> bool:
        try:
            await self._ledger.begin(record, wait=record.effect != "read" and not is_meta(record))
        except Exception:
            log.exception(
                "call %s of %s is not run: it could not be written down", record.id, record.operation
            )
            return False
        return True

    async def _end(self, record: CallRecord, ending: Ending) -> None:
        """Write the end down. A result is not kept back because that fails: the work has been done."""
        try:
            await self._ledger.end(
                record.id,
                ending.status,
                ended_at=self._clock(),
                result=ending.result,
                error=ending.error,
                wait=record.parent_id is None,  # a child's end is kept before its parent's
            )
        except Exception:
            log.exception("the end of call %s of %s could not be written down", record.id, record.operation)

    async def _end_shielded(self, record: CallRecord, ending: Ending) -> None:
        task = asyncio.create_task(self._end(record, ending))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        await asyncio.wait([task], timeout=END_SECONDS)

    async def _watched(self, attempt: Attempt) -> Ending:
        if self._tracer is None:
            return await self._attempt(attempt)
        with self._tracer.call(attempt.record) as watch:
            ending = await self._attempt(attempt)
            watch.outcome(ending.result, ending.error)
            return ending

    async def _attempt(self, attempt: Attempt) -> Ending:
        """Run it; whatever is raised becomes a failure, but for the caller's cancelling."""
        target, record = attempt.target, attempt.record
        if isinstance(target, DragomanError):
            return Ending("failed", error=failure_of(target))
        try:
            return Ending("done", result=to_jsonable(await self._run(target, attempt)))
        except CallDenied as error:
            return Ending("denied", error=failure_of(error))
        except InvalidInput as error:
            return Ending("failed", error=failure_of(error, input_schema=target.input_schema))
        except DragomanError as error:
            return Ending("failed", error=failure_of(error))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Ending("failed", error=SELF_CANCELLED)
        except (Exception, SystemExit) as error:
            log.warning("call %s of %s failed", record.id, record.operation, exc_info=error)
            return Ending("failed", error=failure_of(error))

    async def _run(self, operation: Operation, attempt: Attempt) -> Any:
        """Check, parse, run by the deadline; the children that are left are ended with it."""
        await self._check(operation, attempt.record, context=attempt.context)
        arguments = operation.parse(attempt.record.input)
        node = Node(self, attempt.record.id)
        inside = enter(attempt, node, deadline=deadline_of(operation, attempt.context))
        limit = asyncio.timeout_at(inside.deadline)
        token = running.set(inside)
        try:
            async with limit:
                return await operation.run(arguments, inside)
        except TimeoutError:
            if limit.expired():
                raise CallTimeout(f"{operation.id} was stopped: it did not end by its deadline") from None
            raise
        finally:
            running.reset(token)
            await node.close()


def is_meta(record: CallRecord) -> bool:
    """Whether the call does nothing itself: what it calls is written down for sure before it runs."""
    return record.operation.startswith(f"{RESERVED}.")


def spell(operation: str | Operation) -> str:
    return operation[:NAME_LIMIT] if isinstance(operation, str) else operation.id


def key_of(context: Context, index: int) -> str | None:
    """The idempotency key: the same when a step of a run is done again. None for a call of no run."""
    if context.node is not None:
        return f"{context.idempotency_key}:{index}"
    if context.idempotency_key is None and context.run_id and context.tool_call_id:
        return f"{context.run_id}:{context.tool_call_id}"
    return context.idempotency_key


def deadline_of(operation: Operation, context: Context) -> float | None:
    """The earlier of the caller's deadline and the operation's own. CallTimeout when it has passed."""
    now = asyncio.get_running_loop().time()
    if context.deadline is not None and context.deadline <= now:
        raise CallTimeout(f"{operation.id} was not started: the deadline has passed")
    if operation.timeout is None:
        return context.deadline
    own = now + operation.timeout
    return own if context.deadline is None else min(own, context.deadline)


def enter(attempt: Attempt, node: Node, *, deadline: float | None) -> Context:
    """The context that the call's function gets."""
    record = attempt.record
    return Context(
        identity=attempt.context.identity,
        parent_id=record.parent_id,
        run_id=record.run_id,
        session_id=record.session_id,
        tool_call_id=record.tool_call_id,
        deadline=deadline,
        idempotency_key=record.idempotency_key,
        call_id=record.id,
        node=node,
    )


def is_cancelled() -> bool:
    """Whether somebody cancels the task that this is."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def guarded(function: Callable[[], T]) -> T:
    """What the function returns; what a future cannot carry out of a thread becomes a CallError."""
    try:
        return function()
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise CallError(f"the operation raised {type(error).__name__}") from error
