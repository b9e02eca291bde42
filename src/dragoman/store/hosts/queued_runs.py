"""Messages that wait for the run of their session to end, in the database. A row's id becomes its run's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)

from dragoman.errors import Conflict, LimitReached
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    DatabaseJob,
    Params,
    Row,
    select_fields,
    to_fields,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.sessions.sessions import Session, SessionRepository, require_unchanged_owner
from dragoman.store.tables.core import IS_QUEUED, queued_runs, runs, sessions

QueueMode: TypeAlias = Literal["interrupt", "steer", "queue"]
QueueStatus: TypeAlias = Literal["queued", "withdrawn", "failed"]
RANKS: dict[QueueMode, int] = {"interrupt": 0, "steer": 1, "queue": 2}
MAX_LISTED = 1_000


class QueuedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits, or that was withdrawn or could not be answered.

    `body` is JSON of the request: the message, the agent, the model, the tools. Those of a session are
    answered by `rank`, then in the order in which they came.
    """

    id: str
    session_id: str
    owner: str
    key_id: str | None = None
    message_id: str
    mode: QueueMode
    rank: int
    status: QueueStatus = "queued"
    body: str
    background: bool = False
    webhook: str | None = None
    created_at: float
    ended_at: float | None = None
    error: str | None = None

    @property
    def run_id(self) -> str:
        """The id of the run to be."""
        return self.id


class FreeSession(NamedTuple):
    """A session without an active run in which something waits, since `created_at`."""

    session_id: str
    created_at: float


OLDEST = FreeSession("", 0.0)
"""Before every free session."""


class QueueLimits(msgspec.Struct, frozen=True):
    """How many messages may wait in a session, and of an owner."""

    session: int = 20
    owner: int = 500


