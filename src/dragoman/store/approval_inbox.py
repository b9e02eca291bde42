"""Approval requests as an inbox shows them: pages in either order, counts, and what was approved before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, or_, select, tuple_

from dragoman.operations.approval import ApprovalItem, ApprovalRequest, ApprovalStatus, involves_owner
from dragoman.store.approvals import IS_OPEN, has_status, to_approval
from dragoman.store.call_trees.roots import escape_like
from dragoman.store.connection import Compiler, DatabaseConnection, Params, Row, encode_json
from dragoman.store.database import Database
from dragoman.store.tables.core import approvals, calls, sessions

FIELDS = ApprovalRequest.__struct_fields__
MAX_COUNTED = 10_000
EARLIER = 200  # approved requests of an owner among which the last one of an operation is looked for
ApprovalPlace: TypeAlias = tuple[float, str]
"""`created_at` and `id` of the last request of a page."""


class InboxEntry(msgspec.Struct, frozen=True):
    """A request, with the title of its session, and what the policy decided about its call, as JSON text."""

    approval: ApprovalRequest
    session_title: str | None = None
    policy: str | None = None


class InboxPage(msgspec.Struct, frozen=True):
    """Requests in their order; `next` is where the next page begins, None where there is none."""

    entries: Sequence[InboxEntry]
    next: ApprovalPlace | None


class InboxQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are wanted: `owner` made the call or may answer. None does not restrict."""

    owner: str | None = None
    status: ApprovalStatus | None = None
    operation: str | None = None
    oldest_first: bool = False

    def params(self) -> dict[str, Any]:
        """Return what is set, as parameters of a statement."""
        found: dict[str, Any] = {}
        if self.owner is not None:
            named = f"%{escape_like(encode_json(self.owner) or '')}%"
            found |= {"owner": self.owner, "named": named}
        if self.operation is not None:
            item = f'"operation":{encode_json(self.operation)}'
            found |= {"operation": self.operation, "item": f"%{escape_like(item)}%"}
        return found


class InboxStatements:
    """The fixed SQL of `ApprovalInboxRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        columns = [approvals.c[name] for name in FIELDS]
        newest = (approvals.c.created_at.desc(), approvals.c.id.desc())
        found = select(*columns).order_by(*newest).limit(bindparam("limit")).offset(literal_column("0"))
        was_approved = approvals.c.status.in_([literal_column("'approved'"), literal_column("'used'")])
        self.earlier = compiler.compile(found.where(approvals.c.owner == bindparam("owner"), was_approved))
        self.of_call = compiler.compile(found.where(approvals.c.call_id == bindparam("call_id")))


class ApprovalInboxRepository:
    """Reads approval requests. One that was not answered or used in time reads as expired."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._compiled: dict[tuple[Any, ...], str] = {}

    async def page(
        self, query: InboxQuery, *, after: ApprovalPlace | None = None, limit: int = 100
    ) -> InboxPage:
        """Return a page of requests after a place, in the order of the query."""
        params = query.params() | {"limit": limit}
        if after is not None:
            params |= {"after_at": after[0], "after_id": after[1]}
        now = self._clock()
        if query.status in ("pending", "approved", "expired"):
            params["now"] = now
        sql = self._compile("page", query, params=params)
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        entries = [to_entry(row, now) for row in rows]
        last = entries[-1].approval if len(rows) == limit else None
        shown = [
            each for each in entries if query.owner is None or involves_owner(each.approval, query.owner)
        ]
        return InboxPage(shown, None if last is None else (last.created_at, last.id))

    async def count(self, query: InboxQuery, *, since: float) -> Mapping[str, int]:
        """Return how many requests since a time have each status, and how many of all are pending.

        At most MAX_COUNTED are counted.
        """
        counted = msgspec.structs.replace(query, status=None, operation=None)
        params = counted.params() | {"since": since, "now": self._clock()}
        sql = self._compile("count", counted, params=params)
        pending = msgspec.structs.replace(counted, status="pending")
        pending_params = pending.params() | {"now": params["now"]}
        pending_sql = self._compile("pending", pending, params=pending_params)

        def job(connection: DatabaseConnection) -> Mapping[str, int]:
            found = {str(status): int(count) for status, count in connection.fetch_all(sql, params)}
            row = connection.fetch_one(pending_sql, pending_params)
            return found | {"pending": 0 if row is None else int(row[0])}

        return await self._database.read(job)

    async def earlier(self, owner: str) -> Mapping[str, tuple[ApprovalRequest, ApprovalItem]]:
        """Return by operation the last approved request of an owner, among the last EARLIER ones."""
        params = {"owner": owner, "limit": EARLIER}
        sql = self._database.statements(InboxStatements).earlier
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        found: dict[str, tuple[ApprovalRequest, ApprovalItem]] = {}
        for approval in map(to_approval, rows):
            for item in approval.items:
                if item.question is None:
                    found.setdefault(item.operation, (approval, item))
        return found

    async def find_of_call(self, call_id: str) -> ApprovalRequest | None:
        """Return the last request for a call, as of now; None without one."""
        sql = self._database.statements(InboxStatements).of_call
        params = {"call_id": call_id, "limit": 1}
        row = await self._database.read(lambda connection: connection.fetch_one(sql, params))
        return None if row is None else to_approval(row).as_of(self._clock())

    def _compile(self, what: str, query: InboxQuery, *, params: Params) -> str:
        key = (what, query.status, query.oldest_first, *sorted(params))
        if key not in self._compiled:
            statement = {"page": select_page, "count": select_count, "pending": select_pending}[what]
            self._compiled[key] = self._database.compile(statement(query, params))
        return self._compiled[key]


