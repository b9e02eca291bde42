"""Consent: calls that wait for somebody's word; it is asked for, taken down, and used when they go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded, Conflict, NotFound, StoreError, Unavailable
from dragoman.operations.approval import LATE, Approval, Grant
from dragoman.operations.execution import Attempt, is_meta
from dragoman.operations.guard import Guard
from dragoman.operations.identity import Identity
from dragoman.operations.ledger import Ended, Ledger
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure

MANY = 500  # requests that are looked through
DECLINED = CallFailure(code="call_denied", message="the call was not approved")


class Consent:
    """What becomes of calls that somebody has to approve. `clock` gives unix seconds."""

    def __init__(self, guard: Guard, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._guard = guard
        self._ledger = ledger
        self._clock = clock

    async def ask(self, attempt: Attempt, error: ApprovalNeeded) -> Approval:
        """Ask for a call; the request that is kept."""
        return await self._guard.ask(attempt.record, attempt.context, items=error.items, state=error.state)

    async def answer(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> Approval:
        """Answer a request for approval; see `Approvals.answer`.

        A call that is declined has ended, unless it was in the midst of its work: it goes on, knowing that.
        """
        approval = await self._guard.approvals.answer(approval_id, approved=approved, by=by, reason=reason)
        if not approved and approval.call_id is not None and approval.state is None:
            await self.decline(approval.call_id, reason)
        return approval

    async def expire(self, approval_id: str) -> Approval:
        """The approval as it is now. Its call has ended, if nobody answered in time. NotFound."""
        approval = await self._guard.approvals.get(approval_id)
        if approval.status == "expired" and approval.call_id is not None and approval.state is None:
            await self.decline(approval.call_id, LATE)
        return approval

    async def decline(self, call_id: str, reason: str | None) -> None:
        """A call that waited is not made: somebody said no, or nobody said anything in time."""
        ended = Ended(status="denied", ended_at=self._clock(), error=refused(reason))
        await self._ledger.give_up(call_id, ended)

    async def abandon(self, approval: Approval) -> None:
        """Nobody makes use of this approval any more: a call in the midst of its work does not go on."""
        if approval.state is None or approval.call_id is None:
            return
        with suppress(Conflict, NotFound):  # somebody makes use of it just now
            await self._guard.approvals.use(
                approval.id,
                owner=approval.owner,
                operation=approval.operation,
                input_hash=approval.input_hash,
            )
            said = LATE if approval.status == "expired" else approval.reason
            await self.decline(approval.call_id, said)

    async def resumed(self, attempt: Attempt) -> Attempt:
        """The attempt; where the caller brings an approval, that of the call which asked for it.

        One that had begun before it was asked for goes on, also when its caller brings nothing. NotFound,
        Forbidden, Conflict.
        """
        record, context = attempt.record, attempt.context
        if context.node is not None:
            return attempt
        if context.approval is not None:
            approval = await self._guard.redeem(record, context)
        else:
            found = await self._guard.find(record) if may_go_on(attempt) else None
            if found is None:
                return attempt
            approval = found
        context = replace(context, grant=Grant.of(approval))
        return Attempt(attempt.target, replace(record, id=approval.call_id or record.id), context)

    async def held(self, attempt: Attempt) -> Approval | None:
        """The request that the very same call waits for, in the midst of its work: it does not begin anew."""
        record, context = attempt.record, attempt.context
        if context.node is not None or context.grant is not None or not may_go_on(attempt):
            return None
        call = (record.owner, record.operation, record.input_hash, None)
        waiting = await self._guard.approvals.list(owner=record.owner, status="pending", limit=MANY)
        asked = [each for each in waiting if each.state is not None]
        return next((each for each in asked if each.asked[: len(call)] == call), None)

    async def found(self, attempt: Attempt) -> Attempt | None:
        """The attempt with an approval that was given meanwhile; None when there is none."""
        found = await self._guard.find(attempt.record)
        if found is None:
            return None
        if found.call_id is not None:
            note = f"approved, and run as {attempt.record.id}"
            ended = Ended(status="aborted", ended_at=self._clock(), notes=(note,))
            with suppress(StoreError, Unavailable):  # it is written later
                await self._ledger.end(found.call_id, ended)
        return Attempt(attempt.target, attempt.record, replace(attempt.context, grant=Grant.of(found)))


def refused(reason: str | None) -> CallFailure:
    """Why a call was not made that somebody did not approve."""
    return replace(DECLINED, hint=reason)


def may_go_on(attempt: Attempt) -> bool:
    """Whether it may be one that began earlier, had to wait, and belongs to no run that would know of it."""
    target, record = attempt.target, attempt.record
    return isinstance(target, Operation) and target.resumes and record.run_id is None and not is_meta(record)
