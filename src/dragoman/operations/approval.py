"""Approvals: what somebody has to allow before it runs; bound to its arguments, good for one use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from dragoman.errors import BadRequest, Conflict, Forbidden, NotFound
from dragoman.identity import Identity
from dragoman.operations.access import require_owner

ApprovalStatus = Literal["pending", "approved", "denied", "expired", "used"]
OWNER = "owner"  # in `answerers`: whoever the call is for
DEFAULT_ANSWER = "yes"  # the answer to a question that was approved without a word
EXPIRED_REASON = "nobody answered in time"
MAX_ANSWER_LENGTH = 10_000  # characters of an answer, or of a reason


class Question(msgspec.Struct, frozen=True):
    """What a person is asked, and the answers that suggest themselves; others may be given too."""

    text: str
    options: tuple[str, ...] = ()


class ApprovalItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation that wants approval, with the arguments that it would get, and what the rule says.

    With a `question` it is an answer that is wanted. `agent` is whose model asks, where that is another
    agent than the one that the person talks to.
    """

    operation: str
    input: Any
    input_hash: str
    reason: str | None = None
    answerers: tuple[str, ...] | None = None
    expires: float | None = None
    question: Question | None = None
    agent: str | None = None


class SuspendedCall(msgspec.Struct, frozen=True):
    """A call within another one that waits for somebody's word, and what it had come to until then."""

    call_id: str
    items: tuple[ApprovalItem, ...]
    state: bytes | None = None


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for approval: of a call as a whole, that is of all `items` in it that want one.

    `operation`, `input` and `input_hash` are those of the call that was made (`hub.call`, or a pinned
    operation), `key_id` is the key that it was made with. `answerers` are the owners who may answer; the word
    `owner` stands for the call's own, and whoever has the scope `admin` always may. Times are unix seconds.
    `reason` is what was said to it; to a question, that is the answer. `state` is how far the call had come
    when it had to wait: it goes on from there, also when the answer is no.
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
        """What is asked, where it is no yes or no that is wanted."""
        return self.items[0].question if self.items else None

    @property
    def answer(self) -> str | None:
        """What was answered to the question, None where nothing was, or where there is none."""
        if self.question is None or self.status not in ("approved", "used"):
            return None
        return self.reason or DEFAULT_ANSWER

    @property
    def request_key(self) -> tuple[Any, ...]:
        """What makes it the same request as another one."""
        call = (self.owner, self.operation, self.input_hash, self.run_id, self.tool_call_id)
        return (*call, self.items, self.answerers)

    @property
    def is_open(self) -> bool:
        """Whether it can still be answered or used."""
        return self.status in ("pending", "approved")

    def as_of(self, now: float) -> ApprovalRequest:
        """As it is now: what was not answered, or not used, in time has expired."""
        if self.is_open and now >= self.expires_at:
            return msgspec.structs.replace(self, status="expired")
        return self


