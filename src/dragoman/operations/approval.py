"""Approval requests: a person's consent to a call, bound to its arguments and valid for one use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from dragoman.errors import BadRequest, Conflict, Forbidden, NotFound
from dragoman.identity import Identity
from dragoman.operations.authorization import require_owner

ApprovalStatus = Literal["pending", "approved", "denied", "expired", "used"]
OWNER = "owner"  # in `answerers`: the call's own owner
HUB_PROVIDER = "hub"
DEFAULT_ANSWER = "yes"  # the answer to a question that was approved without a text
EXPIRED_REASON = "nobody answered in time"
MAX_ANSWER_LENGTH = 10_000  # characters of an answer, or of a reason


class Question(msgspec.Struct, frozen=True):
    """A question to a person, with suggested answers; other answers are accepted, too."""

    text: str
    options: tuple[str, ...] = ()


class CallProvider(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who runs a call: the hub, an MCP server or the spokes of an owner; and the hash of the definition."""

    name: str
    owner: str | None
    definition: str

    def differences(self, other: CallProvider) -> str:
        """Describe how another provider of the same operation differs; an empty text if it does not."""
        changes = {
            "it is provided by something else": self.name != other.name,
            "another owner's spoke serves it": self.owner != other.owner,
            "its definition has changed": self.definition != other.definition,
        }
        return " and ".join(text for text, is_changed in changes.items() if is_changed)


class ApprovalItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation that needs approval: its arguments, and the fields of the matching policy rule.

    With a `question`, an answer is requested instead of consent. `agent` names the agent whose model asks,
    if it is not the agent that the person talks to. `provider` would run it; only requests of earlier
    versions have none.
    """

    operation: str
    input: Any
    input_hash: str
    reason: str | None = None
    answerers: tuple[str, ...] | None = None
    expires: float | None = None
    question: Question | None = None
    agent: str | None = None
    provider: CallProvider | None = None


ApprovalKey: TypeAlias = tuple[str, str, CallProvider | None]
"""Operation, hash of the input, and provider of one approved call."""


class SuspendedCall(msgspec.Struct, frozen=True):
    """A nested call that waits for an approval, with the state it resumes from."""

    call_id: str
    items: tuple[ApprovalItem, ...]
    state: bytes | None = None


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for approval of a call, covering all `items` in the call that need it.

    `operation`, `input` and `input_hash` describe the call itself (`hub.call`, or a pinned operation);
    `key_id` is the key that made it. `answerers` are the owners who may answer: `owner` stands for the
    call's own, and an identity with the scope `admin` always may. Times are unix seconds. `reason` is the
    text of the answer. A call that was suspended while it ran resumes from `state`, also after a denial.
    """

    id: str
    owner: str
    operation: str
    input: Any
    input_hash: str
    items: tuple[ApprovalItem, ...]
    created_at: float
    expires_at: float
    answerers: tuple[str, ...] = (OWNER,)
    status: ApprovalStatus = "pending"
    call_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    agent: str | None = None
    key_id: str | None = None
    answered_at: float | None = None
    answered_by: str | None = None
    reason: str | None = None
    state: bytes | None = None

    @property
    def question(self) -> Question | None:
        """The question of the request; None if it asks for consent only."""
        return self.items[0].question if self.items else None

    @property
    def answer(self) -> str | None:
        """The answer to the question; None without an answer or a question."""
        if self.question is None or self.status not in ("approved", "used"):
            return None
        return self.reason or DEFAULT_ANSWER

    @property
    def request_key(self) -> tuple[Any, ...]:
        """The fields in which two requests for the same approval are equal."""
        call = (self.owner, self.operation, self.input_hash, self.run_id, self.tool_call_id)
        return (*call, self.items, self.answerers)

    @property
    def is_open(self) -> bool:
        """Whether the request can still be answered or used."""
        return self.status in ("pending", "approved")

    def as_of(self, now: float) -> ApprovalRequest:
        """Return the request as of `now`: expired if it was not answered, or not used, in time."""
        if self.is_open and now >= self.expires_at:
            return msgspec.structs.replace(self, status="expired")
        return self


