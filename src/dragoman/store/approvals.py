"""Approvals in the store: what waits for somebody's word; an answer and a use are each taken once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Update, bindparam, delete, insert, literal_column, or_, update

from dragoman.errors import Conflict, NotFound
from dragoman.identity import Identity
from dragoman.operations.approval import (
    ApprovalItem,
    ApprovalRequest,
    ApprovalStatus,
    ApprovalUse,
    apply_answer,
    apply_use,
    involves_owner,
)
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
from dragoman.store.tables import IS_RUNNING, approvals, calls

REQUEST_COLUMNS = ("owner", "operation", "input_hash", "run_id", "tool_call_id", "items", "answerers")
ANSWER_COLUMNS = ("status", "answered_at", "answered_by", "reason", "state")
STATUSES: tuple[ApprovalStatus, ...] = ("pending", "approved", "denied", "expired", "used")
IS_LIVE = approvals.c.expires_at > bindparam("now")
IS_OPEN = approvals.c.status.in_([literal_column("'pending'"), literal_column("'approved'")])
IS_CLOSED = or_(~IS_OPEN, ~IS_LIVE)


class ApprovalStatements:
    """The SQL of `ApprovalRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = approvals.c.id == bindparam("id")
        newest = select_fields(ApprovalRequest, approvals)
        newest = newest.order_by(approvals.c.created_at.desc(), approvals.c.id.desc())
        newest = newest.limit(bindparam("limit")).offset(literal_column("0"))
        alike = [approvals.c[name].is_not_distinct_from(bindparam(name)) for name in REQUEST_COLUMNS]
        of_call = [approvals.c[name] == bindparam(name) for name in ("owner", "operation", "input_hash")]
        outside = approvals.c.run_id.is_(None), approvals.c.tool_call_id.is_(None)
        changes: dict[str, Any] = {name: bindparam(name) for name in ANSWER_COLUMNS}
        changed = update(approvals).where(this).values(changes)
        known = approvals.c.answerers.like(bindparam("named"), escape="/")
        seen = or_(approvals.c.owner == bindparam("owner"), known)
        old = approvals.c.created_at < bindparam("since")
        self.insert = compiler.compile(insert(approvals))
        self.suspend_call = compiler.compile(suspend_call())
        self.get = compiler.compile(select_fields(ApprovalRequest, approvals).where(this))
        self.find_pending = compiler.compile(newest.where(*alike, has_status("pending")))
        self.find_approved = compiler.compile(newest.where(*of_call, *outside, has_status("approved")))
        self.update_live = compiler.compile(changed.where(approvals.c.status == bindparam("before"), IS_LIVE))
        self.update_state = compiler.compile(changed.where(approvals.c.state.is_not(None)))
        self.purge = compiler.compile(delete(approvals).where(old, IS_CLOSED))
        said = approvals.c.status.in_([literal_column("'approved'"), literal_column("'denied'")])
        of_run = approvals.c.run_id.is_not(None) & (approvals.c.answered_at >= bindparam("since"))
        over = approvals.c.expires_at.between(bindparam("since"), bindparam("now"))
        unfinished = IS_OPEN | approvals.c.state.is_not(None)
        settled = select_fields(ApprovalRequest, approvals).where(or_(said & of_run, over & unfinished))
        asked = select_fields(ApprovalRequest, approvals).where(
            approvals.c.session_id == bindparam("session_id"), approvals.c.run_id == bindparam("run_id")
        )
        self.list_for_run = compiler.compile(asked.order_by(approvals.c.created_at, approvals.c.id))
        self.list_settled = compiler.compile(settled.order_by(approvals.c.created_at, approvals.c.id))
        self.list_by = {
            (status, mine): compiler.compile(
                newest.where(*([has_status(status)] if status else []), *([seen] if mine else []))
            )
            for status in (None, *STATUSES)
            for mine in (False, True)
        }


class ApprovalRepository:
    """The approvals of all owners. What was not answered, or not used, in time is told as expired."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> ApprovalStatements:
        return self._database.statements(ApprovalStatements)

    async def create(self, approval: ApprovalRequest) -> ApprovalRequest:
        """Keep a request; gives back the one that waits for the same already, if there is one. Conflict.

        Its call waits from the same moment on, so that a crash leaves nobody asked about what is over.
        """
        params = to_row(approval)

        def job(connection: DatabaseConnection) -> ApprovalRequest:
            alike = {name: params[name] for name in REQUEST_COLUMNS}
            waiting = connection.fetch_one(
                self._sql.find_pending, {**alike, "now": self._clock(), "limit": 1}
            )
            if waiting is not None:
                return to_approval(waiting)
            connection.execute(self._sql.insert, params)
            if approval.call_id is not None:
                connection.execute(self._sql.suspend_call, {"call_id": approval.call_id})
            return approval

        return await self._database.write(job)

    async def get(self, id: str) -> ApprovalRequest:
        """The approval as it is now. NotFound."""
        return await self._database.read(lambda connection: self._load(connection, id, now=self._clock()))

    async def list(
        self, *, owner: str | None = None, status: ApprovalStatus | None = None, limit: int = 100
    ) -> Sequence[ApprovalRequest]:
        """Approvals, the newest first: of all, or an owner's own and those that he may answer."""
        now = self._clock()
        params: dict[str, Any] = {"now": now, "limit": limit}
        if owner is not None:
            params |= {"owner": owner, "named": f"%{escape_like(encode_json(owner) or '')}%"}
        sql = self._sql.list_by[status, owner is not None]
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        found = [to_approval(row).as_of(now) for row in rows]
        return [each for each in found if owner is None or involves_owner(each, owner)]

    async def list_settled(self, since: float) -> Sequence[ApprovalRequest]:
        """Those that something may follow from, the oldest first.

        They were answered since then, for a run, and are not used; or they expired since then.
        """
        params = {"since": since, "now": self._clock()}
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list_settled, params)
        )
        return [to_approval(row).as_of(params["now"]) for row in rows]

    async def list_for_run(self, session_id: str, run_id: str) -> Sequence[ApprovalRequest]:
        """All that was asked in a run, the oldest first."""
        now, params = self._clock(), {"session_id": session_id, "run_id": run_id}
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list_for_run, params)
        )
        return [to_approval(row).as_of(now) for row in rows]

    async def find_approved(self, *, owner: str, operation: str, input_hash: str) -> ApprovalRequest | None:
        """The newest approval that was given for this very call, of no run, and can be used."""
        call = {"owner": owner, "operation": operation, "input_hash": input_hash}
        params = {**call, "now": self._clock(), "limit": 1}
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.find_approved, params)
        )
        return None if row is None else to_approval(row)

    async def answer(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest:
        """Answer one. NotFound; Forbidden for who may not; Conflict when it is answered or has expired."""
        return await self._transition(
            id, lambda found, now: apply_answer(found, approved=approved, by=by, reason=reason, now=now)
        )

    async def use(
        self, id: str, *, owner: str, operation: str, input_hash: str, tool_call_id: str | None = None
    ) -> ApprovalRequest:
        """Use an approval up: once, by whom it was given to, for the very same call.

        NotFound; Forbidden for another owner; Conflict for another call, or when it is not approved.
        """
        use = ApprovalUse(owner, operation, input_hash, tool_call_id)
        return await self._transition(id, lambda found, now: apply_use(found, use, now=now))

    async def purge(self, older_than: float) -> int:
        """Forget those of so many seconds ago that can be neither answered nor used any more; how many."""
        now = self._clock()
        params = {"since": now - older_than, "now": now}
        return await self._database.write(lambda connection: connection.execute(self._sql.purge, params))

    async def _transition(
        self, id: str, transition: Callable[[ApprovalRequest, float], ApprovalRequest]
    ) -> ApprovalRequest:
        """Read, judge and write in one transaction; the row is written only if it still is what was read."""

        def job(connection: DatabaseConnection) -> ApprovalRequest:
            now = self._clock()
            found = self._load(connection, id, now=now)
            changed = transition(found, now)
            fields = {name: getattr(changed, name) for name in ANSWER_COLUMNS}
            params = {**fields, "id": id, "before": found.status, "now": now}
            if found.status in ("denied", "expired"):
                del params["before"], params["now"]
            sql = self._sql.update_live if "before" in params else self._sql.update_state
            if not connection.execute(sql, params):
                raise Conflict(f"approval {id!r} was answered or used by somebody else just now")
            return changed

        return await self._database.write(job)

    def _load(self, connection: DatabaseConnection, id: str, *, now: float) -> ApprovalRequest:
        row = connection.fetch_one(self._sql.get, {"id": id})
        if row is None:
            raise NotFound(f"no approval {id!r}")
        return to_approval(row).as_of(now)


def has_status(status: ApprovalStatus) -> ColumnElement[bool]:
    """Whether an approval has this status at the moment `now`."""
    kept = approvals.c.status == literal_column(f"'{status}'")
    match status:
        case "pending" | "approved":
            return kept & IS_LIVE
        case "expired":
            return kept | (IS_OPEN & ~IS_LIVE)
        case "denied" | "used":
            return kept


def suspend_call() -> Update:
    """Have a call wait that is under way."""
    running = update(calls).where(calls.c.id == bindparam("call_id"), IS_RUNNING)
    return running.values(status=literal_column("'pending'"))


def to_row(approval: ApprovalRequest) -> dict[str, Any]:
    """The approval as parameters."""
    kept = {name: encode_json(getattr(approval, name)) for name in ("input", "items", "answerers")}
    return to_params(approval) | kept


def to_approval(row: Row) -> ApprovalRequest:
    """The approval in a row of `select_fields`."""
    fields = to_fields(ApprovalRequest, row)
    fields["input"] = decode_json(fields["input"])
    fields["items"] = decode_json(fields["items"], tuple[ApprovalItem, ...])
    fields["answerers"] = decode_json(fields["answerers"], tuple[str, ...])
    return ApprovalRequest(**fields)


def escape_like(text: str) -> str:
    """The text for LIKE with the escape `/`."""
    for sign in "/%_":
        text = text.replace(sign, f"/{sign}")
    return text
