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
from dragoman.operations.message_search import IndexingProgress
from dragoman.operations.plain_text import part_text
from dragoman.store.connection import Compiler, DatabaseConnection, Row
from dragoman.store.database import Database
from dragoman.store.full_text import CREATE_SQLITE_INDEX, CreateIndexStatement, search_scope
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

PARTS_PER_READ = 32  # parts

RUN_IS_RUNNING: ColumnElement[bool] = runs.c.status == literal_column("'running'")
ZERO: ColumnElement[int] = literal_column("0")


def select_stale_sessions() -> Select[Any]:
    """The owner's sessions in which something was said since they were indexed, the last changed first."""
    begun = select(func.count()).where(runs.c.session_id == sessions.c.id).scalar_subquery()
    marked = sessions.outerjoin(indexed_sessions, indexed_sessions.c.session_id == sessions.c.id)
    found = select(sessions.c.id).select_from(marked)
    found = found.where(
        sessions.c.owner == bindparam("owner"), begun != func.coalesce(indexed_sessions.c.runs, ZERO)
    )
    return found.order_by(sessions.c.updated_at.desc(), sessions.c.id)


def select_stale_session() -> Select[Any]:
    """The same of one session."""
    return select_stale_sessions().where(sessions.c.id == bindparam("id"))


def count_indexed_messages() -> Select[int, int]:
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


def select_session_head() -> Select[Any]:
    """Whose a session is, how many runs it has, and how many of them have ended."""
    theirs = sessions.outerjoin(runs, runs.c.session_id == sessions.c.id)
    found = select(sessions.c.owner, func.count(runs.c.id), count_ended_runs()).select_from(theirs)
    return found.where(sessions.c.id == bindparam("session_id")).group_by(sessions.c.owner)


def count_runs() -> Select[Any]:
    """How many runs a session has."""
    found: Select[Any] = select(func.count()).where(runs.c.session_id == bindparam("session_id"))
    return found


def count_ended_runs() -> ColumnElement[int]:
    return func.sum(case((runs.c.status.is_(None) | RUN_IS_RUNNING, ZERO), else_=literal_column("1")))


def select_stale_messages() -> Select[Any]:
    """Messages that are not indexed as they are now, each with how many of its runs have ended."""
    counted = select(runs.c.message_id, func.count().label("begun"), count_ended_runs().label("ended"))
    counted = counted.where(runs.c.session_id == bindparam("session_id")).group_by(runs.c.message_id)
    theirs = counted.subquery()
    mark = (indexed_messages.c.session_id == messages.c.session_id) & (
        indexed_messages.c.message_id == messages.c.id
    )
    joined = messages.outerjoin(indexed_messages, mark).outerjoin(
        theirs, theirs.c.message_id == messages.c.id
    )
    found = select(messages.c.id, func.coalesce(theirs.c.ended, ZERO)).select_from(joined)
    changed = indexed_messages.c.runs != func.coalesce(theirs.c.begun, ZERO)
    found = found.where(
        messages.c.session_id == bindparam("session_id"), indexed_messages.c.runs.is_(None) | changed
    )
    return found.order_by(messages.c.position)


def select_parts() -> Select[Any]:
    """Some of a message's parts, from one on."""
    found = select(parts.c.position, parts.c.body).where(
        parts.c.session_id == bindparam("session_id"),
        parts.c.message_id == bindparam("message_id"),
        parts.c.position >= bindparam("start"),
    )
    return found.order_by(parts.c.position).limit(literal_column(str(PARTS_PER_READ))).offset(ZERO)


MAX_BATCH_SECONDS = 0.004  # seconds after which others may write
PART_KEY = passages.c.session_id, passages.c.message_id, passages.c.position
IS_PART = [column == bindparam(column.name) for column in PART_KEY]


class IndexingPlan(NamedTuple):
    """What is to be indexed of a session: messages, each with how many of its runs had ended.

    What is said in a session belongs to a run. So as long as no more than these have `count_runs`, no
    message goes or comes; and one whose runs have all ended stays as it is.
    """

    session_id: str
    scope: str
    run_count: int
    ended_run_count: int
    messages: Sequence[Row]


class IndexingPosition(NamedTuple):
    """How far it is done: the index of a message, and the position of a part of it."""

    message: int = 0
    part: int = 0