def conditions(query: InboxQuery, params: Params) -> list[ColumnElement[bool]]:
    """Return the conditions of a query."""
    wanted: list[ColumnElement[bool]] = []
    if query.status is not None:
        wanted.append(has_status(query.status))
    if "owner" in params:
        is_answerer = approvals.c.answerers.like(bindparam("named"), escape="/")
        wanted.append(or_(approvals.c.owner == bindparam("owner"), is_answerer))
    if "operation" in params:
        is_item = approvals.c["items"].like(bindparam("item"), escape="/")
        wanted.append(or_(approvals.c.operation == bindparam("operation"), is_item))
    return wanted


def select_page(query: InboxQuery, params: Params) -> Select[Any]:
    place = (approvals.c.created_at, approvals.c.id)
    joined = approvals.outerjoin(sessions, sessions.c.id == approvals.c.session_id)
    joined = joined.outerjoin(calls, calls.c.id == approvals.c.call_id)
    found = select(*(approvals.c[name] for name in FIELDS), sessions.c.title, calls.c.policy)
    found = found.select_from(joined).where(*conditions(query, params))
    if "after_at" in params:
        after = tuple_(bindparam("after_at"), bindparam("after_id"))
        found = found.where(tuple_(*place) > after if query.oldest_first else tuple_(*place) < after)
    in_order = found.order_by(*(each.asc() if query.oldest_first else each.desc() for each in place))
    return in_order.limit(bindparam("limit")).offset(literal_column("0"))


def select_count(query: InboxQuery, params: Params) -> Select[Any]:
    is_late = IS_OPEN & (approvals.c.expires_at <= bindparam("now"))
    status = case((is_late, literal_column("'expired'")), else_=approvals.c.status).label("status")
    found = select(status).where(approvals.c.created_at >= bindparam("since"), *conditions(query, params))
    some = found.limit(literal_column(str(MAX_COUNTED))).offset(literal_column("0")).subquery()
    return select(some.c.status, func.count()).group_by(some.c.status)


def select_pending(query: InboxQuery, params: Params) -> Select[Any]:
    found = select(approvals.c.id).where(*conditions(query, params))
    some = found.limit(literal_column(str(MAX_COUNTED))).offset(literal_column("0")).subquery()
    return select(func.count()).select_from(some)


def to_entry(row: Row, now: float) -> InboxEntry:
    *fields, title, policy = row
    return InboxEntry(to_approval(tuple(fields)).as_of(now), title, policy)
