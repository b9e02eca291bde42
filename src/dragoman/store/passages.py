"""Passages: the words of messages as they are searched. They are made when somebody searches, not before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from sqlalchemy import ColumnElement, Select, Table, bindparam, case, delete, func, literal_column, select
from sqlalchemy.dialects.sqlite import Insert

from dragoman.errors import DragomanError
from dragoman.messages import decode_part
from dragoman.operations.history import Indexing
from dragoman.operations.spoken import spoken
from dragoman.store.connection import Compiler, Connection, Row
from dragoman.store.database import Database
from dragoman.store.full_text import CREATE, Creation, scope_of
from dragoman.store.tables import (
    indexed_messages,
    indexed_sessions,
    messages,
    parts,
    passages,
    runs,
    sessions,
)

# ---- What was said and is not indexed yet, in SQL: which sessions, which messages of one, and their parts.

AT_ONCE = 32  # parts

RUNNING: ColumnElement[bool] = runs.c.status == literal_column("'running'")
NONE: ColumnElement[int] = literal_column("0")


def sessions_of_owner() -> Select[Any]:
    """The owner's sessions in which something was said since they were indexed, the last changed first."""
    begun = select(func.count()).where(runs.c.session_id == sessions.c.id).scalar_subquery()
    marked = sessions.outerjoin(indexed_sessions, indexed_sessions.c.session_id == sessions.c.id)
    found = select(sessions.c.id).select_from(marked)
    found = found.where(
        sessions.c.owner == bindparam("owner"), begun != func.coalesce(indexed_sessions.c.runs, NONE)
    )
    return found.order_by(sessions.c.updated_at.desc(), sessions.c.id)


def session_of_owner() -> Select[Any]:
    """The same of one session."""
    return sessions_of_owner().where(sessions.c.id == bindparam("id"))


def known() -> Select[int, int]:
    """How many messages there are, and how many of them are indexed."""
    mark = (indexed_messages.c.session_id == messages.c.session_id) & (
        indexed_messages.c.message_id == messages.c.id
    )
    marked = messages.join(sessions, sessions.c.id == messages.c.session_id).outerjoin(indexed_messages, mark)
    found = select(func.count(), func.count(indexed_messages.c.message_id)).select_from(marked)
    return found.where(
        sessions.c.owner == bindparam("owner"),
        sessions.c.id == func.coalesce(bindparam("id"), sessions.c.id),
    )


def head() -> Select[Any]:
    """Whose a session is, how many runs it has, and how many of them have ended."""
    theirs = sessions.outerjoin(runs, runs.c.session_id == sessions.c.id)
    found = select(sessions.c.owner, func.count(runs.c.id), ended()).select_from(theirs)
    return found.where(sessions.c.id == bindparam("session_id")).group_by(sessions.c.owner)


def begun() -> Select[Any]:
    """How many runs a session has."""
    found: Select[Any] = select(func.count()).where(runs.c.session_id == bindparam("session_id"))
    return found


def ended() -> ColumnElement[int]:
    return func.sum(case((runs.c.status.is_(None) | RUNNING, NONE), else_=literal_column("1")))


def messages_of_session() -> Select[Any]:
    """Messages that are not indexed as they are now, each with how many of its runs have ended."""
    counted = select(runs.c.message_id, func.count().label("begun"), ended().label("ended"))
    counted = counted.where(runs.c.session_id == bindparam("session_id")).group_by(runs.c.message_id)
    theirs = counted.subquery()
    mark = (indexed_messages.c.session_id == messages.c.session_id) & (
        indexed_messages.c.message_id == messages.c.id
    )
    joined = messages.outerjoin(indexed_messages, mark).outerjoin(
        theirs, theirs.c.message_id == messages.c.id
    )
    found = select(messages.c.id, func.coalesce(theirs.c.ended, NONE)).select_from(joined)
    changed = indexed_messages.c.runs != func.coalesce(theirs.c.begun, NONE)
    found = found.where(
        messages.c.session_id == bindparam("session_id"), indexed_messages.c.runs.is_(None) | changed
    )
    return found.order_by(messages.c.position)


def bodies() -> Select[Any]:
    """Some of a message's parts, from one on."""
    found = select(parts.c.position, parts.c.body).where(
        parts.c.session_id == bindparam("session_id"),
        parts.c.message_id == bindparam("message_id"),
        parts.c.position >= bindparam("start"),
    )
    return found.order_by(parts.c.position).limit(literal_column(str(AT_ONCE))).offset(NONE)


HOLD = 0.004  # seconds after which others may write
PLACE = passages.c.session_id, passages.c.message_id, passages.c.position
HERE = [column == bindparam(column.name) for column in PLACE]


class Todo(NamedTuple):
    """What is to be indexed of a session: messages, each with how many of its runs had ended.

    What is said in a session belongs to a run. So as long as no more than these have `begun`, no message goes
    or comes; and one whose runs have all ended stays as it is.
    """

    session_id: str
    scope: str
    begun: int
    ended: int
    messages: Sequence[Row]


class Place(NamedTuple):
    """How far it is done: the index of a message, and the position of a part of it."""

    message: int = 0
    part: int = 0


