"""Execution: one call of an operation, from the check of its input to its end, whatever that is."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable
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
from dragoman.operations.context import Caller, Context, Node, running
from dragoman.operations.heavy import Heavy
from dragoman.operations.ledger import CallRecord
from dragoman.operations.mending import mend
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, Status, failure_of, to_bounded, to_jsonable

log = logging.getLogger(__name__)

META = "hub."  # how the meta-tools' ids begin
FIRST_WAIT = 0.1  # seconds before the first retry; each further one is twice as long
LONGEST_WAIT = 5.0
END_SECONDS = 5.0  # how long an operation may take to end once it is cancelled
Target: TypeAlias = Operation | DragomanError

SELF_CANCELLED = CallFailure(code=CallError.code, message="the operation cancelled its own work")


class Ending(msgspec.Struct, frozen=True):
    """How a call ended."""

    status: Status
    result: Any = None
    error: CallFailure | None = None
    notes: tuple[str, ...] = ()
    attempts: int | None = None
    cost: float | None = None
    approval_id: str | None = None


class Attempt(msgspec.Struct, frozen=True):
    """A call to be made: the operation that is meant, or why there is none."""

    target: Target
    record: CallRecord
    context: Context


class Check(Protocol):
    """Whether a call may be made: raises CallDenied or ApprovalNeeded when not."""

    def __call__(self, operation: Operation, record: CallRecord, *, context: Context) -> None: ...


class Execution:
    """Runs one call."""

    def __init__(self, caller: Caller, attempt: Attempt, *, check: Check, heavy: Heavy) -> None:
        self._attempt = attempt
        self._check = check
        self._heavy = heavy
        self._node = Node(caller, attempt.record.id)
        self._notes = attempt.context.notes
        self._attempts = 0

    async def run(self) -> Ending:
        """Run it; whatever is raised becomes a failure, but for the caller's cancelling.

        ApprovalNeeded is raised when nobody has approved it. A big result for a model is a `msgspec.Raw`.
        """
        target, record = self._attempt.target, self._attempt.record
        if isinstance(target, DragomanError):
            return Ending("failed", error=failure_of(target))
        try:
            value = await self._checked(target)
            told = self._attempt.context.told and not is_meta(record)
            result = await self._heavy.run(to_bounded if told else to_jsonable, value)
            return self._ending("done", result=result)
        except ApprovalNeeded:
            raise
        except DragomanError as error:
            schema = target.input_schema if isinstance(error, InvalidInput) else None
            return self._ending(status_of(error), error=failure_of(error, input_schema=schema))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return self._ending("failed", error=SELF_CANCELLED)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # foreign code raises such, too
            log.warning("call %s of %s failed", record.id, record.operation, exc_info=error)
            return self._ending("failed", error=failure_of(error))

    def _ending(self, status: Status, *, result: Any = None, error: CallFailure | None = None) -> Ending:
        return Ending(
            status,
            result,
            error,
            notes=self._notes,
            attempts=self._attempts if self._attempts > 1 else None,
            cost=self._node.cost or None,
        )

    async def _checked(self, operation: Operation) -> Any:
        """Check, parse, run by the deadline; the children that are left are ended with it."""
        record, context = self._attempt.record, self._attempt.context
        self._check(operation, record, context=context)
        if context.budget is not None and not is_meta(record):
            context.budget.count()
        arguments = self._parse(operation)
        inside = enter(self._attempt, self._node, deadline=deadline_of(operation, context))
        above, self._node.deadline = context.node, inside.deadline
        is_above = above is not None and above.deadline == inside.deadline  # then the caller is stopped by it
        limit = asyncio.timeout_at(None if is_above else inside.deadline)
        token = running.set(inside)
        try:
            async with limit:
                return await self._through(operation, arguments, inside=inside)
        except TimeoutError:
            if limit.expired():
                raise CallTimeout(f"{operation.id} was stopped: it did not end by its deadline") from None
            raise
        finally:
            running.reset(token)
            await self._node.close()

    def _parse(self, operation: Operation) -> Any:
        """The arguments. What a model wrote nearly right is mended, once."""
        given = self._attempt.record.input
        try:
            return operation.parse(given)
        except InvalidInput as error:
            if not self._attempt.context.told or is_meta(self._attempt.record):
                raise
            mended = mend(given, operation.input_schema)
            if mended is None or not mended.notes:
                raise
            try:
                arguments = operation.parse(mended.value)
            except InvalidInput:
                raise error from None
            self._notes += tuple(mended.notes)
            return arguments

    async def _through(self, operation: Operation, arguments: Any, *, inside: Context) -> Any:
        """Run it inside its gate, and again where a failure may pass."""
        if operation.gate is None:
            return await self._tried(operation, arguments, inside=inside)
        async with operation.gate.enter(operation.id):
            return await self._tried(operation, arguments, inside=inside)

    async def _tried(self, operation: Operation, arguments: Any, *, inside: Context) -> Any:
        while True:
            self._attempts += 1
            work = operation.run(arguments, inside)
            try:
                return await (work if is_meta(self._attempt.record) else apart(work, operation.id))
            except (DragomanError, ConnectionError) as error:
                if self._attempts > operation.retries or not may_pass(error):
                    raise
                wait = wait_of(error, self._attempts)
                log.info("call %s of %s is tried again: %s", inside.call_id, operation.id, error)
            await asyncio.sleep(wait)


async def apart(work: Awaitable[Any], name: str) -> Any:
    """What the work gives, which is done in a task of its own: who is cancelled while he awaits it is not
    held up by work that will not end, nor goes on when that ends as if nothing was.
    """
    task = asyncio.ensure_future(kept(work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=END_SECONDS)
        if not task.done():
            log.error("%s was stopped, and still runs after %g seconds", name, END_SECONDS)
        raise
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def kept(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What the work gives, or what it raises: a task that raises SystemExit would end the hub."""
    try:
        return await work, None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whoever awaits it raises it again
        return None, error


def status_of(error: DragomanError) -> Status:
    """How a call ends that raised an error of the hub's."""
    match error:
        case CallDenied():
            return "denied"
        case CallUncertain():
            return "uncertain"
        case _:
            return "failed"


def is_meta(record: CallRecord) -> bool:
    """Whether the call does nothing itself: what it calls is written down for sure before it runs."""
    return record.operation.startswith(META)


def may_pass(error: Exception) -> bool:
    """Whether another attempt can help."""
    return isinstance(error, ConnectionError) or (isinstance(error, DragomanError) and error.transient)


def wait_of(error: Exception, attempt: int) -> float:
    """Seconds before the next attempt: as the error asks, or longer each time, with chance in it."""
    asked = error.retry_after if isinstance(error, DragomanError) else None
    chance = random.uniform(0.5, 1.0)  # noqa: S311 - it spreads retries, nothing secret
    return asked if asked is not None else min(FIRST_WAIT * 2.0 ** (attempt - 1), LONGEST_WAIT) * chance


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
    """The context that the call's function gets. What only the call itself is for ends here."""
    record, meta = attempt.record, is_meta(attempt.record)
    return replace(
        attempt.context,
        parent_id=record.parent_id,
        deadline=deadline,
        idempotency_key=record.idempotency_key,
        call_id=record.id,
        node=node,
        approval=None,
        notes=(),
        told=attempt.context.told and meta,
        grant=attempt.context.grant if meta else None,
    )


def is_cancelled() -> bool:
    """Whether somebody cancels the task that this is."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
