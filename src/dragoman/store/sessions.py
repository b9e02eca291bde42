"""Sessions in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, literal_column, select, tuple_, update

from dragoman.errors import BadRequest, Conflict, NotFound, RunActive
from dragoman.session_ids import client_session_id, hub_session_id
from dragoman.store.connection import Compiler, DatabaseConnection, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.tables import IS_RUNNING, approvals, artifacts, calls, runs, sessions

MAX_NAMED = 10  # sessions in an error
UPDATABLE = frozenset({"title", "agent", "model", "max_steps"})


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with an owner. None in agent, model or max_steps means the hub's configured default.

    `id` is the hub's id of it, see `session_ids.py`.
    """

    id: str
    owner: str
    title: str | None = None
    agent: str | None = None
    model: str | None = None
    max_steps: int | None = None
    created_at: float
    updated_at: float


def session_not_found(id: str) -> NotFound:
    """Return the error of a session that does not exist, and of one that the caller may not know of."""
    return NotFound(f"There is no session {id!r}.", hint="`dragoman sessions list` shows them")


def ambiguous_session(id: str, found: Sequence[Session]) -> BadRequest:
    """Return the error of a client's id that several owners use, for a caller who may read all of theirs."""
    named = ", ".join(f"{session.id!r} of {session.owner!r}" for session in found[:MAX_NAMED])
    return BadRequest(
        f"{len(found)} owners have a session {id!r}: {named}{', …' if len(found) > MAX_NAMED else ''}",
        field="id",
        hint="use the hub's id of the one that you mean",
    )


