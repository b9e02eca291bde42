"""Approvals in the store: what waits for somebody's word; an answer and a use are each taken once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Update, bindparam, delete, insert, literal_column, or_, update

from dragoman.errors import Conflict, NotFound
from dragoman.operations.approval import (
    Approval,
    ApprovalStatus,
    Item,
    Use,
    answered,
    concerns,
    used,
)
from dragoman.operations.identity import Identity
from dragoman.store.connection import (
    Compiler,
    Connection,
    Row,
    from_text,
    select_all,
    to_fields,
    to_params,
    to_text,
)
from dragoman.store.database import Database
from dragoman.store.tables import RUNNING, approvals, calls

SAME = ("owner", "operation", "input_hash", "run_id", "tool_call_id", "items", "answerers")
CHANGED = ("status", "answered_at", "answered_by", "reason", "state")
STATUSES: tuple[ApprovalStatus, ...] = ("pending", "approved", "denied", "expired", "used")
LIVE = approvals.c.expires_at > bindparam("now")
OPEN = approvals.c.status.in_([literal_column("'pending'"), literal_column("'approved'")])
OVER = or_(~OPEN, ~LIVE)


class ApprovalStatements:
    """The SQL of `Approvals`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = approvals.c.id == bindparam("id")
        newest = select_all(Approval, approvals)
        newest = newest.order_by(approvals.c.created_at.desc(), approvals.c.id.desc())
        newest = newest.limit(bindparam("limit")).offset(literal_column("0"))
        alike = [approvals.c[name].is_not_distinct_from(bindparam(name)) for name in SAME]
        of_call = [approvals.c[name] == bindparam(name) for name in ("owner", "operation", "input_hash")]
        outside = approvals.c.run_id.is_(None), approvals.c.tool_call_id.is_(None)
        changes: dict[str, Any] = {name: bindparam(name) for name in CHANGED}
        changed = update(approvals).where(this).values(changes)
        known = approvals.c.answerers.like(bindparam("named"), escape="/")
        seen = or_(approvals.c.owner == bindparam("owner"), known)
        old = approvals.c.created_at < bindparam("since")
        self.insert = compiler.compile(insert(approvals))
        self.suspend = compiler.compile(suspend())
        self.get = compiler.compile(select_all(Approval, approvals).where(this))
        self.waiting = compiler.compile(newest.where(*alike, is_now("pending")))
        self.given = compiler.compile(newest.where(*of_call, *outside, is_now("approved")))
        self.change = compiler.compile(changed.where(approvals.c.status == bindparam("before"), LIVE))
        self.give_up = compiler.compile(changed.where(approvals.c.state.is_not(None)))
        self.purge = compiler.compile(delete(approvals).where(old, OVER))
        said = approvals.c.status.in_([literal_column("'approved'"), literal_column("'denied'")])
        of_run = approvals.c.run_id.is_not(None) & (approvals.c.answered_at >= bindparam("since"))
        over = approvals.c.expires_at.between(bindparam("since"), bindparam("now"))
        unfinished = OPEN | approvals.c.state.is_not(None)
        settled = select_all(Approval, approvals).where(or_(said & of_run, over & unfinished))
        asked = select_all(Approval, approvals).where(
            approvals.c.session_id == bindparam("session_id"), approvals.c.run_id == bindparam("run_id")
        )
        self.asked = compiler.compile(asked.order_by(approvals.c.created_at, approvals.c.id))
        self.settled = compiler.compile(settled.order_by(approvals.c.created_at, approvals.c.id))
        self.lists = {
            (status, mine): compiler.compile(
                newest.where(*([is_now(status)] if status else []), *([seen] if mine else []))
            )
            for status in (None, *STATUSES)
            for mine in (False, True)
        }


