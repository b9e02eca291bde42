"""The guard: what the policy says of a call, and the approvals that some calls want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded, CallDenied, Conflict, NotFound, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.operations.approval import (
    EXPIRED_REASON,
    OWNER,
    ApprovalItem,
    ApprovalRequest,
    ApprovalStore,
    Grant,
)
from dragoman.operations.context import Context
from dragoman.operations.execution import PreparedCall, is_meta_call
from dragoman.operations.ledger import CallCompletion, CallRecord, Ledger
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure
from dragoman.operations.permission.policy import STRICTNESS, Policy, Verdict

DEFAULT_APPROVAL_SECONDS = 86_400.0
APPROVAL_HINT = "`dragoman approvals` shows what waits; once it is approved, make the very same call again"


class AccessControl:
    """Decides by a policy, and asks where that says so; `seconds` is how long an answer is waited for."""

    def __init__(
        self,
        policy: Policy,
        approvals: ApprovalStore,
        *,
        clock: Callable[[], float],
        approval_seconds: float = DEFAULT_APPROVAL_SECONDS,
    ) -> None:
        self.policy = policy
        """May be replaced: calls go by the new one from then on."""
        self.approvals = approvals
        self._clock = clock
        self._approval_seconds = approval_seconds

    def evaluate(self, operation: Operation, context: Context) -> Verdict:
        """What the policy says of a call: the strictest word, where it is made through others."""
        said = self.policy.decide(operation, identity=context.identity, agent=context.agent)
        for other in context.intermediaries:
            theirs = self.policy.decide(operation, identity=other, agent=context.agent)
            said = max(said, theirs, key=strictness)
        for above in context.parent_agents:
            found: Verdict = above.decider.decide(operation, identity=context.identity, agent=above.agent)
            said = max(said, found, key=strictness)
        return said

    def check(self, operation: Operation, record: CallRecord, *, context: Context) -> None:
        """Let the call pass. CallDenied, or ApprovalNeeded where nobody approved it yet."""
        self._check(operation, record, context=context, consume=True)

    def preview(self, operation: Operation, record: CallRecord, *, context: Context) -> None:
        """What check() will say, without taking anything of what was approved."""
        self._check(operation, record, context=context, consume=False)

    def _check(self, operation: Operation, record: CallRecord, *, context: Context, consume: bool) -> None:
        verdict = self.evaluate(operation, context)
        if verdict.decision == "deny":
            raise denied_error(operation, verdict)
        if verdict.decision == "allow" and operation.make_question is None:
            return
        grant = context.grant
        look = None if grant is None else grant.consume if consume else grant.covers
        if look is None or not look(operation.id, record.input_hash):
            raise approval_error(operation, record, verdict=verdict, context=context)

    async def seconds_left(self, approval_id: str) -> float:
        """How long this approval may still be given. NotFound."""
        return (await self.approvals.get(approval_id)).expires_at - self._clock()

    async def redeem_approval(self, record: CallRecord, context: Context) -> ApprovalRequest:
        """The approval that the caller brings, as it was until now: it is used up.

        NotFound, Forbidden, Conflict. What was approved in a session is for that session only, whatever the
        door.
        """
        id = context.approval or ""
        found = await self.approvals.get(id)
        if found.owner == record.owner and found.session_id != record.session_id:
            raise Conflict(f"approval {id!r} is for a call of another session")
        await self._use_approval(id, record)
        return found

    async def use_approved(self, record: CallRecord) -> ApprovalRequest | None:
        """An approval that was given meanwhile for this very call, now used up; None when there is none."""
        found = await self.approvals.find_approved(
            owner=record.owner, operation=record.operation, input_hash=record.input_hash
        )
        if found is None or found.run_id != record.run_id:
            return None
        try:
            await self._use_approval(found.id, record)
            return found
        except Conflict:  # another call like this one was faster
            return None

    async def _use_approval(self, id: str, record: CallRecord) -> None:
        await self.approvals.use(
            id,
            owner=record.owner,
            operation=record.operation,
            input_hash=record.input_hash,
            tool_call_id=record.tool_call_id,
        )

    async def request_approval(
        self,
        record: CallRecord,
        context: Context,
        *,
        items: Sequence[ApprovalItem],
        state: bytes | None = None,
    ) -> ApprovalRequest:
        """Ask for approval of a call, for the sake of these items; the request that is kept."""
        now = self._clock()
        wanted = [set(item.answerers) for item in items if item.answerers]
        answerers = set.intersection(*wanted) if wanted else {OWNER}
        seconds = min(
            [item.expires for item in items if item.expires is not None], default=self._approval_seconds
        )
        return await self.approvals.create(
            ApprovalRequest(
                id=new_id("apr"),
                owner=record.owner,
                operation=record.operation,
                input=record.input,
                input_hash=record.input_hash,
                items=tuple(items),
                created_at=now,
                expires_at=now + seconds,
                answerers=tuple(sorted(answerers)),
                call_id=record.id,
                run_id=record.run_id,
                session_id=record.session_id,
                tool_call_id=record.tool_call_id,
                agent=context.agent,
                key_id=context.identity.key_id,
                state=state,
            )
        )


def denied_error(operation: Operation, verdict: Verdict) -> CallDenied:
    """The error of a call that the policy forbids."""
    reason = verdict.rule.reason if verdict.rule is not None else None
    return CallDenied(f"you may not call {operation.id}" + (f": {reason}" if reason else ""))


def strictness(verdict: Verdict) -> int:
    return STRICTNESS[verdict.decision]


def approval_error(
    operation: Operation, record: CallRecord, *, verdict: Verdict, context: Context
) -> ApprovalNeeded:
    """The error of a call that waits for somebody's word. InvalidInput where a question is none."""
    item = make_item(operation, record, verdict=verdict)
    if context.parent_agents:
        item = replace(item, agent=context.agent)
    if operation.make_question is None:
        return ApprovalNeeded(f"{operation.id} needs somebody's approval", items=[item])
    question = operation.make_question(record.input)
    return ApprovalNeeded(
        "somebody was asked, and has not answered", items=[replace(item, question=question)]
    )


