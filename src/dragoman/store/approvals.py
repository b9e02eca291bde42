"""Approval requests in the database; each is answered at most once and used at most once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Update, bindparam, insert, literal_column, or_, update

from dragoman.errors import Conflict
from dragoman.identity import Identity
from dragoman.operations.approval import (
    ApprovalItem,
    ApprovalRequest,
    ApprovalStatus,
    ApprovalUse,
    apply_answer,
    apply_use,
    approval_not_found,
    involves_owner,
)
from dragoman.store.call_trees.roots import escape_like
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Row,
    decode_json,
    encode_json,
    select_fields,
    to_fields,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.hub_events import NewEvent
from dragoman.store.sessions.sessions import SessionRepository
from dragoman.store.tables.core import IS_RUNNING, approvals, calls

REQUEST_COLUMNS = ("owner", "operation", "input_hash", "run_id", "tool_call_id", "items", "answerers")
ANSWER_COLUMNS = ("status", "answered_at", "answered_by", "reason", "state")
STATUSES: tuple[ApprovalStatus, ...] = ("pending", "approved", "denied", "expired", "used")
ListScope: TypeAlias = Literal["all", "owner", "session"]
IS_LIVE = approvals.c.expires_at > bindparam("now")
IS_OPEN = approvals.c.status.in_([literal_column("'pending'"), literal_column("'approved'")])


class ApprovalStatements:
    """The SQL of `ApprovalRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = approvals.c.id == bindparam("id")
        newest = select_fields(ApprovalRequest, approvals)
        newest = newest.order_by(approvals.c.created_at.desc(), approvals.c.id.desc())
        newest = newest.limit(bindparam("limit")).offset(literal_column("0"))
        same_request = [approvals.c[name].is_not_distinct_from(bindparam(name)) for name in REQUEST_COLUMNS]
        same_call = [approvals.c[name] == bindparam(name) for name in ("owner", "operation", "input_hash")]
        without_run = approvals.c.run_id.is_(None), approvals.c.tool_call_id.is_(None)
        changes: dict[str, Any] = {name: bindparam(name) for name in ANSWER_COLUMNS}
        answer = update(approvals).where(this).values(changes)
        is_answerer = approvals.c.answerers.like(bindparam("named"), escape="/")
        concerns_owner = or_(approvals.c.owner == bindparam("owner"), is_answerer)
        self.insert = compiler.compile(insert(approvals))
        self.suspend_call = compiler.compile(suspend_call())
        self.get = compiler.compile(select_fields(ApprovalRequest, approvals).where(this))
        self.find_pending = compiler.compile(newest.where(*same_request, has_status("pending")))
        self.find_approved = compiler.compile(newest.where(*same_call, *without_run, has_status("approved")))
        is_suspended = approvals.c.run_id.is_(None), approvals.c.state.is_not(None)
        self.find_suspended = compiler.compile(newest.where(*same_call, *is_suspended, has_status("pending")))
        self.update_live = compiler.compile(answer.where(approvals.c.status == bindparam("before"), IS_LIVE))
        self.end = compiler.compile(
            update(approvals).where(this, IS_OPEN, IS_LIVE).values(expires_at=bindparam("now"))
        )
        self.update_state = compiler.compile(answer.where(approvals.c.state.is_not(None)))
        is_answered = approvals.c.status.in_([literal_column("'approved'"), literal_column("'denied'")])
        of_run = approvals.c.run_id.is_not(None) & (approvals.c.answered_at >= bindparam("since"))
        has_expired = approvals.c.expires_at.between(bindparam("since"), bindparam("now"))
        unfinished = IS_OPEN | approvals.c.state.is_not(None)
        settled = select_fields(ApprovalRequest, approvals).where(
            or_(is_answered & of_run, has_expired & unfinished)
        )
        in_run = select_fields(ApprovalRequest, approvals).where(
            approvals.c.session_id == bindparam("session_id"), approvals.c.run_id == bindparam("run_id")
        )
        self.list_for_run = compiler.compile(in_run.order_by(approvals.c.created_at, approvals.c.id))
        self.list_settled = compiler.compile(settled.order_by(approvals.c.created_at, approvals.c.id))
        of_session = approvals.c.session_id == bindparam("session_id")
        scopes: dict[ListScope, list[ColumnElement[bool]]] = {
            "all": [],
            "owner": [concerns_owner],
            "session": [of_session],
        }
        self.list_by = {
            (status, scope): compiler.compile(
                newest.where(*([has_status(status)] if status else []), *conditions)
            )
            for status in (None, *STATUSES)
            for scope, conditions in scopes.items()
        }


class Transition(Protocol):
    """Returns the request as it is afterwards. `is_participant`: who answers may write in its session."""

    def __call__(
        self, approval: ApprovalRequest, now: float, /, *, is_participant: bool
    ) -> ApprovalRequest: ...


class ApprovalRepository:
    """The approval requests of all owners. One that was not answered or used in time reads as expired."""

    def __init__(
        self, database: Database, *, clock: Callable[[], float], sessions: SessionRepository
    ) -> None:
        """`clock` says when requests expire."""
        self.clock = clock
        self._database = database
        self._clock = clock
        self._sessions = sessions
        self._events = sessions.events

    @cached_property
    def _sql(self) -> ApprovalStatements:
        return self._database.statements(ApprovalStatements)

    async def create(self, approval: ApprovalRequest) -> ApprovalRequest:
        """Insert a request and return it, or return the pending one that asks for the same. Raises Conflict.

        The same transaction marks the call as pending, so that after a crash no request is pending for a call
        that is over.
        """
        params = to_row(approval)

        def job(connection: DatabaseConnection) -> ApprovalRequest:
            same_request = {name: params[name] for name in REQUEST_COLUMNS}
            connection.lock(f"approval {approval.owner} {approval.operation} {approval.input_hash}")
            pending = connection.fetch_one(
                self._sql.find_pending, {**same_request, "now": self._clock(), "limit": 1}
            )
            if pending is not None:
                return to_approval(pending)
            connection.execute(self._sql.insert, params)
            if approval.call_id is not None:
                connection.execute_batched(self._sql.suspend_call, {"call_id": approval.call_id})
            self._events.insert(connection, approval_event("approval.requested", approval))
            return approval

        created = await self._database.write(job)
        self._events.on_stored()
        return created

    async def get(self, id: str) -> ApprovalRequest:
        """Return the approval as of now. Raises NotFound."""
        return await self._database.read(lambda connection: self._load(connection, id, now=self._clock()))

    async def list(
        self,
        *,
        owner: str | None = None,
        session_id: str | None = None,
        status: ApprovalStatus | None = None,
        limit: int = 100,
    ) -> Sequence[ApprovalRequest]:
        """Return approvals, newest first: all, those of a session, or those that an owner requested or may
        answer.
        """
        now = self._clock()
        params: dict[str, Any] = {"now": now, "limit": limit}
        scope: ListScope = "all"
        if session_id is not None:
            scope, params["session_id"] = "session", session_id
        elif owner is not None:
            scope = "owner"
            params |= {"owner": owner, "named": f"%{escape_like(encode_json(owner) or '')}%"}
        sql = self._sql.list_by[status, scope]
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        found = [to_approval(row).as_of(now) for row in rows]
        return [each for each in found if scope != "owner" or involves_owner(each, owner or "")]

    async def list_settled(self, since: float) -> Sequence[ApprovalRequest]:
        """Return the approvals that a run may have to continue for, oldest first.

        They were answered for a run after `since` (unix seconds) and are unused, or expired after it.
        """
        params = {"since": since, "now": self._clock()}
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list_settled, params)
        )
        return [to_approval(row).as_of(params["now"]) for row in rows]

    async def end(self, id: str) -> None:
        """Make a request expire now, if it is pending or approved."""
        params = {"id": id, "now": self._clock()}
        await self._database.write(lambda connection: connection.execute(self._sql.end, params))

    async def list_for_run(self, session_id: str, run_id: str) -> Sequence[ApprovalRequest]:
        """Return all approvals that a run requested, oldest first."""
        now, params = self._clock(), {"session_id": session_id, "run_id": run_id}
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list_for_run, params)
        )
        return [to_approval(row).as_of(now) for row in rows]

    async def find_approved(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        """Return the newest usable approval of exactly this call outside any run, or None."""
        call = {"owner": owner, "operation": operation, "input_hash": input_hash}
        return await self._find_of_call(self._sql.find_approved, call)

    async def find_suspended(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        """Return the newest pending request of exactly this call, suspended outside of runs, or None."""
        call = {"owner": owner, "operation": operation, "input_hash": input_hash}
        return await self._find_of_call(self._sql.find_suspended, call)

    async def _find_of_call(self, sql: str, call: dict[str, str]) -> ApprovalRequest | None:
        params = {**call, "now": self._clock(), "limit": 1}
        row = await self._database.read_by_key(lambda connection: connection.fetch_one(sql, params))
        return None if row is None else to_approval(row)

    async def answer(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer a request. Raises NotFound, Forbidden, or Conflict when it is answered or expired."""

        def transition(found: ApprovalRequest, now: float, *, is_participant: bool) -> ApprovalRequest:
            return apply_answer(
                found, approved=approved, by=by, reason=reason, now=now, is_participant=is_participant
            )

        return await self._transition(id, transition, by=by)

    async def use(
        self, id: str, *, owner: str, operation: str, input_hash: str, tool_call_id: str | None = None
    ) -> ApprovalRequest:
        """Use an approval: once, by its owner, for exactly its call.

        Raises NotFound, Forbidden for another owner, Conflict for another call or an unapproved request.
        """
        use = ApprovalUse(owner, operation, input_hash, tool_call_id)
        return await self._transition(id, lambda found, now, **_: apply_use(found, use, now=now))

    async def _transition(
        self,
        id: str,
        transition: Transition,
        *,
        by: Identity | None = None,
    ) -> ApprovalRequest:
        """Read, check and write in one transaction. Raises Conflict if the status changed in between.

        `by` is who answers; `transition` is told whether they take part in the session of the request.
        """

        def job(connection: DatabaseConnection) -> ApprovalRequest:
            now = self._clock()
            found = self._load(connection, id, now=now)
            is_participant = by is not None and self._may_write(connection, found, by=by)
            changed = transition(found, now, is_participant=is_participant)
            fields = {name: getattr(changed, name) for name in ANSWER_COLUMNS}
            params = {**fields, "id": id, "before": found.status, "now": now}
            if found.status in ("denied", "expired"):
                del params["before"], params["now"]
            sql = self._sql.update_live if "before" in params else self._sql.update_state
            if not connection.execute(sql, params):
                raise Conflict(f"approval {id!r} was answered or used by another request at the same time")
            if by is not None:
                self._events.insert(connection, approval_event("approval.answered", changed, by=by))
            return changed

        changed = await self._database.write(job)
        self._events.on_stored()
        return changed

    def _may_write(self, connection: DatabaseConnection, approval: ApprovalRequest, *, by: Identity) -> bool:
        """In a job: return whether somebody may send messages to the session of a request."""
        id, sessions = approval.session_id, self._sessions
        if id is None or not by.may("chat"):
            return False
        session = sessions.find(connection, id)
        if session is None:
            return False
        return session.owner == by.owner or sessions.grants.allows(connection, id, caller=by, role="write")

    def _load(self, connection: DatabaseConnection, id: str, *, now: float) -> ApprovalRequest:
        row = connection.fetch_one(self._sql.get, {"id": id})
        if row is None:
            raise approval_not_found(id)
        return to_approval(row).as_of(now)


def has_status(status: ApprovalStatus) -> ColumnElement[bool]:
    """Return the condition that an approval has this status at the time `now`."""
    stored = approvals.c.status == literal_column(f"'{status}'")
    match status:
        case "pending" | "approved":
            return stored & IS_LIVE
        case "expired":
            return stored | (IS_OPEN & ~IS_LIVE)
        case "denied" | "used":
            return stored


def approval_event(name: str, approval: ApprovalRequest, *, by: Identity | None = None) -> NewEvent:
    """Return the event of a request, or of its answer. What it is about is read by its id."""
    question = approval.question
    body = {
        "approvalId": approval.id,
        "status": approval.status,
        "operation": approval.operation,
        "runId": approval.run_id,
        "callId": approval.call_id,
        "toolCallId": approval.tool_call_id,
        "question": question is not None,
        "answeredBy": approval.answered_by,
        "expiresAt": approval.expires_at,
    }
    return NewEvent(
        name=name,
        owner=approval.owner,
        session_id=approval.session_id,
        data=msgspec.json.encode(body).decode(),
        actor=None if by is None else by.owner,
        key_id=None if by is None else by.key_id,
    )


def suspend_call() -> Update:
    """Return the statement that marks a running call as pending."""
    running = update(calls).where(calls.c.id == bindparam("call_id"), IS_RUNNING)
    return running.values(status=literal_column("'pending'"))


def to_row(approval: ApprovalRequest) -> dict[str, Any]:
    """Return an approval as statement parameters."""
    encoded = {name: encode_json(getattr(approval, name)) for name in ("input", "items", "answerers")}
    return to_params(approval) | encoded


def to_approval(row: Row) -> ApprovalRequest:
    """Return the approval in a row of `select_fields`."""
    fields = to_fields(ApprovalRequest, row)
    fields["input"] = decode_json(fields["input"])
    fields["items"] = decode_json(fields["items"], tuple[ApprovalItem, ...])
    fields["answerers"] = decode_json(fields["answerers"], tuple[str, ...])
    return ApprovalRequest(**fields)