class Approvals:
    """The approvals of all owners. What was not answered, or not used, in time is told as expired."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> ApprovalStatements:
        return self._database.statements(ApprovalStatements)

    async def ask(self, approval: Approval) -> Approval:
        """Keep a request; gives back the one that waits for the same already, if there is one. Conflict.

        Its call waits from the same moment on, so that a crash leaves nobody asked about what is over.
        """
        params = to_row(approval)

        def job(connection: Connection) -> Approval:
            alike = {name: params[name] for name in SAME}
            waiting = connection.one(self._sql.waiting, {**alike, "now": self._clock(), "limit": 1})
            if waiting is not None:
                return to_approval(waiting)
            connection.run(self._sql.insert, params)
            if approval.call_id is not None:
                connection.run(self._sql.suspend, {"call_id": approval.call_id})
            return approval

        return await self._database.write(job)

    async def get(self, id: str) -> Approval:
        """The approval as it is now. NotFound."""
        return await self._database.read(lambda connection: self._find(connection, id, now=self._clock()))

    async def list(
        self, *, owner: str | None = None, status: ApprovalStatus | None = None, limit: int = 100
    ) -> Sequence[Approval]:
        """Approvals, the newest first: of all, or an owner's own and those that he may answer."""
        now = self._clock()
        params: dict[str, Any] = {"now": now, "limit": limit}
        if owner is not None:
            params |= {"owner": owner, "named": f"%{escaped(to_text(owner) or '')}%"}
        sql = self._sql.lists[status, owner is not None]
        rows = await self._database.read(lambda connection: connection.all(sql, params))
        found = [to_approval(row).at(now) for row in rows]
        return [each for each in found if owner is None or concerns(each, owner)]

    async def settled(self, since: float) -> Sequence[Approval]:
        """Those that something may follow from, the oldest first.

        They were answered since then, for a run, and are not used; or they expired since then.
        """
        params = {"since": since, "now": self._clock()}
        rows = await self._database.read(lambda connection: connection.all(self._sql.settled, params))
        return [to_approval(row).at(params["now"]) for row in rows]

    async def of_run(self, session_id: str, run_id: str) -> Sequence[Approval]:
        """All that was asked in a run, the oldest first."""
        now, params = self._clock(), {"session_id": session_id, "run_id": run_id}
        rows = await self._database.read(lambda connection: connection.all(self._sql.asked, params))
        return [to_approval(row).at(now) for row in rows]

    async def find(self, *, owner: str, operation: str, input_hash: str) -> Approval | None:
        """The newest approval that was given for this very call, of no run, and can be used."""
        call = {"owner": owner, "operation": operation, "input_hash": input_hash}
        params = {**call, "now": self._clock(), "limit": 1}
        row = await self._database.read(lambda connection: connection.one(self._sql.given, params))
        return None if row is None else to_approval(row)

    async def answer(self, id: str, *, approved: bool, by: Identity, reason: str | None = None) -> Approval:
        """Answer one. NotFound; Forbidden for who may not; Conflict when it is answered or has expired."""
        return await self._move(
            id, lambda found, now: answered(found, approved=approved, by=by, reason=reason, now=now)
        )

    async def use(
        self, id: str, *, owner: str, operation: str, input_hash: str, tool_call_id: str | None = None
    ) -> Approval:
        """Use an approval up: once, by whom it was given to, for the very same call.

        NotFound; Forbidden for another owner; Conflict for another call, or when it is not approved.
        """
        use = Use(owner, operation, input_hash, tool_call_id)
        return await self._move(id, lambda found, now: used(found, use, now=now))

    async def purge(self, older_than: float) -> int:
        """Forget those of so many seconds ago that can be neither answered nor used any more; how many."""
        now = self._clock()
        params = {"since": now - older_than, "now": now}
        return await self._database.write(lambda connection: connection.run(self._sql.purge, params))

    async def _move(self, id: str, change: Callable[[Approval, float], Approval]) -> Approval:
        """Read, judge and write in one transaction; the row is written only if it still is what was read."""

        def job(connection: Connection) -> Approval:
            now = self._clock()
            found = self._find(connection, id, now=now)
            changed = change(found, now)
            fields = {name: getattr(changed, name) for name in CHANGED}
            params = {**fields, "id": id, "before": found.status, "now": now}
            if found.status in ("denied", "expired"):
                del params["before"], params["now"]
            sql = self._sql.change if "before" in params else self._sql.give_up
            if not connection.run(sql, params):
                raise Conflict(f"approval {id!r} was answered or used by somebody else just now")
            return changed

        return await self._database.write(job)

    def _find(self, connection: Connection, id: str, *, now: float) -> Approval:
        row = connection.one(self._sql.get, {"id": id})
        if row is None:
            raise NotFound(f"no approval {id!r}")
        return to_approval(row).at(now)


def is_now(status: ApprovalStatus) -> ColumnElement[bool]:
    """Whether an approval has this status at the moment `now`."""
    kept = approvals.c.status == literal_column(f"'{status}'")
    match status:
        case "pending" | "approved":
            return kept & LIVE
        case "expired":
            return kept | (OPEN & ~LIVE)
        case "denied" | "used":
            return kept


def suspend() -> Update:
    """Have a call wait that is under way."""
    running = update(calls).where(calls.c.id == bindparam("call_id"), RUNNING)
    return running.values(status=literal_column("'pending'"))


def to_row(approval: Approval) -> dict[str, Any]:
    """The approval as parameters."""
    kept = {name: to_text(getattr(approval, name)) for name in ("input", "items", "answerers")}
    return to_params(approval) | kept


def to_approval(row: Row) -> Approval:
    """The approval in a row of `select_all`."""
    fields = to_fields(Approval, row)
    fields["input"] = from_text(fields["input"])
    fields["items"] = from_text(fields["items"], tuple[Item, ...])
    fields["answerers"] = from_text(fields["answerers"], tuple[str, ...])
    return Approval(**fields)


def escaped(text: str) -> str:
    """The text for LIKE with the escape `/`."""
    for sign in "/%_":
        text = text.replace(sign, f"/{sign}")
    return text
