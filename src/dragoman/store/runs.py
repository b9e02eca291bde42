"""Runs in the store: begun in one transaction, one at a time in a session."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import bindparam, update

from dragoman.errors import Forbidden, NotFound, RunActive, StoreError, Unavailable
from dragoman.events import Usage
from dragoman.messages import Message
from dragoman.store.connection import (
    Compiler,
    Connection,
    Job,
    Params,
    Row,
    from_text,
    select_all,
    to_fields,
    to_params,
    to_text,
)
from dragoman.store.database import Database
from dragoman.store.messages import Messages
from dragoman.store.sessions import Session, Sessions
from dragoman.store.tables import RUNNING, runs, sessions

FinalStatus: TypeAlias = Literal["finished", "failed", "stopped", "interrupted"]
RunStatus: TypeAlias = Literal["running", FinalStatus]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, being made or made; `message_id` is the assistant's. `cost` is in US dollars."""

    id: str
    session_id: str
    message_id: str
    owner: str
    status: RunStatus = "running"
    finish_reason: str | None = None
    error: str | None = None
    agent: str | None = None
    model: str | None = None
    started_at: float
    finished_at: float | None = None
    steps: int = 0
    usage: Usage | None = None
    cost: float | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    status: FinalStatus
    finished_at: float
    finish_reason: str | None = None
    error: str | None = None
    steps: int = 0
    usage: Usage | None = None
    cost: float | None = None


class RunStatements:
    """The SQL of `Runs`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        found = select_all(Run, runs)
        this = runs.c.id == bindparam("id")
        here = runs.c.session_id == bindparam("session_id")
        unless_busy = compiler.insert(runs).on_conflict_do_nothing(
            index_elements=[runs.c.session_id], index_where=RUNNING
        )
        ended: dict[str, Any] = {name: bindparam(name) for name in Ending.__struct_fields__}
        self.insert = compiler.compile(unless_busy)
        self.get = compiler.compile(found.where(this))
        self.active = compiler.compile(found.where(here, RUNNING))
        self.list = compiler.compile(found.where(here).order_by(runs.c.started_at, runs.c.id))
        self.unfinished = compiler.compile(found.where(RUNNING).order_by(runs.c.started_at, runs.c.id))
        self.finish = compiler.compile(update(runs).where(this, RUNNING).values(ended))
        self.touch = compiler.compile(TOUCH)


class Runs:
    """The runs of all sessions."""

    def __init__(self, database: Database, *, sessions: Sessions, messages: Messages) -> None:
        self._database = database
        self._sessions = sessions
        self._messages = messages

    @cached_property
    def _sql(self) -> RunStatements:
        return self._database.statements(RunStatements)

    async def begin(
        self,
        run: Run,
        *,
        assistant: Message,
        user: Message | None = None,
        session: Session | None = None,
        drop_from: int | str | None = None,
    ) -> None:
        """Write down all that a run starts with, in one transaction, or nothing.

        `session` is created when there is none of its id; without it, the session must exist. `drop_from` is
        the position or the id of a message that goes, with all after it. `user` is added, then `assistant`;
        an `assistant` that is the last message already is kept, and its parts replaced when it brings some.
        Errors: RunActive, NotFound (no such session or message), Forbidden (the session is somebody else's),
        Conflict (a message's id is taken, or the assistant's message is not the last).
        """

        def job(connection: Connection) -> None:
            self._enter(connection, run, session=session)
            if drop_from is not None:
                self._messages.drop(connection, run.session_id, start=drop_from)
            if user is not None:
                self._messages.add(connection, run.session_id, message=user)
            self._messages.keep(connection, run.session_id, message=assistant)

        await self._database.write(job)

    async def finish(self, id: str, ending: Ending, *, also: Job[None] | None = None) -> bool:
        """Write how it ended, and with it do `also` (the last `put_parts`). False if it had ended before.

        While the database is down this raises, and is written once it is up again.
        """
        params = with_usage(ending) | {"id": id}

        def job(connection: Connection) -> bool:
            if also is not None:
                also(connection)
            return connection.run(self._sql.finish, params) > 0

        try:
            return await self._database.write(job)
        except (StoreError, Unavailable):
            self._database.owe(job)
            raise

    async def get(self, id: str) -> Run | None:
        """The run, or None."""
        found = await self._read(self._sql.get, {"id": id})
        return found[0] if found else None

    async def active(self, session_id: str) -> Run | None:
        """The run that the session is busy with, or None."""
        found = await self._read(self._sql.active, {"session_id": session_id})
        return found[0] if found else None

    async def list(self, session_id: str) -> Sequence[Run]:
        """The session's runs, the oldest first."""
        return await self._read(self._sql.list, {"session_id": session_id})

    async def unfinished(self) -> Sequence[Run]:
        """All runs marked as running, the oldest first: at start, those that a crash has cut off."""
        return await self._read(self._sql.unfinished, {})

    def _enter(self, connection: Connection, run: Run, *, session: Session | None) -> None:
        """Put the run's row into its session."""
        known = self._sessions.find(connection, run.session_id)
        if known is None:
            if session is None:
                raise NotFound(f"there is no session {run.session_id!r}")
            self._sessions.insert(connection, session)
        elif session is not None and session.owner != known.owner:
            raise Forbidden(f"session {run.session_id!r} belongs to somebody else")
        if not connection.run(self._sql.insert, with_usage(run)):
            active = connection.one(self._sql.active, {"session_id": run.session_id})
            raise RunActive(run.session_id, str(active[0]) if active else "unknown")
        connection.run(self._sql.touch, {"id": run.session_id, "updated_at": run.started_at})

    async def _read(self, sql: str, params: Params) -> Sequence[Run]:
        rows = await self._database.read(lambda connection: connection.all(sql, params))
        return [to_run(row) for row in rows]


TOUCH = update(sessions).where(sessions.c.id == bindparam("id")).values(updated_at=bindparam("updated_at"))


def with_usage(row: Run | Ending) -> dict[str, Any]:
    return to_params(row) | {"usage": to_text(row.usage)}


def to_run(row: Row) -> Run:
    fields = to_fields(Run, row)
    return Run(**fields | {"usage": from_text(fields["usage"], Usage)})
