"""Access control: the policy's verdict on a call, and the approvals that some calls need."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import TypeAlias

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
    explain_mismatch,
)
from dragoman.operations.context import Context
from dragoman.operations.execution import PreparedCall, is_meta_call
from dragoman.operations.ledger import CallCompletion, CallRecord, Ledger, LedgerEntry
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure
from dragoman.operations.permission.policy import STRICTNESS, Decision, Policy, Verdict
from dragoman.operations.permission.standing_rules import StandingRules, describe_decision
from dragoman.operations.replayed_calls import recorded_end

DEFAULT_APPROVAL_SECONDS = 86_400.0
Restriction: TypeAlias = Callable[[Operation, Context], Verdict | None]
"""Returns a verdict on a call, or None if it does not restrict it."""
HIDDEN = Verdict("deny")  # a private operation of another owner
APPROVAL_HINT = "`dragoman approvals` lists the requests; once it is approved, make the same call again"


class AccessControl:
    """Applies a policy and requests approvals.

    `approval_seconds` is how long a request is valid unless its rule says otherwise.
    """

    def __init__(
        self,
        policy: Policy,
        approvals: ApprovalStore,
        *,
        clock: Callable[[], float],
        approval_seconds: float = DEFAULT_APPROVAL_SECONDS,
    ) -> None:
        self.policy = policy
        """May be replaced; later calls use the new one."""
        self.restrictions: list[Restriction] = []
        """Evaluated for each call in addition to the policy; the strictest verdict wins."""
        self.refreshers: list[Callable[[Context], None]] = []
        """Called before the operation of a call is looked up, to update restrictions."""
        self.standing = StandingRules()
        """Calls that need no approval any more."""
        self.approvals = approvals
        self._clock = clock
        self._approval_seconds = approval_seconds

    def evaluate(self, operation: Operation, context: Context) -> Verdict:
        """Return the strictest verdict for the caller, its intermediaries and its parent agents."""
        if not operation.is_visible_to(context.identity.owner):
            return HIDDEN
        verdict = self.policy.decide(operation, identity=context.identity, agent=context.agent)
        for other in context.intermediaries:
            other_verdict = self.policy.decide(operation, identity=other.identity, agent=other.agent)
            verdict = max(verdict, other_verdict, key=strictness)
        for parent in context.parent_agents:
            parent_verdict: Verdict = parent.decider.decide(
                operation, identity=context.identity, agent=parent.agent
            )
            verdict = max(verdict, parent_verdict, key=strictness)
        for restriction in self.restrictions:
            if (restricted := restriction(operation, context)) is not None:
                verdict = max(verdict, restricted, key=strictness)
        return verdict

    def describe(self, operation: Operation, context: Context) -> str | None:
        """Return the decision about a call as JSON text, for its record; None if no rule matches."""
        verdict = self.evaluate(operation, context)
        asks = verdict.decision == "ask"
        standing = self.standing.find(operation, context, rule=verdict.rule) if asks else None
        decision: Decision = "allow" if standing is not None else verdict.decision
        standing_id = None if standing is None else standing.id
        return describe_decision(decision, verdict.rule, standing_id=standing_id)

    def check(self, operation: Operation, record: CallRecord, *, context: Context) -> None:
        """Allow the call. Raises CallDenied, or ApprovalNeeded if it is not approved."""
        self._check(operation, record, context=context, consume=True)

    def preview(self, operation: Operation, record: CallRecord, *, context: Context) -> None:
        """Like check(), without using up approvals."""
        self._check(operation, record, context=context, consume=False)

    def _check(self, operation: Operation, record: CallRecord, *, context: Context, consume: bool) -> None:
        verdict = self.evaluate(operation, context)
        if verdict.decision == "deny":
            raise denied_error(operation, verdict)
        if operation.identity_aware and context.crosses_owners:
            raise CallDenied(
                f"You may not call {operation.id} while you serve a call of another owner:"
                " it acts for whoever calls it.",
                hint="Only operations whose result does not depend on the caller can be called there.",
            )
        if verdict.decision == "allow" and operation.make_question is None:
            return
        if self.standing.find(operation, context, rule=verdict.rule) is not None:
            return
        grant = context.grant
        is_granted = None if grant is None else grant.consume if consume else grant.covers
        provider = operation.call_provider
        if is_granted is None or not is_granted(operation.id, record.input_hash, provider=provider):
            raise approval_error(operation, record, verdict=verdict, context=context)

    def approval_item(self, attempt: PreparedCall, operation: Operation) -> ApprovalItem:
        """Return the item of an approval request for this call, with the answerers of its policy rule."""
        record, context = attempt.record, attempt.context
        item = make_item(operation, record, verdict=self.evaluate(operation, context))
        return replace(item, agent=context.agent) if context.parent_agents else item

    async def seconds_left(self, approval_id: str) -> float:
        """Return how long this request can still be answered. Raises NotFound."""
        return (await self.approvals.get(approval_id)).expires_at - self._clock()

    async def redeem_approval(self, attempt: PreparedCall) -> ApprovalRequest:
        """Use up the approval that the caller passed, and return it as it was before.

        An approval that the same call used before a crash stays valid for it. An approval of a session's call
        is valid in that session only. Raises NotFound, Forbidden, Conflict.
        """
        record, earlier = attempt.record, attempt.earlier
        id = attempt.context.approval or ""
        approval = await self.approvals.get(id)
        if earlier is not None and approval.status == "used" and approval.call_id == earlier.record.id:
            return approval
        if approval.owner == record.owner and approval.session_id != record.session_id:
            raise Conflict(f"Approval {id!r} is for a call of another session.")
        await self._use_approval(id, record)
        return approval

    async def use_approved(self, record: CallRecord) -> ApprovalRequest | None:
        """Return an approval of exactly this call, now used up; None without one."""
        approval = await self.approvals.find_approved(
            owner=record.owner, operation=record.operation, input_hash=record.input_hash
        )
        if approval is None or approval.run_id != record.run_id:
            return None
        try:
            await self._use_approval(approval.id, record)
            return approval
        except Conflict:  # an equal call used it first
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
        """Store a request for approval of a call because of these items, and return it."""
        now = self._clock()
        limits = [self._approval_seconds if item.expires is None else item.expires for item in items]
        seconds = min(limits, default=self._approval_seconds)
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
                answerers=tuple(sorted(common_answerers(items, owner=record.owner))),
                call_id=record.id,
                run_id=record.run_id,
                session_id=record.session_id,
                tool_call_id=record.tool_call_id,
                agent=context.agent,
                key_id=context.identity.key_id,
                state=state,
            )
        )


def common_answerers(items: Sequence[ApprovalItem], *, owner: str) -> Set[str]:
    """Return who may answer for all items. Items without answerers do not restrict them.

    The result has `owner` (the word) for the owner of the call.
    """
    restrictions = [
        {*item.answerers, owner} if OWNER in item.answerers else set(item.answerers)
        for item in items
        if item.answerers
    ]
    common = set.intersection(*restrictions) if restrictions else {OWNER}
    return common - {owner} if OWNER in common else common


def denied_error(operation: Operation, verdict: Verdict) -> CallDenied:
    """Return the error of a call that the policy denies."""
    reason = verdict.rule.reason if verdict.rule is not None else None
    return CallDenied(f"You may not call {operation.id}" + (f": {reason}" if reason else ""))


def strictness(verdict: Verdict) -> int:
    return STRICTNESS[verdict.decision]


def approval_error(
    operation: Operation, record: CallRecord, *, verdict: Verdict, context: Context
) -> ApprovalNeeded:
    """Return the error of a call that needs approval. Raises InvalidInput for an invalid question."""
    item = explain_mismatch(make_item(operation, record, verdict=verdict), context.grant)
    if context.parent_agents:
        item = replace(item, agent=context.agent)
    if operation.make_question is None:
        change = None if context.grant is None else context.grant.mismatch(item)
        again = f" again: {change} since it was approved" if change else ""
        return ApprovalNeeded(f"{operation.id} needs approval{again}.", items=[item])
    question = operation.make_question(record.input)
    return ApprovalNeeded("The question has not been answered.", items=[replace(item, question=question)])


def make_item(operation: Operation, record: CallRecord, *, verdict: Verdict) -> ApprovalItem:
    """Return the item to approve."""
    rule = verdict.rule
    if rule is None:
        return ApprovalItem(operation.id, record.input, record.input_hash, provider=operation.call_provider)
    return ApprovalItem(
        operation.id,
        record.input,
        record.input_hash,
        reason=rule.reason,
        answerers=rule.answerers,
        expires=rule.expires,
        provider=operation.call_provider,
    )


# Requesting, answering and using approvals

DECLINED = CallFailure(code="call_denied", message="the call was not approved")


class ApprovalFlow:
    """Requests and applies the approvals of calls. `clock` returns unix seconds."""

    def __init__(self, access_control: AccessControl, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._access_control = access_control
        self._ledger = ledger
        self._clock = clock

    async def request_approval(self, attempt: PreparedCall, error: ApprovalNeeded) -> ApprovalRequest:
        """Request approval of a call; return the stored request."""
        return await self._access_control.request_approval(
            attempt.record, attempt.context, items=error.items, state=error.state
        )

    async def answer(
        self, approval_id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer a request; see `ApprovalStore.answer`.

        A denied call has ended, unless it was suspended while it ran: then it resumes and sees the denial.
        """
        approval = await self._access_control.approvals.answer(
            approval_id, approved=approved, by=by, reason=reason
        )
        if not approved and approval.call_id is not None and approval.state is None:
            await self.decline_call(approval.call_id, reason)
        return approval

    async def expire_if_due(self, approval_id: str) -> ApprovalRequest:
        """Return the request as of now; if it has expired, its call ends. Raises NotFound."""
        approval = await self._access_control.approvals.get(approval_id)
        if approval.status == "expired" and approval.call_id is not None and approval.state is None:
            await self.decline_call(approval.call_id, EXPIRED_REASON)
        return approval

    async def decline_call(self, call_id: str, reason: str | None) -> None:
        """End a pending call: it was denied, or nobody answered in time."""
        completion = CallCompletion(status="denied", ended_at=self._clock(), error=denied_failure(reason))
        await self._ledger.close_pending(call_id, completion)

    async def abandon(self, approval: ApprovalRequest) -> None:
        """Use up a request that nobody will resume: its suspended call ends."""
        if approval.state is None or approval.call_id is None:
            return
        with suppress(Conflict, NotFound):  # it is being used concurrently
            await self._access_control.approvals.use(
                approval.id,
                owner=approval.owner,
                operation=approval.operation,
                input_hash=approval.input_hash,
            )
            reason = EXPIRED_REASON if approval.status == "expired" else approval.reason
            await self.decline_call(approval.call_id, reason)

    async def resume_approved(self, attempt: PreparedCall) -> PreparedCall:
        """Return the call with its approval applied; it continues the call that requested it.

        A suspended call outside runs is found by its arguments, if the caller passes no approval. Raises
        NotFound, Forbidden, Conflict.
        """
        record, context = attempt.record, attempt.context
        if context.node is not None:
            return attempt
        if attempt.earlier is not None and not await self._continues_earlier(attempt, attempt.earlier):
            return attempt
        if context.approval is not None:
            approval = await self._access_control.redeem_approval(attempt)
        else:
            approved = await self._access_control.use_approved(record) if can_resume(attempt) else None
            if approved is None:
                return attempt
            approval = approved
        context = replace(context, grant=Grant.from_approval(approval))
        record = replace(record, id=approval.call_id or record.id)
        return replace(attempt, record=record, context=context)

    async def _continues_earlier(self, attempt: PreparedCall, earlier: LedgerEntry) -> bool:
        """Return whether an approval applies to a call that was interrupted by a crash.

        Once it may have taken effect, only the answer to the question whether it did applies.
        """
        target = attempt.target
        if recorded_end(earlier) is not None:
            return False
        if earlier.status != "uncertain" or (isinstance(target, Operation) and target.resumes):
            return True
        if attempt.context.approval is None:
            return False
        return (await self._access_control.approvals.get(attempt.context.approval)).state is not None

    async def find_pending(self, attempt: PreparedCall) -> ApprovalRequest | None:
        """Return the request of the same suspended call, which must not start a second time; None without."""
        record, context = attempt.record, attempt.context
        if context.node is not None or context.grant is not None or not can_resume(attempt):
            return None
        return await self._access_control.approvals.find_suspended(
            owner=record.owner, operation=record.operation, input_hash=record.input_hash
        )

    async def use_approval(self, attempt: PreparedCall) -> PreparedCall | None:
        """Return the call with an approval given in the meantime; None without one."""
        approval = await self._access_control.use_approved(attempt.record)
        if approval is None:
            return None
        if approval.call_id is not None:
            note = f"approved, and run as {attempt.record.id}"
            completion = CallCompletion(status="aborted", ended_at=self._clock(), notes=(note,))
            with suppress(StoreError, Unavailable):  # it is recorded later
                await self._ledger.record_end(approval.call_id, completion)
        context = replace(attempt.context, grant=Grant.from_approval(approval))
        return replace(attempt, context=context, earlier=None, is_restart=False)


def denied_failure(reason: str | None) -> CallFailure:
    """Return the failure of a call that was not approved."""
    return replace(DECLINED, hint=reason)


def can_resume(attempt: PreparedCall) -> bool:
    """Return whether the call may continue a suspended one that belongs to no run."""
    target, record = attempt.target, attempt.record
    return (
        isinstance(target, Operation)
        and target.resumes
        and record.run_id is None
        and not is_meta_call(record)
    )
