"""Deletes a session that a caller no longer wants; a long one in small transactions, as retention does.

SQLite has one writer: deleting tens of thousands of messages at once, or copying those that forks share,
would make all others wait for seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from typing import TypeVar

from sqlalchemy import ColumnElement, bindparam, delete, literal_column, select

from dragoman.errors import Conflict
from dragoman.identity import Identity
from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.database import Database
from dragoman.store.hub_events import SESSION_DELETED
from dragoman.store.retention import RELATED, Retention
from dragoman.store.sessions.sessions import SessionRepository, session_event
from dragoman.store.tables.core import approvals, artifacts, calls, sessions, team_tasks

T = TypeVar("T")
MAX_AT_ONCE = 500  # rows of a table that one transaction deletes


class SessionDeletionStatements:
    """The SQL of `SessionDeletion`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        most: ColumnElement[int] = literal_column(str(MAX_AT_ONCE))
        one: ColumnElement[int] = literal_column("1")
        this = sessions.c.id == bindparam("id")
        self.further = [
            compiler.compile(
                select(table.c.id).where(table.c.session_id == bindparam("id")).limit(one).offset(most)
            )
            for table in RELATED
        ]
        self.lock_out = compiler.compile(select(sessions.c.id).where(this).with_for_update())
        self.delete_tasks, *related = (
            compiler.compile(delete(table).where(table.c.session_id == bindparam("id")))
            for table in (team_tasks, calls, approvals, artifacts)
        )
        self.delete = [*related, compiler.compile(delete(sessions).where(this))]


class SessionDeletion:
    """Deletes sessions with their messages, runs, calls and other rows."""

    def __init__(self, database: Database, sessions: SessionRepository, *, retention: Retention) -> None:
        self._database = database
        self._sessions = sessions
        self._retention = retention

    @cached_property
    def _sql(self) -> SessionDeletionStatements:
        return self._database.statements(SessionDeletionStatements)

    async def delete(self, id: str, *, by: Identity | None = None, cut_off: float | None = None) -> bool:
        """Delete a session with its messages, runs, calls, approvals and artifacts. Raises RunActive.

        Usage records and messages that forks share stay. `cut_off`: delete it only if it `is_cut_off` at that
        time. Returns False if there is no such session.
        The first transaction takes a long session, or one whose messages others share, from its owner, and
        inserts the event. If the process ends before the last transaction, retention deletes the rest.
        """

        def is_long(connection: DatabaseConnection) -> bool:
            return any(connection.fetch_one(sql, {"id": id}) for sql in self._sql.further)

        begin = partial(
            self._begin, id=id, by=by, cut_off=cut_off, in_steps=await self._database.read(is_long)
        )
        left = await self._database.write(begin)
        if left is None:
            return False
        self._sessions.events.on_stored()
        for each in left:
            await self._retention.delete_hidden(each)
        return True

    async def finish(self, id: str) -> bool:
        """Wait until a session that is being deleted is gone; return False for any other session.

        It does the rest itself, as a crash may have interrupted the deletion.
        """
        if not await self._retention.is_hidden(id):
            return False
        await self._retention.delete_hidden(id)
        return True

    async def make_room(self, id: str, create: Callable[[], Awaitable[T]]) -> T:
        """Return what `create` returns. After a Conflict, finish the session's deletion and call it again."""
        try:
            return await create()
        except Conflict:
            await self.finish(id)  # its deletion may also have ended since
            return await create()

    def _begin(
        self,
        connection: DatabaseConnection,
        id: str,
        *,
        by: Identity | None,
        cut_off: float | None,
        in_steps: bool,
    ) -> Sequence[str] | None:
        """In a job: hide a session, or delete it at once; None if it is not there or not cut off.

        Return the hidden sessions, which are to be deleted: itself, or those that were kept for it.
        """
        connection.fetch_one(self._sql.lock_out, {"id": id})  # no run begins from here on
        self._sessions.refuse_active(connection, id)
        session = self._sessions.find(connection, id)
        if session is None or (cut_off is not None and not session.is_cut_off(cut_off)):
            return None
        shared = self._retention.shared_messages(connection, id)
        self._sessions.events.insert(connection, session_event(SESSION_DELETED, session, by=by))
        connection.execute(self._sql.delete_tasks, {"id": id})
        if in_steps or shared.is_shared():
            self._retention.hide(connection, id)
            return [id]
        ancestors = shared.ancestors()
        for sql in self._sql.delete:
            connection.execute(sql, {"id": id})
        self._sessions.events.delete_of_session(connection, id)
        return self._retention.hide_unused(connection, ancestors)