class SessionStatements:
    """The SQL of `SessionRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = sessions.c.id == bindparam("id")
        latest = sessions.c.updated_at, sessions.c.id
        every = select_fields(Session, sessions).order_by(*(column.desc() for column in latest))
        every = every.limit(bindparam("limit")).offset(literal_column("0"))
        page = every.where(sessions.c.owner == bindparam("owner"))
        earlier = tuple_(*latest) < tuple_(bindparam("updated_at"), bindparam("before"))
        changes: dict[str, Any] = {name: bindparam(name) for name in (*UPDATABLE, "updated_at")}
        active = select(runs.c.id).where(runs.c.session_id == bindparam("id"), IS_RUNNING)
        unless_there = compiler.insert(sessions).on_conflict_do_nothing(index_elements=["id"])
        found = select_fields(Session, sessions).where(this)
        self.insert = compiler.compile(unless_there)
        self.get = compiler.compile(found)
        self.get_locked = compiler.compile(found.with_for_update(key_share=True))
        self.lock_out = compiler.compile(select(sessions.c.id).where(this).with_for_update())
        self.page = compiler.compile(page)
        self.next_page = compiler.compile(page.where(earlier))
        self.page_of_all = compiler.compile(every)
        self.next_page_of_all = compiler.compile(every.where(earlier))
        self.owners = compiler.compile(select(sessions.c.owner).distinct().order_by(sessions.c.owner))
        self.update = compiler.compile(update(sessions).where(this).values(changes))
        self.delete = compiler.compile(delete(sessions).where(this))
        self.delete_related = [
            compiler.compile(delete(table).where(table.c.session_id == bindparam("id")))
            for table in (calls, approvals, artifacts)
        ]
        self.active = compiler.compile(active)


class SessionRepository:
    """The sessions of all owners. Access checks are the caller's (`operations/access.py`)."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> SessionStatements:
        return self._database.statements(SessionStatements)

    async def create(self, session: Session) -> None:
        """Insert a session. Raises Conflict when its id is taken."""

        def job(connection: DatabaseConnection) -> None:
            if self.find_own(connection, session.id, owner=session.owner) or not self.insert(
                connection, session
            ):
                raise Conflict(f"session {client_session_id(session.id)!r} already exists")

        await self._database.write(job)

    async def get(self, id: str) -> Session | None:
        """Return the session with this id of the hub's, or None."""
        return await self._database.read(lambda connection: self.find(connection, id))

    async def get_own(self, id: str, *, owner: str) -> Session | None:
        """Return the owner's session that its client or the hub calls `id`, or None."""
        return await self._database.read(lambda connection: self.find_own(connection, id, owner=owner))

    async def get_of_any_owner(self, id: str) -> Session | None:
        """Return the session that the hub calls `id`, or the only one that a client calls so; or None.

        BadRequest when the clients of several owners have such a session.
        """

        def query(connection: DatabaseConnection) -> Session | None:
            session = self.find(connection, id)
            if session is not None:
                return session
            ids = [hub_session_id(id, owner=owner) for (owner,) in connection.fetch_all(self._sql.owners, {})]
            found = [session for each in ids if (session := self.find(connection, each))]
            if len(found) > 1:
                raise ambiguous_session(id, found)
            return found[0] if found else None

        return await self._database.read(query)

    async def list(
        self, owner: str | None, *, limit: int = 50, before: str | None = None
    ) -> Sequence[Session]:
        """Return the owner's sessions, or all sessions for None, the last changed first.

        With `before`, a session's id, return those that follow it. NotFound when it does not exist.
        """
        sql = self._sql
        first, following = (
            (sql.page_of_all, sql.next_page_of_all) if owner is None else (sql.page, sql.next_page)
        )
        params: dict[str, Any] = {"limit": limit, **({} if owner is None else {"owner": owner})}

        def query(connection: DatabaseConnection) -> Sequence[Session]:
            if before is None:
                return [to_struct(Session, row) for row in connection.fetch_all(first, params)]
            last = self.find(connection, before)
            if last is None:
                raise NotFound(f"There is no session {before!r} to continue the list from.")
            bounds = {"updated_at": last.updated_at, "before": before}
            return [to_struct(Session, row) for row in connection.fetch_all(following, params | bounds)]

        return await self._database.read(query)

    async def owners(self) -> Sequence[str]:
        """Return everybody who has a session, in alphabetical order."""
        return await self._database.read(
            lambda connection: [owner for (owner,) in connection.fetch_all(self._sql.owners, {})]
        )

    async def update(self, id: str, **fields: str | int | None) -> Session:
        """Change a session's title, agent, model or max_steps; return it. Raises NotFound."""
        if unknown := fields.keys() - UPDATABLE:
            raise TypeError(f"{min(unknown)!r} of a session cannot be changed")

        def job(connection: DatabaseConnection) -> Session:
            session = self.lock(connection, id)
            if session is None:
                raise NotFound(f"there is no session {id!r}")
            changed = msgspec.structs.replace(session, **fields, updated_at=self._clock())
            connection.execute(self._sql.update, to_params(changed))
            return changed

        return await self._database.write(job)

    async def delete(self, id: str) -> bool:
        """Delete a session with its messages, runs, calls, approvals and artifacts. Usage records stay.

        Returns False when it does not exist. Raises RunActive.
        """

        def job(connection: DatabaseConnection) -> bool:
            connection.fetch_one(self._sql.lock_out, {"id": id})  # no run begins from here on
            if active := connection.fetch_one(self._sql.active, {"id": id}):
                raise RunActive(id, active[0])
            for sql in self._sql.delete_related:
                connection.execute(sql, {"id": id})
            return connection.execute(self._sql.delete, {"id": id}) > 0

        return await self._database.write(job)

    def find_own(self, connection: DatabaseConnection, id: str, *, owner: str) -> Session | None:
        """In a job: return the owner's session that its client or the hub calls `id`, or None."""
        hub_id = hub_session_id(id, owner=owner)
        for each in (hub_id, client_session_id(hub_id)):  # some have only one id
            session = self.find(connection, each)
            if session is not None and session.owner == owner:
                return session
        return None

    def find(self, connection: DatabaseConnection, id: str) -> Session | None:
        """In a job: return the session, or None."""
        row = connection.fetch_one(self._sql.get, {"id": id})
        return to_struct(Session, row) if row else None

    def lock(self, connection: DatabaseConnection, id: str) -> Session | None:
        """In a job: return the session, or None. Other transactions cannot change it until this one ends."""
        row = connection.fetch_one(self._sql.get_locked, {"id": id})
        return to_struct(Session, row) if row else None

    def insert(self, connection: DatabaseConnection, session: Session) -> bool:
        """In a job: insert a session; False when its id is taken."""
        return connection.execute(self._sql.insert, to_params(session)) > 0
