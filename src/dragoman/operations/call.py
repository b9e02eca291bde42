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
from dragoman.ids import new_id
from dragoman.operations.approval import Approval, MemoryApprovals, Waiting
from dragoman.operations.arguments.schema import invalid, problem
from dragoman.operations.artifact import MemoryArtifacts
from dragoman.operations.context import Context, Report
from dragoman.operations.execution import Attempt, Ending, Execution, Review, Target, is_meta
from dragoman.operations.heavy import Heavy, Live, Threads
from dragoman.operations.hook import CallHooks
from dragoman.operations.identity import Identity
from dragoman.operations.ledger import CallRecord, Ended, Ledger, Tracer, hash_input
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, Outcome, failure_of
from dragoman.operations.permission.guard import HOW, Consent, Guard
from dragoman.operations.permission.policy import Policy, Verdict
from dragoman.operations.registry import Registry
from dragoman.operations.repeats import Repeats
from dragoman.operations.spill import Spill

log = logging.getLogger(__name__)
T = TypeVar("T")

END_SECONDS = 5.0  # how long writing down an aborted call may hold its end up
NAME_LIMIT = 200

ABORTED = CallFailure(code="aborted", message="the call was stopped")
UNRECORDED = CallFailure(
    code=Unavailable.code, message="the call was not run: it could not be written down", transient=True
)
UNASKED = "it was not run: it needs an approval, and nobody could be asked"


class CallSettings(msgspec.Struct, frozen=True):
    """Sync functions share `threads` threads; `tracer` sees each call; a call that failed `repeats` times for
    a run is not run again unchanged.
    """

    threads: int = 16
    tracer: Tracer | None = None
    repeats: int = 3
    hooks: CallHooks | None = None


DEFAULTS = CallSettings()


