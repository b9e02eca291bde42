"""Events of sessions and hosts in the database: what clients follow, and what the audit log shows.

An event is written in the transaction of the change that it reports, so that neither exists without the
other. It is read by its position. Where several hosts write to one Postgres, ids are not in the order of
commits: a reader would miss a row that is committed after one with a higher id. There a position begins with
the id of the transaction, and rows are read once no earlier transaction is open.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Integer,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    text,
    tuple_,
    update,
)

from dragoman.errors import BadRequest
from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob, Params, Row
from dragoman.store.database import Database
from dragoman.store.tables.core import hub_events, sessions

POSITION = re.compile(r"(?:([0-9]{1,19})\.)?([0-9]{1,19})")
LARGEST_ID = 2**63 - 1
PAGE = 500  # rows of one query
FEW = 50  # events that are read in the thread of the event loop
PURGED_ROWS = 500  # rows of one transaction that deletes
CURRENT_TRANSACTION = "txid_current()"
FIRST_OPEN_TRANSACTION = "txid_snapshot_xmin(txid_current_snapshot())"
NEXT_TRANSACTION = "txid_snapshot_xmax(txid_current_snapshot())"
SESSION_DELETED = "session.deleted"  # the event that outlives its session
COLUMNS = ("xid", "id", "session_id", "owner", "name", "data", "created_at", "actor", "key_id")


class EventPosition(msgspec.Struct, frozen=True, order=True):
    """The place of an event among all; `xid` is 0 on SQLite. Its text is what clients know as the id."""

    xid: int = 0
    id: int = 0

    def __str__(self) -> str:
        return f"{self.xid}.{self.id}" if self.xid else str(self.id)

    @classmethod
    def parse(cls, text: str) -> EventPosition:
        """Parse the id of an event. Raises BadRequest."""
        found = POSITION.fullmatch(text.strip())
        numbers = (int(found[1] or 0), int(found[2])) if found is not None else (LARGEST_ID + 1,)
        if max(numbers) > LARGEST_ID:
            raise BadRequest(f"{text[:40]!r} is not the id of an event", field="after")
        return cls(*numbers)


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be written. `data` is JSON text of an object; `actor` is the owner who did it.

    `owner` counts where there is no session: an event of a session is its owner's.
    """

    name: str
    owner: str
    session_id: str | None = None
    data: str = "{}"
    actor: str | None = None
    key_id: str | None = None


class HubEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a session of `owner`, or to the hub (owner ""). `data` is JSON.

    Without a `position` it was not stored, and only those who were following have it.
    """

    name: str
    owner: str
    created_at: float
    data: msgspec.Raw
    position: EventPosition | None = None
    session_id: str | None = None
    actor: str | None = None
    key_id: str | None = None


class EventPage(msgspec.Struct, frozen=True):
    """Events in their order; `is_last` when there were no more."""

    events: Sequence[HubEvent]
    is_last: bool


class HubEventStatements:
    """The SQL of `HubEventRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        is_postgres = compiler.name == "postgresql"
        table = hub_events.c
        xid: ColumnElement[int] = literal_column(CURRENT_TRANSACTION if is_postgres else "0", Integer)
        values: dict[str, Any] = {name: bindparam(name) for name in COLUMNS[2:]}
        session_owner = select(sessions.c.owner).where(sessions.c.id == bindparam("session_id"))
        values["owner"] = func.coalesce(session_owner.scalar_subquery(), bindparam("owner"))
        self.insert = compiler.compile(compiler.insert(hub_events).values(xid=xid, **values))
        found = select(*(table[name] for name in COLUMNS))
        order = (table.xid, table.id) if is_postgres else (table.id,)
        is_committed = (
            table.xid < text(FIRST_OPEN_TRANSACTION) if is_postgres else table.id > literal_column("0")
        )
        first: ColumnElement[int] = literal_column("0")
        limit: ColumnElement[int] = bindparam("limit")
        after: ColumnElement[bool] = table.id > bindparam("after_id")
        if is_postgres:
            after = tuple_(table.xid, table.id) > tuple_(bindparam("after_xid"), bindparam("after_id"))
        before: ColumnElement[bool] = table.id < bindparam("before_id")
        if is_postgres:
            before = tuple_(table.xid, table.id) < tuple_(bindparam("before_xid"), bindparam("before_id"))
        of_session = table.session_id == bindparam("session_id")
        forward = found.where(after, is_committed).order_by(*order).limit(limit).offset(first)
        newest = (
            found.where(is_committed).order_by(*(each.desc() for each in order)).limit(limit).offset(first)
        )
        acted = newest.where(of_session, table.actor.is_not(None))
        self.list = compiler.compile(forward)
        self.list_session = compiler.compile(forward.where(of_session))
        self.newest = compiler.compile(newest)
        self.oldest = compiler.compile(found.order_by(*order).limit(limit).offset(first))
        self.audit = compiler.compile(acted)
        self.audit_before = compiler.compile(acted.where(before))
        oldest = select(table.id, table.created_at).order_by(table.id)
        self.list_ages = compiler.compile(oldest.limit(limit).offset(first))
        self.last_id = compiler.compile(select(func.max(table.id)))
        self.delete_until = compiler.compile(delete(hub_events).where(table.id <= bindparam("until")))
        is_last = table.id == literal_column("(SELECT max(id) FROM hub_events)")
        tells_deletion = table.name == literal_column(f"'{SESSION_DELETED}'")
        self.delete_session = compiler.compile(
            delete(hub_events).where(of_session, ~is_last, ~tells_deletion)
        )
        last_deletion = select(func.max(table.id)).where(of_session, tells_deletion).scalar_subquery()
        self.delete_old_deletions = compiler.compile(
            delete(hub_events).where(of_session, tells_deletion, table.id < last_deletion)
        )
        foreign = table.xid >= text(NEXT_TRANSACTION) if is_postgres else table.xid > literal_column("0")
        self.adopt = compiler.compile(update(hub_events).where(foreign).values(xid=literal_column("0")))


class HubEventRepository:
    """The events of all sessions. Who may see them is the caller's concern."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self.on_stored: Callable[[], None] = do_nothing
        """Called after events were committed by this process."""

    @cached_property
    def _sql(self) -> HubEventStatements:
        return self._database.statements(HubEventStatements)

    def insert(self, connection: DatabaseConnection, event: NewEvent) -> None:
        """In a job: write an event. Call `on_stored` once the job is committed."""
        connection.execute_batched(self._sql.insert, self._to_params(event))

    def submit(self, event: NewEvent) -> asyncio.Future[None]:
        """Write an event of its own; the future is done once it is committed. Raises Unavailable."""
        params = self._to_params(event)
        written = self._database.submit(
            lambda connection: connection.execute_batched(self._sql.insert, params)
        )
        written.add_done_callback(self._on_written)
        return written

    def _on_written(self, written: asyncio.Future[None]) -> None:
        if not written.cancelled() and written.exception() is None:
            self.on_stored()

    def _to_params(self, event: NewEvent) -> dict[str, Any]:
        return msgspec.structs.asdict(event) | {"created_at": self._clock()}

    async def list(
        self, after: EventPosition, *, session_id: str | None = None, limit: int = PAGE
    ) -> EventPage:
        """Return the first events after a position, of all sessions or of one."""
        params = {"after_xid": after.xid, "after_id": after.id, "limit": limit}
        if session_id is None:
            return await self._read(self._sql.list, params)
        return await self._read(self._sql.list_session, params | {"session_id": session_id})

    async def list_few(self, after: EventPosition) -> EventPage:
        """Return the first events after a position, at most `FEW`; on SQLite in the event loop's thread."""
        params = {"after_xid": after.xid, "after_id": after.id, "limit": FEW}
        rows = await self._database.read_by_key(
            lambda connection: connection.fetch_all(self._sql.list, params)
        )
        return to_page(rows, params)

    async def last_position(self) -> EventPosition:
        """Return the position of the last event."""
        return await self._position(self._sql.newest)

    async def first_position(self) -> EventPosition:
        """Return the position of the oldest event that is stored."""
        return await self._position(self._sql.oldest)

    async def audit(
        self, session_id: str, *, before: EventPosition | None = None, limit: int = 100
    ) -> Sequence[HubEvent]:
        """Return what somebody did in a session, the newest first."""
        params: dict[str, Any] = {"session_id": session_id, "limit": limit}
        if before is None:
            return (await self._read(self._sql.audit, params)).events
        params |= {"before_xid": before.xid, "before_id": before.id}
        return (await self._read(self._sql.audit_before, params)).events

    async def adopt(self) -> None:
        """Give events that were copied from another Postgres server positions before those of this one."""
        await self._database.write(lambda connection: connection.execute(self._sql.adopt, {}))

    async def purge(self, *, cutoff: float = 0.0, max_rows: int | None = None) -> int:
        """Delete the oldest events: those before `cutoff`, and those above `max_rows`. Return how many.

        In transactions of at most PURGED_ROWS rows.
        """
        deleted = 0
        while (count := await self._database.submit(self._purge_job(cutoff, max_rows), is_long=True)) > 0:
            deleted += count
        return deleted

    def _purge_job(self, cutoff: float, max_rows: int | None) -> DatabaseJob[int]:
        def job(connection: DatabaseConnection) -> int:
            row = connection.fetch_one(self._sql.last_id, {})
            last = 0 if row is None else row[0] or 0
            surplus_until = 0 if max_rows is None else last - max_rows
            until = 0
            for id, created_at in connection.fetch_all(self._sql.list_ages, {"limit": PURGED_ROWS}):
                if id == last or (created_at >= cutoff and id > surplus_until):
                    break  # SQLite would use the last id again
                until = id
            return connection.execute(self._sql.delete_until, {"until": until}) if until else 0

        return job

    def delete_of_session(self, connection: DatabaseConnection, session_id: str) -> None:
        """In a job: delete the events of a session, but the one of its deletion.

        The last event of all stays, too: SQLite would use its id again.
        """
        connection.execute(self._sql.delete_session, {"session_id": session_id})
        self.delete_old_deletions(connection, session_id)

    def delete_old_deletions(self, connection: DatabaseConnection, session_id: str) -> None:
        """In a job: delete the events of earlier deletions of a session with this id."""
        connection.execute(self._sql.delete_old_deletions, {"session_id": session_id})

    async def _position(self, sql: str) -> EventPosition:
        page = await self._read(sql, {"limit": 1})
        first = page.events[0].position if page.events else None
        return first or EventPosition()

    async def _read(self, sql: str, params: Params) -> EventPage:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return to_page(rows, params)


def to_page(rows: Sequence[Row], params: Params) -> EventPage:
    """Return the events in rows; they are the last when there are fewer than the limit."""
    return EventPage([to_event(row) for row in rows], is_last=len(rows) < params["limit"])


def to_event(row: Row) -> HubEvent:
    """Return the event in a row of `COLUMNS`."""
    xid, id, session_id, owner, name, data, created_at, actor, key_id = row
    return HubEvent(
        name=name,
        owner=owner,
        created_at=created_at,
        data=msgspec.Raw(data.encode()),
        position=EventPosition(xid, id),
        session_id=session_id,
        actor=actor,
        key_id=key_id,
    )


def do_nothing() -> None:
    """Nobody follows events."""
