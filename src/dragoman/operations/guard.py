"""The guard: what the policy says of a call, and the approvals that some calls want."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded, CallDenied, Conflict
from dragoman.ids import new_id
from dragoman.operations.approval import OWNER, Approval, Approvals, Item
from dragoman.operations.context import Context
from dragoman.operations.ledger import CallRecord
from dragoman.operations.operation import Operation
from dragoman.operations.policy import STRICTNESS, Policy, Verdict

EXPIRES = 86_400.0
HOW = "`dragoman approvals` shows what waits; once it is approved, make the very same call again"


class Guard:
    """Decides by a policy, and asks where that says so; `seconds` is how long an answer is waited for."""

    def __init__(
        self,
        policy: Policy,
        approvals: Approvals,
        *,
        clock: Callable[[], float],
        seconds: float = EXPIRES,
    ) -> None:
        self.policy = policy
        """May be replaced: calls go by the new one from then on."""
        self.approvals = approvals
        self._clock = clock
        self._seconds = seconds

    def verdict(self, operation: Operation, context: Context) -> Verdict:
        """What the policy says of a call: the strictest word, where it is made through others."""
        said = self.policy.decide(operation, identity=context.identity, agent=context.agent)
        for other in context.through:
            theirs = self.policy.decide(operation, identity=other, agent=context.agent)
            said = max(said, theirs, key=strictness)
        for above in context.within:
            found: Verdict = above.judge.decide(operation, identity=context.identity, agent=above.agent)
            said = max(said, found, key=strictness)
        return said

    def check(self, operation: Operation, record: CallRecord, *, context: Context) -> None:
        """Let the call pass. CallDenied, or ApprovalNeeded where nobody approved it yet."""
        self._look(operation, record, context=context, take=True)

    def review(self, operation: Operation, record: CallRecord, *, context: Context) -> None:
        """What check() will say, without taking anything of what was approved."""
        self._look(operation, record, context=context, take=False)

    def _look(self, operation: Operation, record: CallRecord, *, context: Context, take: bool) -> None:
        verdict = self.verdict(operation, context)
        if verdict.decision == "deny":
            raise denied(operation, verdict)
        if verdict.decision == "allow" and operation.asks is None:
            return
        grant = context.grant
        look = None if grant is None else grant.take if take else grant.has
        if look is None or not look(operation.id, record.input_hash):
            raise needed(operation, record, verdict=verdict, context=context)

    async def seconds_left(self, approval_id: str) -> float:
        """How long this approval may still be given. NotFound."""
        return (await self.approvals.get(approval_id)).expires_at - self._clock()

    async def redeem(self, record: CallRecord, context: Context) -> Approval:
        """The approval that the caller brings, as it was until now: it is used up.

        NotFound, Forbidden, Conflict. What was approved in a session is for that session only, whatever the
        door.
        """
        id = context.approval or ""
        found = await self.approvals.get(id)
        if found.owner == record.owner and found.session_id != record.session_id:
            raise Conflict(f"approval {id!r} is for a call of another session")
        await self._use(id, record)
        return found

    async def find(self, record: CallRecord) -> Approval | None:
        """An approval that was given meanwhile for this very call, now used up; None when there is none."""
        found = await self.approvals.find(
            owner=record.owner, operation=record.operation, input_hash=record.input_hash
        )
        if found is None or found.run_id != record.run_id:
            return None
        try:
            await self._use(found.id, record)
            return found
        except Conflict:  # another call like this one was faster
            return None

    async def _use(self, id: str, record: CallRecord) -> None:
        await self.approvals.use(
            id,
            owner=record.owner,
            operation=record.operation,
            input_hash=record.input_hash,
            tool_call_id=record.tool_call_id,
        )

    async def ask(
        self, record: CallRecord, context: Context, *, items: Sequence[Item], state: bytes | None = None
    ) -> Approval:
        """Ask for approval of a call, for the sake of these items; the request that is kept."""
        now = self._clock()
        wanted = [set(item.answerers) for item in items if item.answerers]
        answerers = set.intersection(*wanted) if wanted else {OWNER}
        seconds = min([item.expires for item in items if item.expires is not None], default=self._seconds)
        return await self.approvals.ask(
            Approval(
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


def denied(operation: Operation, verdict: Verdict) -> CallDenied:
    """The error of a call that the policy forbids."""
    reason = verdict.rule.reason if verdict.rule is not None else None
    return CallDenied(f"you may not call {operation.id}" + (f": {reason}" if reason else ""))


def strictness(verdict: Verdict) -> int:
    return STRICTNESS[verdict.decision]


def needed(operation: Operation, record: CallRecord, *, verdict: Verdict, context: Context) -> ApprovalNeeded:
    """The error of a call that waits for somebody's word. InvalidInput where a question is none."""
    item = item_of(operation, record, verdict=verdict)
    if context.within:
        item = replace(item, agent=context.agent)
    if operation.asks is None:
        return ApprovalNeeded(f"{operation.id} needs somebody's approval", items=[item])
    question = operation.asks(record.input)
    return ApprovalNeeded(
        "somebody was asked, and has not answered", items=[replace(item, question=question)]
    )


def item_of(operation: Operation, record: CallRecord, *, verdict: Verdict) -> Item:
    """What somebody is asked about."""
    rule = verdict.rule
    if rule is None:
        return Item(operation.id, record.input, record.input_hash)
    return Item(
        operation.id,
        record.input,
        record.input_hash,
        reason=rule.reason,
        answerers=rule.answerers,
        expires=rule.expires,
    )