class PassageStatements:
    """The SQL of `Passages`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        self.create = [compiler.compile(Creation(sql)) for sql in CREATE]
        self.stale = compiler.compile(sessions_of_owner())
        self.stale_one = compiler.compile(session_of_owner())
        self.known = compiler.compile(known())
        self.head = compiler.compile(head())
        self.begun = compiler.compile(begun())
        self.messages = compiler.compile(messages_of_session())
        self.bodies = compiler.compile(bodies())
        self.put = compiler.compile(putting(compiler))
        self.drop = compiler.compile(delete(passages).where(*HERE))
        self.mark = compiler.compile(marking(compiler, indexed_messages))
        self.mark_session = compiler.compile(marking(compiler, indexed_sessions))


class Passages:
    """Makes the passages of what was said since the last search. Those of what goes, go with it."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._made: bool | None = None
        self._turn = asyncio.Lock()
        self._owners: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unfinished: dict[str, tuple[Todo, Place]] = {}

    @cached_property
    def _sql(self) -> PassageStatements:
        return self._database.statements(PassageStatements)

    async def catch_up(self, owner: str, *, session_id: str | None, seconds: float) -> Indexing | None:
        """Index what was said in the owner's sessions, or in that one, the last changed first.

        What is left after so many seconds; None when nothing is. Others write meanwhile, and other owners'
        sessions are indexed in turn.
        """
        await self._make()
        until = self._clock() + seconds
        asked = {"owner": owner, "id": session_id}
        stale = self._sql.stale if session_id is None else self._sql.stale_one
        async with self._owners.setdefault(owner, asyncio.Lock()):
            found = await self._database.read(lambda connection: connection.all(stale, asked))
            for at, (id,) in enumerate(found, 1):
                whole = await self._index(id, until)
                if not whole or (at < len(found) and self._clock() >= until):
                    return await self._left(asked)
        return None

    async def _make(self) -> None:
        """Make the index, where there is none."""

        def job(connection: Connection) -> None:
            for sql in self._sql.create:
                connection.run(sql, {})

        if not self._made:
            await self._database.write(job)
            if self._made is None:
                self._database.on_up(self._forget)
            self._made = True

    def _forget(self) -> None:
        """After an outage there may be another file."""
        self._made = False

    async def _left(self, asked: dict[str, Any]) -> Indexing:
        row = await self._database.read(lambda connection: connection.one(self._sql.known, asked))
        every, known = row or (0, 0)
        left = max(every - known, 1)
        return Indexing(done=max(every - left, 0), left=left)

    async def _index(self, session_id: str, until: float) -> bool:
        """Index a session, piece by piece; False when it took too long, and the next time goes on there."""
        todo, place = self._unfinished.pop(session_id, (None, None))
        resumed = todo is not None
        while True:
            async with self._turn:
                if place is None:
                    todo = await self._database.read(partial(self._plan, session_id=session_id))
                if todo is None:
                    return True
                piece = partial(self._piece, todo=todo, place=place or Place())
                place = await self._database.write(piece)
            if place is not None and place.message >= len(todo.messages):
                if not resumed:
                    return True
                resumed, place = False, None  # more may have been said since that was planned
            if self._clock() >= until:
                if place is not None:
                    self._unfinished[session_id] = todo, place
                return False

    def _plan(self, connection: Connection, *, session_id: str) -> Todo | None:
        """What is to be done; None when the session is gone."""
        this = {"session_id": session_id}
        row = connection.one(self._sql.head, this)
        if row is None:
            return None
        owner, begun, ended = row
        scope = scope_of(session_id, owner=owner)
        return Todo(session_id, scope, begun, ended, connection.all(self._sql.messages, this))

    def _piece(self, connection: Connection, *, todo: Todo, place: Place) -> Place | None:
        """Index for some ms. How far it is then; None when it is to be planned again."""
        this: dict[str, Any] = {"session_id": todo.session_id}
        if connection.one(self._sql.begun, this) != (todo.begun,):
            return None
        until = self._clock() + HOLD
        for at in range(place.message, len(todo.messages)):
            message_id, ended = todo.messages[at]
            here = {**this, "message_id": message_id}
            part = place.part if at == place.message else 0
            part_after = self._keep(connection, here, scope=todo.scope, start=part, until=until)
            if part_after is not None:
                return Place(at, part_after)
            connection.run(self._sql.mark, {**here, "runs": ended})
            if self._clock() >= until and at + 1 < len(todo.messages):
                return Place(at + 1)
        connection.run(self._sql.mark_session, {**this, "runs": todo.ended})
        return Place(len(todo.messages))

    def _keep(
        self, connection: Connection, here: dict[str, Any], *, scope: str, start: int, until: float
    ) -> int | None:
        """Keep the passages of a message from that part on. The next part when it is time, else None."""
        while rows := connection.all(self._sql.bodies, {**here, "start": start}):
            for position, body in rows:
                this = {**here, "position": position}
                if text := words_of(body):
                    connection.run(self._sql.put, {**this, "scope": scope, "text": text})
                else:
                    connection.run(self._sql.drop, this)
                start = position + 1
                if self._clock() >= until:
                    return start
        return None


def words_of(body: str) -> str:
    """What a part says; nothing when it cannot be read."""
    try:
        return spoken(decode_part(body))
    except (msgspec.DecodeError, msgspec.ValidationError, DragomanError):
        return ""


def putting(compiler: Compiler) -> Insert:
    """Puts a passage, or what it says now in the place of what it said."""
    columns = *PLACE, passages.c.scope, passages.c.text
    put = compiler.insert(passages).values({column: bindparam(column.name) for column in columns})
    return put.on_conflict_do_update(
        index_elements=PLACE, set_={"text": put.excluded.text}, where=passages.c.text != put.excluded.text
    )


def marking(compiler: Compiler, table: Table) -> Insert:
    """Marks what is indexed."""
    mark = compiler.insert(table)
    return mark.on_conflict_do_update(index_elements=table.primary_key, set_={"runs": mark.excluded.runs})