class Grant:
    """The answer that a waiting call gets; it covers each approved item once.

    `text` is the reason, or the answer to a question. With a `state` the call resumes from there, even if
    it was not `approved`. `call_id` names the nested call that the grant is for.
    """

    def __init__(
        self,
        items: Sequence[ApprovalItem],
        *,
        approved: bool = True,
        text: str | None = None,
        state: bytes | None = None,
        call_id: str | None = None,
    ) -> None:
        self.approved = approved
        self.text = text
        self.state = state
        self.call_id = call_id
        approved_items = items if approved and state is None else ()
        self._unused = Counter(
            (item.operation.lower(), item.input_hash, item.provider) for item in approved_items
        )

    @classmethod
    def from_approval(cls, approval: ApprovalRequest) -> Grant:
        """Return the grant for an answered or expired request."""
        approved = approval.status in ("approved", "used")
        text = EXPIRED_REASON if approval.status == "expired" else approval.reason
        return cls(approval.items, approved=approved, text=text, state=approval.state)

    def for_nested_call(self, nested: SuspendedCall) -> Grant:
        """Return the same answer for the nested call that suspended its caller."""
        return Grant(
            nested.items,
            approved=self.approved,
            text=self.text,
            state=nested.state,
            call_id=nested.call_id,
        )

    def consume(self, operation: str, input_hash: str, *, provider: CallProvider) -> bool:
        """Return whether this call by this provider is approved, and use up the approval."""
        if self.state is not None:
            return True  # a suspended call was approved before it started
        key = self._find_unused(operation, input_hash, provider=provider)
        if key is None:
            return False
        self._unused[key] -= 1
        return True

    def covers(self, operation: str, input_hash: str, *, provider: CallProvider) -> bool:
        """Return whether `consume` would return True."""
        return (
            self.state is not None or self._find_unused(operation, input_hash, provider=provider) is not None
        )

    def mismatch(self, item: ApprovalItem) -> str | None:
        """Return how the provider of a call differs from the approved one; None if there is no such call."""
        call = (item.operation.lower(), item.input_hash)
        approved = [provider for *key, provider in +self._unused if tuple(key) == call]
        if not approved or item.provider is None:
            return None
        if approved[0] is None:
            return "the approval does not name its provider"
        return approved[0].differences(item.provider) or None

    def _find_unused(self, operation: str, input_hash: str, *, provider: CallProvider) -> ApprovalKey | None:
        """Return the unused approval of this call; one without a provider is for the hub's operations."""
        providers = (provider, None) if provider.name == HUB_PROVIDER else (provider,)
        keys: list[ApprovalKey] = [(operation.lower(), input_hash, owner) for owner in providers]
        return next((key for key in keys if self._unused[key]), None)


def explain_mismatch(item: ApprovalItem, grant: Grant | None) -> ApprovalItem:
    """Return the item; if an earlier approval of the same call is not valid now, with the reason why."""
    change = None if grant is None else grant.mismatch(item)
    if change is None:
        return item
    reason = f"It was approved before, but not as it is now: {change}."
    return msgspec.structs.replace(item, reason=f"{item.reason} {reason}" if item.reason else reason)


class ApprovalUse(msgspec.Struct, frozen=True):
    """The call that wants to use an approval."""

    owner: str
    operation: str
    input_hash: str
    tool_call_id: str | None = None