class QueuedRunStatements:
    """The SQL of `QueuedRunRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        found = select_fields(QueuedRun, queued_runs)
        this = queued_runs.c.id == bindparam("id")
        here = queued_runs.c.session_id == bindparam("session_id")
        owned = queued_runs.c.owner == bindparam("owner")
        zero: ColumnElement[int] = literal_column("0")
        order = queued_runs.c.rank, queued_runs.c.created_at, queued_runs.c.id
        waiting = found.where(here, IS_QUEUED).order_by(*order)
        is_busy = exists().where(runs.c.session_id == queued_runs.c.session_id, IS_RUNNING_RUN)
        session_id, since = queued_runs.c.session_id, func.min(queued_runs.c.created_at)
        is_later, is_as_old = since > bindparam("since"), since == bindparam("since")
        is_behind = or_(is_later, and_(is_as_old, session_id > bindparam("session_id")))
        free = select(session_id, since).where(IS_QUEUED, ~is_busy).group_by(session_id).having(is_behind)
        free = free.order_by(since, session_id)
        count = select(func.count()).select_from(queued_runs)
        newest = found.order_by(queued_runs.c.created_at.desc(), queued_runs.c.id.desc())
        unless_there = compiler.insert(queued_runs).on_conflict_do_nothing(
            index_elements=[queued_runs.c.session_id, queued_runs.c.message_id], index_where=IS_QUEUED
        )
        ending: dict[str, Any] = {name: bindparam(name) for name in ("status", "ended_at", "error")}
        used = update(sessions).where(sessions.c.id == bindparam("id"))
        self.touch_session = compiler.compile(used.values(updated_at=bindparam("updated_at")))
        self.insert = compiler.compile(unless_there)
        self.get = compiler.compile(found.where(this))
        self.of_message = compiler.compile(
            found.where(here, queued_runs.c.message_id == bindparam("message_id"), IS_QUEUED)
        )
        self.list = compiler.compile(waiting.limit(literal_column(str(MAX_LISTED))).offset(zero))
        self.first = compiler.compile(waiting.limit(literal_column("1")).offset(zero))
        self.free = compiler.compile(free.limit(bindparam("limit")).offset(zero))
        self.sessions = compiler.compile(select(session_id).where(IS_QUEUED).distinct())
        self.count_session = compiler.compile(count.where(here, IS_QUEUED))
        self.count_owner = compiler.compile(count.where(owned, IS_QUEUED))
        self.list_all = compiler.compile(newest.where(IS_QUEUED).limit(bindparam("limit")).offset(zero))
        self.list_owned = compiler.compile(
            newest.where(owned, IS_QUEUED).limit(bindparam("limit")).offset(zero)
        )
        self.delete = compiler.compile(delete(queued_runs).where(this, IS_QUEUED))
        self.end = compiler.compile(update(queued_runs).where(this, IS_QUEUED).values(ending))
        self.end_session = compiler.compile(update(queued_runs).where(here, IS_QUEUED).values(ending))
        self.purge = compiler.compile(delete(queued_runs).where(queued_runs.c.ended_at < bindparam("before")))


IS_RUNNING_RUN = runs.c.status == literal_column("'running'")


class QueuedRunRepository:
    """The queues of all sessions."""

    def __init__(self, database: Database, *, sessions: SessionRepository) -> None:
        self._database = database
        self._sessions = sessions

    @cached_property
    def _sql(self) -> QueuedRunStatements:
        return self._database.statements(QueuedRunStatements)

    async def add(
        self,
        queued: QueuedRun,
        *,
        session: Session | None,
        limits: QueueLimits,
        extra_job: DatabaseJob[None] | None = None,
    ) -> QueuedRun:
        """Queue a message; return it, or the one that waits already with its id.

        `session` is created if it does not exist; otherwise it counts as used now. `extra_job` is run in the
        same transaction when the message is queued. Raises LimitReached, Conflict for another content,
        SessionDeleted.
        """
        sql = self._sql

        def job(connection: DatabaseConnection) -> QueuedRun:
            stored = self._sessions.lock_any(connection, queued.session_id)
            if session is not None and stored is None:
                self._sessions.insert(connection, session)
            elif session is not None and stored is not None:
                require_unchanged_owner(session, stored)
            params = {"session_id": queued.session_id, "message_id": queued.message_id}
            row = connection.fetch_one(sql.of_message, params)
            if row is not None:
                return require_same(to_queued(row), queued)
            owned = {"owner": queued.owner}
            check_count(connection, (sql.count_session, params), limit=limits.session, place="the session")
            check_count(connection, (sql.count_owner, owned), limit=limits.owner, place="their owner")
            if extra_job is not None:
                extra_job(connection)
            connection.execute(sql.insert, to_params(queued))
            connection.execute(
                sql.touch_session, {"id": queued.session_id, "updated_at": self._sessions.now()}
            )
            return queued

        return await self._database.write(job)

    async def get(self, id: str) -> QueuedRun | None:
        """Return a row that waits, or has ended without a run; None when its run has begun."""
        return await self._read_one(self._sql.get, {"id": id})

    async def first(self, session_id: str) -> QueuedRun | None:
        """Return the session's next message."""
        return await self._read_one(self._sql.first, {"session_id": session_id})

    async def find(self, session_id: str, message_id: str) -> QueuedRun | None:
        """Return the waiting row of a message."""
        return await self._read_one(
            self._sql.of_message, {"session_id": session_id, "message_id": message_id}
        )

    async def list(self, session_id: str) -> Sequence[QueuedRun]:
        """Return the messages that wait in a session, in the order in which they are answered."""
        return await self._read(self._sql.list, {"session_id": session_id})

    async def list_page(self, *, owner: str | None, limit: int) -> Sequence[QueuedRun]:
        """Return the waiting messages of an owner, or of all owners for None, newest first."""
        sql = self._sql.list_all if owner is None else self._sql.list_owned
        return await self._read(sql, {"limit": limit, **({} if owner is None else {"owner": owner})})

    async def free_sessions(self, limit: int, *, after: FreeSession = OLDEST) -> Sequence[FreeSession]:
        """Return the sessions in which messages wait while no run is active, the longest waiting first."""
        params = {"limit": limit, "session_id": after.session_id, "since": after.created_at}
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.free, params))
        return [FreeSession(row[0], row[1]) for row in rows]

    async def sessions(self) -> Sequence[str]:
        """Return all sessions in which messages wait."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.sessions, {}))
        return [row[0] for row in rows]

    def claim_job(self, id: str) -> DatabaseJob[None]:
        """Return a job that takes a message out of the queue, in the transaction that begins its run.

        It raises Conflict when the message was withdrawn, or its run has begun.
        """
        sql = self._sql.delete

        def job(connection: DatabaseConnection) -> None:
            if not connection.execute(sql, {"id": id}):
                raise Conflict(f"the queued run {id!r} has begun, or was withdrawn")

        return job

    async def end(self, id: str, status: QueueStatus, *, at: float, error: str | None = None) -> bool:
        """Take a message out of the queue without a run. False when it does not wait."""
        params = {"id": id, "status": status, "ended_at": at, "error": error}
        return await self._database.write(lambda connection: connection.execute(self._sql.end, params) > 0)

    async def withdraw_all(self, session_id: str, *, at: float) -> None:
        """Withdraw all messages that wait in a session."""
        params = {"session_id": session_id, "status": "withdrawn", "ended_at": at, "error": None}
        await self._database.write(lambda connection: connection.execute(self._sql.end_session, params))

    async def purge(self, *, before: float) -> None:
        """Delete the rows that were withdrawn or failed before this unix time."""
        await self._database.write(lambda connection: connection.execute(self._sql.purge, {"before": before}))

    async def _read_one(self, sql: str, params: Params) -> QueuedRun | None:
        found = await self._read(sql, params)
        return found[0] if found else None

    async def _read(self, sql: str, params: Params) -> Sequence[QueuedRun]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_queued(row) for row in rows]


def to_queued(row: Row) -> QueuedRun:
    fields = to_fields(QueuedRun, row)
    return QueuedRun(**fields | {"background": bool(fields["background"])})


def require_same(stored: QueuedRun, queued: QueuedRun) -> QueuedRun:
    """Return the stored row of the same request. Raises Conflict for another content."""
    if stored.body != queued.body:
        raise Conflict(
            f"message {queued.message_id!r} waits already, with another content",
            hint=f"withdraw it with DELETE /api/sessions/{{id}}/queue/{stored.id}",
        )
    return stored


def check_count(connection: DatabaseConnection, query: tuple[str, Params], *, limit: int, place: str) -> None:
    """Raise LimitReached when so many messages wait."""
    row = connection.fetch_one(*query)
    if row is not None and row[0] >= limit:
        raise LimitReached(f"{row[0]} messages of {place} wait already, the maximum", retry_after=1.0)