class Grant:
    """What was said to a call that waited, until it is taken: each of its items once.

    `text` is the reason that was given, or the answer to a question. With a `state` the call goes on from
    there, also when it was not `approved`. `call_id` is that of a call within another one.
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
        given = items if approved and state is None else ()
        self._unused = Counter((item.operation.lower(), item.input_hash) for item in given)

    @classmethod
    def from_approval(cls, approval: ApprovalRequest) -> Grant:
        """What an approval that was answered, or was not in time, stands for."""
        approved = approval.status in ("approved", "used")
        said = EXPIRED_REASON if approval.status == "expired" else approval.reason
        return cls(approval.items, approved=approved, text=said, state=approval.state)

    def for_nested_call(self, nested: SuspendedCall) -> Grant:
        """The same word for the call within, for whose sake the one above had to wait."""
        return Grant(
            nested.items,
            approved=self.approved,
            text=self.text,
            state=nested.state,
            call_id=nested.call_id,
        )

    def consume(self, operation: str, input_hash: str) -> bool:
        """Whether this call was approved; a second one like it was not."""
        if self.state is not None:
            return True  # it has begun already
        key = (operation.lower(), input_hash)
        if not self._unused[key]:
            return False
        self._unused[key] -= 1
        return True

    def covers(self, operation: str, input_hash: str) -> bool:
        """Whether take() would give it."""
        return self.state is not None or bool(self._unused[operation.lower(), input_hash])


class ApprovalUse(msgspec.Struct, frozen=True):
    """Who wants to use an approval up, and for which call."""

    owner: str
    operation: str
    input_hash: str
    tool_call_id: str | None = None


class ApprovalStore(Protocol):
    """Where approvals are kept."""

    async def create(self, approval: ApprovalRequest) -> ApprovalRequest:
        """Keep a request, and give back the one that is kept: where one `is_same_request` as it waits
        already, that one.

        Conflict when its id is taken.
        """
        ...

    async def get(self, id: str) -> ApprovalRequest:
        """The approval as it is now. NotFound."""
        ...

    async def list(
        self, *, owner: str | None = None, status: ApprovalStatus | None = None, limit: int = 100
    ) -> Sequence[ApprovalRequest]:
        """Approvals, the newest first: of all, or an owner's own and those that he may answer."""
        ...

    async def find_approved(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        """The newest approval that was given for this very call and can be used, None without any.

        For calls that belong to no run: what was approved in a run's tool call is for that one only.
        """
        ...

    async def answer(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer one. NotFound; Forbidden for who may not; Conflict when it is answered or has expired."""
        ...

    async def use(
        self, id: str, *, owner: str, operation: str, input_hash: str, tool_call_id: str | None = None
    ) -> ApprovalRequest:
        """Use an approval up: once, by whom it was given to, for the very same call.

        NotFound; Forbidden for another owner; Conflict for other arguments, for another tool call where both
        are known, or when it is not approved. One with a `state` is used up also when the answer was no, or
        none came in time.
        """
        ...

    async def purge(self, older_than: float) -> int:
        """Forget those of so many seconds ago that can be neither answered nor used any more; how many."""
        ...


def validate_answer(answer: str) -> str:
    """An answer that can be given to a question. BadRequest when it says nothing, or too much."""
    if not answer.strip():
        raise BadRequest("the answer is empty", field="answer", hint="say something, or decline")
    if len(answer) > MAX_ANSWER_LENGTH:
        said = f"an answer has {MAX_ANSWER_LENGTH:,} characters at most, this one {len(answer):,}"
        raise BadRequest(said, field="answer")
    return answer


def validate_reason(reason: str | None) -> str | None:
    """A reason, None where it says nothing. BadRequest when it is too long."""
    if reason is None or not reason.strip():
        return None
    if len(reason) > MAX_ANSWER_LENGTH:
        raise BadRequest(f"a reason has {MAX_ANSWER_LENGTH:,} characters at most, this one {len(reason):,}")
    return reason


def may_answer(approval: ApprovalRequest, by: Identity) -> bool:
    """Whether an identity may answer an approval. A key that is only for calling operations may not, whatever
    the door: it would approve its own calls.
    """
    if by.scopes and "admin" in by.scopes:
        return True
    if not by.may("chat"):
        return False
    named = {approval.owner if name == OWNER else name for name in approval.answerers}
    return by.owner in named


def is_same_request(first: ApprovalRequest, second: ApprovalRequest) -> bool:
    """Whether they ask the same people for the same call, of the same owner, run and tool call."""
    return first.request_key == second.request_key


def involves_owner(approval: ApprovalRequest, owner: str) -> bool:
    """Whether it is for a call of this owner's, or names him among those who may answer."""
    return owner == approval.owner or may_answer(approval, Identity(owner))


def apply_answer(
    approval: ApprovalRequest, *, approved: bool, by: Identity, reason: str | None, now: float
) -> ApprovalRequest:
    """The approval with its answer. Forbidden, Conflict."""
    current = approval.as_of(now)
    if not may_answer(approval, by):
        raise Forbidden(f"approval {approval.id!r} is not yours to answer")
    if current.status != "pending":
        raise Conflict(f"approval {approval.id!r} is {current.status} already; it takes one answer")
    return msgspec.structs.replace(
        current,
        status="approved" if approved else "denied",
        answered_at=now,
        answered_by=by.owner,
        reason=reason,
    )


def apply_use(approval: ApprovalRequest, use: ApprovalUse, *, now: float) -> ApprovalRequest:
    """The approval, used up. Forbidden, Conflict."""
    current = approval.as_of(now)
    require_owner(use.owner, current.owner, resource=f"approval {approval.id!r}")
    if (current.operation, current.input_hash) != (use.operation, use.input_hash):
        raise Conflict(f"approval {approval.id!r} is for another call, or for other arguments")
    if None not in (use.tool_call_id, current.tool_call_id) and use.tool_call_id != current.tool_call_id:
        raise Conflict(f"approval {approval.id!r} is for another tool call")
    if current.status in ("denied", "expired") and current.state is not None:
        return msgspec.structs.replace(approval, state=None)
    if current.status != "approved":
        raise Conflict(f"approval {approval.id!r} is {current.status}; it cannot be used")
    return msgspec.structs.replace(current, status="used", state=None)


class MemoryApprovalStore:
    """Approvals that are forgotten with the process. `clock` gives unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._approvals: dict[str, ApprovalRequest] = {}

    async def create(self, approval: ApprovalRequest) -> ApprovalRequest:
        if approval.id in self._approvals:
            raise Conflict(f"there is an approval {approval.id!r} already")
        for waiting in await self.list(status="pending", limit=len(self._approvals)):
            if is_same_request(waiting, approval):
                return waiting
        self._approvals[approval.id] = approval
        return approval

    async def get(self, id: str) -> ApprovalRequest:
        found = self._approvals.get(id)
        if found is None:
            raise NotFound(f"no approval {id!r}")
        return found.as_of(self._clock())

    async def list(
        self, *, owner: str | None = None, status: ApprovalStatus | None = None, limit: int = 100
    ) -> Sequence[ApprovalRequest]:
        now = self._clock()
        held = [each.as_of(now) for each in reversed(self._approvals.values())]
        kept = [e for e in held if status in (None, e.status) and (owner is None or involves_owner(e, owner))]
        return kept[:limit]

    async def find_approved(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        wanted = (owner, operation, input_hash, None, None)
        given = await self.list(owner=owner, status="approved", limit=len(self._approvals))
        return next((each for each in given if each.request_key[: len(wanted)] == wanted), None)

    async def answer(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        found = apply_answer(await self.get(id), approved=approved, by=by, reason=reason, now=self._clock())
        self._approvals[id] = found
        return found

    async def use(
        self, id: str, *, owner: str, operation: str, input_hash: str, tool_call_id: str | None = None
    ) -> ApprovalRequest:
        use = ApprovalUse(owner, operation, input_hash, tool_call_id)
        found = self._approvals[id] = apply_use(await self.get(id), use, now=self._clock())
        return found

    async def purge(self, older_than: float) -> int:
        now = self._clock()
        held = {id: each.as_of(now) for id, each in self._approvals.items()}
        gone = [id for id, each in held.items() if not each.is_open and each.created_at < now - older_than]
        for id in gone:
            del self._approvals[id]
        return len(gone)