class ApprovalStore(Protocol):
    """Stores approval requests."""

    async def create(self, approval: ApprovalRequest) -> ApprovalRequest:
        """Store a request and return it, or return the pending request for the same call.

        Raises Conflict if the id exists.
        """
        ...

    async def get(self, id: str) -> ApprovalRequest:
        """Return the request as of now. Raises NotFound."""
        ...

    async def list(
        self,
        *,
        owner: str | None = None,
        session_id: str | None = None,
        status: ApprovalStatus | None = None,
        limit: int = 100,
    ) -> Sequence[ApprovalRequest]:
        """List requests, newest first.

        With `session_id` those of a session, whoever asked for them; else with `owner` those of the owner and
        those the owner may answer.
        """
        ...

    async def find_approved(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        """Return the newest unused approval of exactly this call, or None.

        Only for calls outside runs: an approval of a run's tool call is valid for that tool call only.
        """
        ...

    async def find_suspended(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        """Return the newest pending request of exactly this call, suspended outside of runs, or None."""
        ...

    async def answer(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer a request.

        Raises NotFound, Forbidden if `by` may not answer, Conflict if it was answered or has expired.
        """
        ...

    async def use(
        self, id: str, *, owner: str, operation: str, input_hash: str, tool_call_id: str | None = None
    ) -> ApprovalRequest:
        """Use up an approval for exactly the approved call.

        Raises NotFound; Forbidden for another owner; Conflict for other arguments, for another tool call if
        both are known, or if it is not approved. A request with a `state` is also used up after it was denied
        or has expired.
        """
        ...


def validate_answer(answer: str) -> str:
    """Return the answer to a question. Raises BadRequest if it is empty or too long."""
    if not answer.strip():
        raise BadRequest("The answer is empty.", field="answer", hint="Write an answer, or decline.")
    if len(answer) > MAX_ANSWER_LENGTH:
        message = f"The answer has {len(answer):,} characters; the limit is {MAX_ANSWER_LENGTH:,}."
        raise BadRequest(message, field="answer")
    return answer


def validate_reason(reason: str | None) -> str | None:
    """Return the reason, None if it is blank. Raises BadRequest if it is too long."""
    if reason is None or not reason.strip():
        return None
    if len(reason) > MAX_ANSWER_LENGTH:
        raise BadRequest(f"The reason has {len(reason):,} characters; the limit is {MAX_ANSWER_LENGTH:,}.")
    return reason


def approval_not_found(id: str) -> NotFound:
    """Return the error for an approval that does not exist, or that the caller may not see."""
    return NotFound(f"there is no approval {id!r}")


def may_answer(approval: ApprovalRequest, by: Identity) -> bool:
    """Return whether an identity may answer a request.

    A key that may only call operations may not: it would approve its own calls.
    """
    if by.scopes and "admin" in by.scopes:
        return True
    if not by.may("chat"):
        return False
    owners = {approval.owner if name == OWNER else name for name in approval.answerers}
    return by.owner in owners


def is_same_request(first: ApprovalRequest, second: ApprovalRequest) -> bool:
    """Return whether both ask the same people about the same call of an owner, in the same tool call."""
    return first.request_key == second.request_key


def involves_owner(approval: ApprovalRequest, owner: str) -> bool:
    """Return whether the owner made the call or may answer the request."""
    return owner == approval.owner or may_answer(approval, Identity(owner))


def apply_answer(
    approval: ApprovalRequest,
    *,
    approved: bool,
    by: Identity,
    reason: str | None,
    now: float,
    is_participant: bool = False,
) -> ApprovalRequest:
    """Return the request with its answer. Raises Forbidden, Conflict.

    `is_participant`: `by` may write in the session of the call, and answers like the owner of the call.
    """
    current = approval.as_of(now)
    if not (may_answer(approval, by) or (is_participant and OWNER in approval.answerers)):
        raise Forbidden(f"You may not answer approval {approval.id!r}.")
    if current.status != "pending":
        raise Conflict(f"Approval {approval.id!r} is already {current.status}; it takes one answer.")
    return msgspec.structs.replace(
        current,
        status="approved" if approved else "denied",
        answered_at=now,
        answered_by=by.owner,
        reason=reason,
    )


def apply_use(approval: ApprovalRequest, use: ApprovalUse, *, now: float) -> ApprovalRequest:
    """Return the request after its use. Raises Forbidden, Conflict."""
    current = approval.as_of(now)
    require_owner(use.owner, current.owner, resource=f"approval {approval.id!r}")
    if (current.operation, current.input_hash) != (use.operation, use.input_hash):
        raise Conflict(f"Approval {approval.id!r} is for another operation, or for other arguments.")
    if None not in (use.tool_call_id, current.tool_call_id) and use.tool_call_id != current.tool_call_id:
        raise Conflict(f"Approval {approval.id!r} is for another tool call.")
    if current.status in ("denied", "expired") and current.state is not None:
        return msgspec.structs.replace(approval, state=None)
    if current.status != "approved":
        raise Conflict(f"Approval {approval.id!r} is {current.status}; it cannot be used.")
    return msgspec.structs.replace(current, status="used", state=None)


class MemoryApprovalStore:
    """Approvals in memory, for library use and tests. `clock` returns unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._approvals: dict[str, ApprovalRequest] = {}

    async def create(self, approval: ApprovalRequest) -> ApprovalRequest:
        if approval.id in self._approvals:
            raise Conflict(f"An approval {approval.id!r} already exists.")
        for pending in await self.list(status="pending", limit=len(self._approvals)):
            if is_same_request(pending, approval):
                return pending
        self._approvals[approval.id] = approval
        return approval

    async def get(self, id: str) -> ApprovalRequest:
        request = self._approvals.get(id)
        if request is None:
            raise approval_not_found(id)
        return request.as_of(self._clock())

    async def list(
        self,
        *,
        owner: str | None = None,
        session_id: str | None = None,
        status: ApprovalStatus | None = None,
        limit: int = 100,
    ) -> Sequence[ApprovalRequest]:
        now = self._clock()
        requests = [request.as_of(now) for request in reversed(self._approvals.values())]
        if session_id is not None:
            requests = [request for request in requests if request.session_id == session_id]
        elif owner is not None:
            requests = [request for request in requests if involves_owner(request, owner)]
        return [request for request in requests if status in (None, request.status)][:limit]

    async def find_approved(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        request_key = (owner, operation, input_hash, None, None)
        approved = await self.list(owner=owner, status="approved", limit=len(self._approvals))
        return next(
            (request for request in approved if request.request_key[: len(request_key)] == request_key), None
        )

    async def find_suspended(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        request_key = (owner, operation, input_hash, None)
        pending = await self.list(owner=owner, status="pending", limit=len(self._approvals))
        same = (request for request in pending if request.request_key[: len(request_key)] == request_key)
        return next((request for request in same if request.state is not None), None)

    async def answer(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        request = apply_answer(await self.get(id), approved=approved, by=by, reason=reason, now=self._clock())
        self._approvals[id] = request
        return request

    async def use(
        self, id: str, *, owner: str, operation: str, input_hash: str, tool_call_id: str | None = None
    ) -> ApprovalRequest:
        use = ApprovalUse(owner, operation, input_hash, tool_call_id)
        request = self._approvals[id] = apply_use(await self.get(id), use, now=self._clock())
        return request