def make_item(operation: Operation, record: CallRecord, *, verdict: Verdict) -> ApprovalItem:
    """What somebody is asked about."""
    rule = verdict.rule
    if rule is None:
        return ApprovalItem(operation.id, record.input, record.input_hash)
    return ApprovalItem(
        operation.id,
        record.input,
        record.input_hash,
        reason=rule.reason,
        answerers=rule.answerers,
        expires=rule.expires,
    )


# ---- Consent: calls that wait for somebody's word; it is asked for, taken down, and used when they go on.

MAX_PENDING = 500  # requests that are looked through
DECLINED = CallFailure(code="call_denied", message="the call was not approved")


class ApprovalFlow:
    """What becomes of calls that somebody has to approve. `clock` gives unix seconds."""

    def __init__(self, access_control: AccessControl, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._access_control = access_control
        self._ledger = ledger
        self._clock = clock

    async def request_approval(self, attempt: PreparedCall, error: ApprovalNeeded) -> ApprovalRequest:
        """Ask for a call; the request that is kept."""
        return await self._access_control.request_approval(
            attempt.record, attempt.context, items=error.items, state=error.state
        )

    async def answer(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer a request for approval; see `Approvals.answer`.

        A call that is declined has ended, unless it was in the midst of its work: it goes on, knowing that.
        """
        approval = await self._access_control.approvals.answer(
            approval_id, approved=approved, by=by, reason=reason
        )
        if not approved and approval.call_id is not None and approval.state is None:
            await self.decline_call(approval.call_id, reason)
        return approval

    async def expire_if_due(self, approval_id: str) -> ApprovalRequest:
        """The approval as it is now. Its call has ended, if nobody answered in time. NotFound."""
        approval = await self._access_control.approvals.get(approval_id)
        if approval.status == "expired" and approval.call_id is not None and approval.state is None:
            await self.decline_call(approval.call_id, EXPIRED_REASON)
        return approval

    async def decline_call(self, call_id: str, reason: str | None) -> None:
        """A call that waited is not made: somebody said no, or nobody said anything in time."""
        ended = CallCompletion(status="denied", ended_at=self._clock(), error=denied_failure(reason))
        await self._ledger.close_pending(call_id, ended)

    async def abandon(self, approval: ApprovalRequest) -> None:
        """Nobody makes use of this approval any more: a call in the midst of its work does not go on."""
        if approval.state is None or approval.call_id is None:
            return
        with suppress(Conflict, NotFound):  # somebody makes use of it just now
            await self._access_control.approvals.use(
                approval.id,
                owner=approval.owner,
                operation=approval.operation,
                input_hash=approval.input_hash,
            )
            said = EXPIRED_REASON if approval.status == "expired" else approval.reason
            await self.decline_call(approval.call_id, said)

    async def resume_approved(self, attempt: PreparedCall) -> PreparedCall:
        """The attempt; where the caller brings an approval, that of the call which asked for it.

        One that had begun before it was asked for goes on, also when its caller brings nothing. NotFound,
        Forbidden, Conflict.
        """
        record, context = attempt.record, attempt.context
        if context.node is not None:
            return attempt
        if context.approval is not None:
            approval = await self._access_control.redeem_approval(record, context)
        else:
            found = await self._access_control.use_approved(record) if can_resume(attempt) else None
            if found is None:
                return attempt
            approval = found
        context = replace(context, grant=Grant.from_approval(approval))
        return PreparedCall(attempt.target, replace(record, id=approval.call_id or record.id), context)

    async def find_pending(self, attempt: PreparedCall) -> ApprovalRequest | None:
        """The request that the very same call waits for, in the midst of its work: it does not begin anew."""
        record, context = attempt.record, attempt.context
        if context.node is not None or context.grant is not None or not can_resume(attempt):
            return None
        call = (record.owner, record.operation, record.input_hash, None)
        waiting = await self._access_control.approvals.list(
            owner=record.owner, status="pending", limit=MAX_PENDING
        )
        asked = [each for each in waiting if each.state is not None]
        return next((each for each in asked if each.request_key[: len(call)] == call), None)

    async def use_approval(self, attempt: PreparedCall) -> PreparedCall | None:
        """The attempt with an approval that was given meanwhile; None when there is none."""
        found = await self._access_control.use_approved(attempt.record)
        if found is None:
            return None
        if found.call_id is not None:
            note = f"approved, and run as {attempt.record.id}"
            ended = CallCompletion(status="aborted", ended_at=self._clock(), notes=(note,))
            with suppress(StoreError, Unavailable):  # it is written later
                await self._ledger.record_end(found.call_id, ended)
        return PreparedCall(
            attempt.target, attempt.record, replace(attempt.context, grant=Grant.from_approval(found))
        )


def denied_failure(reason: str | None) -> CallFailure:
    """Why a call was not made that somebody did not approve."""
    return replace(DECLINED, hint=reason)


def can_resume(attempt: PreparedCall) -> bool:
    """Whether it may be one that began earlier, had to wait, and belongs to no run that would know of it."""
    target, record = attempt.target, attempt.record
    return (
        isinstance(target, Operation)
        and target.resumes
        and record.run_id is None
        and not is_meta_call(record)
    )