class PassageStatements:
    """The SQL of `MessageIndex`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        self.create = [compiler.compile(CreateIndexStatement(sql)) for sql in CREATE_SQLITE_INDEX]
        self.list_stale = compiler.compile(select_stale_sessions())
        self.find_stale = compiler.compile(select_stale_session())
        self.count_indexed = compiler.compile(count_indexed_messages())
        self.session_head = compiler.compile(select_session_head())
        self.count_runs = compiler.compile(count_runs())
        self.list_messages = compiler.compile(select_stale_messages())
        self.list_parts = compiler.compile(select_parts())
        self.upsert_passage = compiler.compile(upsert_passage(compiler))
        self.delete_passage = compiler.compile(delete(passages).where(*IS_PART))
        self.mark_message = compiler.compile(upsert_marker(compiler, indexed_messages))
        self.mark_session = compiler.compile(upsert_marker(compiler, indexed_sessions))


class MessageIndex:
    """Makes the passages of what was said since the last search. Those of what goes, go with it."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._is_created: bool | None = None
        self._batch_lock = asyncio.Lock()
        self._owner_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._interrupted: dict[str, tuple[IndexingPlan, IndexingPosition]] = {}

    @cached_property
    def _sql(self) -> PassageStatements:
        return self._database.statements(PassageStatements)

    async def catch_up(
        self, owner: str, *, session_id: str | None, seconds: float
    ) -> IndexingProgress | None:
        """Index what was said in the owner's sessions, or in that one, the last changed first.

        What is left after so many seconds; None when nothing is. Others write meanwhile, and other owners'
        sessions are indexed in turn.
        """
        await self._ensure_created()
        until = self._clock() + seconds
        asked = {"owner": owner, "id": session_id}
        stale = self._sql.list_stale if session_id is None else self._sql.find_stale
        async with self._owner_locks.setdefault(owner, asyncio.Lock()):
            found = await self._database.read(lambda connection: connection.fetch_all(stale, asked))
            for at, (id,) in enumerate(found, 1):
                whole = await self._index(id, until)
                if not whole or (at < len(found) and self._clock() >= until):
                    return await self._remaining(asked)
        return None

    async def _ensure_created(self) -> None:
        """Make the index, where there is none."""

        def job(connection: DatabaseConnection) -> None:
            for sql in self._sql.create:
                connection.execute(sql, {})

        if not self._is_created:
            await self._database.write(job)
            if self._is_created is None:
                self._database.on_recovery(self._reset_created)
            self._is_created = True

    def _reset_created(self) -> None:
        """After an outage there may be another file."""
        self._is_created = False

    async def _remaining(self, params: dict[str, Any]) -> IndexingProgress:
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.count_indexed, params)
        )
        every, known = row or (0, 0)
        left = max(every - known, 1)
        return IndexingProgress(done=max(every - left, 0), left=left)

    async def _index(self, session_id: str, until: float) -> bool:
        """Index a session, piece by piece; False when it took too long, and the next time goes on there."""
        todo, place = self._interrupted.pop(session_id, (None, None))
        resumed = todo is not None
        while True:
            async with self._batch_lock:
                if place is None:
                    todo = await self._database.read(partial(self._plan, session_id=session_id))
                if todo is None:
                    return True
                piece = partial(self._index_batch, plan=todo, position=place or IndexingPosition())
                place = await self._database.write(piece)
            if place is not None and place.message >= len(todo.messages):
                if not resumed:
                    return True
                resumed, place = False, None  # more may have been said since that was planned
            if self._clock() >= until:
                if place is not None:
                    self._interrupted[session_id] = todo, place
                return False

    def _plan(self, connection: DatabaseConnection, *, session_id: str) -> IndexingPlan | None:
        """What is to be done; None when the session is gone."""
        this = {"session_id": session_id}
        row = connection.fetch_one(self._sql.session_head, this)
        if row is None:
            return None
        owner, begun, ended = row
        scope = search_scope(session_id, owner=owner)
        return IndexingPlan(
            session_id, scope, begun, ended, connection.fetch_all(self._sql.list_messages, this)
        )

    def _index_batch(
        self, connection: DatabaseConnection, *, plan: IndexingPlan, position: IndexingPosition
    ) -> IndexingPosition | None:
        """Index for some ms. How far it is then; None when it is to be planned again."""
        this: dict[str, Any] = {"session_id": plan.session_id}
        if connection.fetch_one(self._sql.count_runs, this) != (plan.run_count,):
            return None
        until = self._clock() + MAX_BATCH_SECONDS
        for at in range(position.message, len(plan.messages)):
            message_id, ended = plan.messages[at]
            here = {**this, "message_id": message_id}
            part = position.part if at == position.message else 0
            part_after = self._index_message(connection, here, scope=plan.scope, start=part, until=until)
            if part_after is not None:
                return IndexingPosition(at, part_after)
            connection.execute(self._sql.mark_message, {**here, "runs": ended})
            if self._clock() >= until and at + 1 < len(plan.messages):
                return IndexingPosition(at + 1)
        connection.execute(self._sql.mark_session, {**this, "runs": plan.ended_run_count})
        return IndexingPosition(len(plan.messages))

    def _index_message(
        self, connection: DatabaseConnection, here: dict[str, Any], *, scope: str, start: int, until: float
    ) -> int | None:
        """Keep the passages of a message from that part on. The next part when it is time, else None."""
        while rows := connection.fetch_all(self._sql.list_parts, {**here, "start": start}):
            for position, body in rows:
                this = {**here, "position": position}
                if text := indexed_text(body):
                    connection.execute(self._sql.upsert_passage, {**this, "scope": scope, "text": text})
                else:
                    connection.execute(self._sql.delete_passage, this)
                start = position + 1
                if self._clock() >= until:
                    return start
        return None


def indexed_text(body: str) -> str:
    """What a part says; nothing when it cannot be read."""
    try:
        return part_text(decode_part(body))
    except (msgspec.DecodeError, msgspec.ValidationError, DragomanError):
        return ""


def upsert_passage(compiler: Compiler) -> Insert:
    """Puts a passage, or what it says now in the place of what it said."""
    columns = *PART_KEY, passages.c.scope, passages.c.text
    put = compiler.insert(passages).values({column: bindparam(column.name) for column in columns})
    return put.on_conflict_do_update(
        index_elements=PART_KEY, set_={"text": put.excluded.text}, where=passages.c.text != put.excluded.text
    )


def upsert_marker(compiler: Compiler, table: Table) -> Insert:
    """Marks what is indexed."""
    mark = compiler.insert(table)
    return mark.on_conflict_do_update(index_elements=table.primary_key, set_={"runs": mark.excluded.runs})