class Calls:
    """Calls operations, and writes each call down.

    `guard` decides who may call what, and asks for approval; without one all may be called but what wants an
    approval by itself. `spill` keeps what is too big for a model. `clock` gives unix seconds. Use it with
    `async with`, or close() it.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        *,
        guard: Guard | None = None,
        spill: Spill | None = None,
        clock: Callable[[], float] = time.time,
        settings: CallSettings = DEFAULTS,
    ) -> None:
        self.guard = guard or Guard(Policy(), MemoryApprovals(clock), clock=clock)
        self.consent = Consent(self.guard, ledger, clock=clock)
        self.spill = spill or Spill(MemoryArtifacts())
        self._registry = registry
        self._ledger = ledger
        self._clock = clock
        self._tracer = settings.tracer
        self._hooks = settings.hooks
        self._repeats = Repeats(settings.repeats, clock=clock)
        self._heavy = Heavy()
        self._threads = Threads(settings.threads, "operation")
        self._live: dict[str, Live] = {}
        self._late: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what is still being written down; let the threads go, without waiting for busy ones."""
        if self._late:
            await asyncio.wait(self._late, timeout=END_SECONDS)
        self._threads.close()
        self._heavy.close()

    async def call(
        self,
        operation: str | Operation,
        input: Mapping[str, Any] | None = None,
        *,
        context: Context,
        on_progress: Report | None = None,
    ) -> Outcome:
        """Call an operation, by its id or itself, and say what came of it.

        The call is written down before it runs; when that fails it does not run. It ends by the earlier of
        `context.deadline` and its own timeout. Cancelling the task that awaits it aborts it with all that it
        called, and raises CancelledError; everything else that can go wrong is told in the outcome. One that
        wants an approval is not run: the outcome is `pending`, with the id of what to answer.
        """
        above = context.node
        call_id = (context.grant.call_id if context.grant and above else None) or new_id("call")
        try:
            index = 0 if above is None else above.adopt(call_id)
        except CallError as error:
            failure = failure_of(error)
            return Outcome(
                call_id=call_id, operation=spell(operation), ok=False, error=failure, status="failed"
            )
        try:
            if isinstance(operation, str):
                await self.arrived([operation], context)
            key = key_of(context, index) or call_id
            hooks = context.hooks or self._hooks
            inside = replace(context, report=on_progress, idempotency_key=key, hooks=hooks)
            return await self._made(self._describe(operation, input, call_id=call_id, context=inside))
        finally:
            if above is not None:
                above.release(call_id)

    def abort(self, call_id: str, reason: str = "it was stopped") -> bool:
        """Stop a call that is under way, with all below it; whoever made it is told. False when it is not."""
        live = self._live.get(call_id)
        return live is not None and live.stop(reason)

    def is_visible(self, operation: Operation, context: Context) -> bool:
        """Whether the caller may know of an operation: not, when the policy denies it."""
        return self.guard.verdict(operation, context).decision != "deny"

    async def arrived(self, ids: Sequence[str], context: Context) -> None:
        """Wait, up to the deadline, for operations that are not here while somebody brings them."""
        await self._registry.arrived(ids, by=context.deadline)

    def find(self, operation: str, context: Context) -> Operation:
        """The operation of this id. NotFound, also for one that the caller may not call."""
        found = self._registry.get(operation, allow=lambda each: self.is_visible(each, context))
        if not self.is_visible(found, context):
            raise NotFound(f"no operation {operation[:NAME_LIMIT]!r}")
        return found

    async def review(self, operation: str, input: Mapping[str, Any], *, context: Context) -> Review:
        """What hooks say of this call, and what somebody would have to approve before it.

        Nothing, when nobody has to or it cannot run. The ruling is to be handed on with the call itself.
        """
        attempt = self._describe(operation, input, call_id="", context=context)
        try:
            return await Execution(self, attempt, check=self.guard.review, heavy=self._heavy).review()
        except DragomanError:
            return Review()

    def decide(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> Verdict:
        """What the policy says of a call."""
        return self.guard.policy.decide(operation, identity=identity, agent=agent)

    async def answer(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> Approval:
        """Answer a request for approval; see `Consent.answer`."""
        return await self.consent.answer(approval_id, approved=approved, by=by, reason=reason)

    async def offload(self, function: Callable[[], T]) -> T:
        """What a blocking function returns, run in a thread. Cancelling drops the result, not the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads.pool, copy_context().run, guarded, function)

    def _describe(self, operation: str | Operation, input: Any, *, call_id: str, context: Context) -> Attempt:
        target, kept, digest = self._find(operation, context), {} if input is None else input, ""
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
            idempotency_key=context.idempotency_key or call_id,
            started_at=self._clock(),
            parent_id=context.call_id or context.parent_id,
            run_id=context.run_id,
            session_id=context.session_id,
            tool_call_id=context.tool_call_id,
            agent=context.agent,
            step=context.step,
        )
        return Attempt(target, record, context)

    def _find(self, operation: str | Operation, context: Context) -> Target:
        if isinstance(operation, Operation):
            return operation
        try:
            return self._registry.get(operation, allow=lambda each: self.is_visible(each, context))
        except NotFound as error:
            return error

    async def _made(self, attempt: Attempt) -> Outcome:
        """Take up what was approved, then intent, attempt, end; the end also when it is cancelled."""
        try:
            attempt = await self.consent.resumed(attempt)
            held = await self.consent.held(attempt)
            if held is not None:
                return outcome_of(replace(attempt.record, id=held.call_id or ""), ending_of(held))
        except DragomanError as error:
            attempt = Attempt(error, attempt.record, attempt.context)
        record = attempt.record
        live = self._live[record.id] = Live()
        ending: Ending | None = None
        try:
            if await self._begin(attempt):
                ending = await self._watched(attempt)
                await self._end(record, ending)
            else:
                ending = Ending("failed", error=UNRECORDED)
        except asyncio.CancelledError:
            ending = ending or Ending("aborted", error=replace(ABORTED, hint=live.stopped))
            await self._end_shielded(record, ending)
            if live.stopped is None:
                raise
        finally:
            del self._live[record.id]
            others = live.settle()
        if others:
            raise asyncio.CancelledError
        return outcome_of(record, ending)

    async def _begin(self, attempt: Attempt) -> bool:
        record = attempt.record
        wait = record.effect != "read" and not is_meta(record)
        try:
            if is_resumed(attempt):
                await self._ledger.resume(record)
            else:
                await self._ledger.begin(record, wait=wait)
        except (StoreError, Unavailable) as error:
            log.error("call %s of %s is not run: %s", record.id, record.operation, error)
            return False
        except Exception:
            log.exception("call %s of %s is not run", record.id, record.operation)
            return False
        return True

    async def _end(self, record: CallRecord, ending: Ending) -> None:
        """Write the end down. A result is not kept back because that fails: the work has been done."""
        ended = Ended(
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
            await self._ledger.end(record.id, ended, wait=wait)
        except (StoreError, Unavailable) as error:
            log.error("the end of call %s of %s is not written: %s", record.id, record.operation, error)
        except Exception:
            log.exception("the end of call %s of %s is not written", record.id, record.operation)

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
        """Run it, unless it failed too often or somebody has to approve it first."""
        record, context = attempt.record, attempt.context
        counted = context.told and not is_meta(record)
        try:
            if counted:
                self._repeats.check(record, context)
            ending = await Execution(self, attempt, check=self.guard.check, heavy=self._heavy).run()
        except CallError as error:
            return await self._refused(attempt, error)
        if counted and ending.status in ("done", "failed"):
            ending = replace(ending, error=self._repeats.note(record, context, failure=ending.error))
        if counted and ending.status == "done":
            fitting = self.spill.fit(ending.result, record, now=self._clock(), heavy=self._heavy)
            ending = replace(ending, result=await fitting)
        return ending

    async def _refused(self, attempt: Attempt, error: CallError) -> Ending:
        """What becomes of a call that was refused: it waits, if it can be approved and that be kept."""
        if not isinstance(error, ApprovalNeeded):
            return Ending("failed", error=failure_of(error))
        try:
            return await self._waits(attempt, error)
        except (StoreError, Unavailable) as problem:
            log.warning("nobody could be asked to approve call %s: %s", attempt.record.id, problem.message)
            return Ending("failed", error=replace(failure_of(problem), hint=UNASKED))

    async def _waits(self, attempt: Attempt, error: ApprovalNeeded) -> Ending:
        """Use an approval that was given meanwhile, or ask for one."""
        context = attempt.context
        if context.node is not None and not context.waits:
            hint = "it is called from within another operation: allow it there by a rule of the policy"
            return Ending("denied", error=replace(failure_of(error), hint=hint))
        failure = replace(failure_of(error), hint=HOW)
        if context.node is not None:
            waiting = Waiting(attempt.record.id, error.items, error.state)
            return Ending("pending", error=failure, waiting=waiting)
        granted = await self.consent.found(attempt)
        if granted is not None:
            return await self._attempt(granted)
        return ending_of(await self.consent.ask(attempt, error), failure)


def ending_of(approval: Approval, failure: CallFailure | None = None) -> Ending:
    """How a call ends that waits for this approval."""
    error = failure or CallFailure(
        code=ApprovalNeeded.code, message="it waits for somebody's word already", hint=HOW
    )
    waiting = Waiting(approval.call_id or "", approval.items)
    return Ending("pending", error=error, approval_id=approval.id, waiting=waiting)


def outcome_of(record: CallRecord, ending: Ending) -> Outcome:
    return Outcome(
        call_id=record.id,
        operation=record.operation,
        ok=ending.status == "done",
        result=ending.result,
        error=ending.error,
        status=ending.status,
        approval_id=ending.approval_id,
        waiting=ending.waiting,
        notes=ending.notes,
    )


def is_resumed(attempt: Attempt) -> bool:
    """Whether it is a call that waited, and goes on."""
    grant = attempt.context.grant
    if grant is None:
        return False
    return attempt.context.node is None or grant.call_id == attempt.record.id


def spell(operation: str | Operation) -> str:
    return operation[:NAME_LIMIT] if isinstance(operation, str) else operation.id


def key_of(context: Context, index: int) -> str | None:
    """The idempotency key: the same when a step of a run is done again. None for a call of no run."""
    if context.node is not None:
        return f"{context.idempotency_key}:{index}"
    if context.idempotency_key is None and context.run_id and context.tool_call_id:
        return f"{context.run_id}:{context.tool_call_id}"
    return context.idempotency_key


def guarded(function: Callable[[], T]) -> T:
    """What the function returns; what a future cannot carry out of a thread becomes a CallError."""
    try:
        return function()
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        raise CallError(f"the operation raised {type(error).__name__}") from error
