"""The full-text index over messages, brought up to date at each search.

A passage is the plain text of one message part. Passages are written when somebody searches, not when a run
writes its messages: most messages are never searched for, and a run should not pay for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from sqlalchemy import ColumnElement, Select, Table, bindparam, case, delete, func, literal_column, select
from sqlalchemy.dialects.sqlite import Insert

from dragoman.errors import DragomanError, NotFound
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.messages import decode_part
from dragoman.operations.message_search import IndexingProgress
from dragoman.operations.results.part_text import part_text
from dragoman.store.connection import Compiler, DatabaseConnection, Row
from dragoman.store.database import Database
from dragoman.store.sessions.full_text import (
    CREATE_POSTGRES_INDEX,
    CREATE_SQLITE_INDEX,
    PART_KEY,
    UpsertPassage,
    search_scope,
)
from dragoman.store.sessions.part_tails import PartTailStatements, read_tails, with_tail
from dragoman.store.sessions.postgres_words import text_vector
from dragoman.store.tables.core import (
    indexed_messages,
    indexed_sessions,
    messages,
    parts,
    passages,
    runs,
    sessions,
)

# Queries for what is not indexed yet.

PARTS_PER_READ = 32

RUN_IS_RUNNING: ColumnElement[bool] = runs.c.status == literal_column("'running'")
ZERO: ColumnElement[int] = literal_column("0")
IS_WHOLE = sessions.c.kind.is_distinct_from(literal_column("'importing'"))
NEVER: ColumnElement[int] = literal_column("-1")  # a fork, or an imported session, has messages without runs


def select_stale_sessions() -> Select[Any]:
    """Return the query for the owner's sessions with runs since they were indexed, last changed first."""
    begun = select(func.count()).where(runs.c.session_id == sessions.c.id).scalar_subquery()
    marked = sessions.outerjoin(indexed_sessions, indexed_sessions.c.session_id == sessions.c.id)
    found = select(sessions.c.id).select_from(marked)
    found = found.where(
        sessions.c.owner == bindparam("owner"),
        begun != func.coalesce(indexed_sessions.c.runs, NEVER),
        IS_WHOLE,
    )
    return found.order_by(sessions.c.updated_at.desc(), sessions.c.id)


def select_stale_session() -> Select[Any]:
    """Return `select_stale_sessions` restricted to one session."""
    return select_stale_sessions().where(sessions.c.id == bindparam("id"))


def count_indexed_messages() -> Select[int, int]:
    """Return the query for the number of messages and of indexed messages."""
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
    """Return the query for a session's owner, its number of runs, and how many of them have ended."""
    theirs = sessions.outerjoin(runs, runs.c.session_id == sessions.c.id)
    found = select(sessions.c.owner, func.count(runs.c.id), count_ended_runs()).select_from(theirs)
    return found.where(sessions.c.id == bindparam("session_id")).group_by(sessions.c.owner)


def count_runs() -> Select[Any]:
    """Return the query for a session's number of runs."""
    found: Select[Any] = select(func.count()).where(runs.c.session_id == bindparam("session_id"))
    return found


def count_ended_runs() -> ColumnElement[int]:
    return func.sum(case((runs.c.status.is_(None) | RUN_IS_RUNNING, ZERO), else_=literal_column("1")))


def select_stale_messages() -> Select[Any]:
    """Return the query for messages that are not indexed in their current state, with their ended runs."""
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
    """Return the query for some of a message's parts, from position `start`."""
    found = select(parts.c.position, parts.c.body).where(
        parts.c.session_id == bindparam("session_id"),
        parts.c.message_id == bindparam("message_id"),
        parts.c.position >= bindparam("start"),
    )
    return found.order_by(parts.c.position).limit(literal_column(str(PARTS_PER_READ))).offset(ZERO)


MAX_BATCH_SECONDS = 0.004  # of one write transaction, so that other writers do not wait long
IS_PART = [column == bindparam(column.name) for column in PART_KEY]


class IndexingPlan(NamedTuple):
    """What to index of a session: its stale messages, each with its number of ended runs.

    Messages change in runs only. While the session has `run_count` runs, no message is added or deleted, and
    one whose runs have all ended does not change.
    """

    session_id: str
    scope: str
    run_count: int
    ended_run_count: int
    messages: Sequence[Row]


class IndexingPosition(NamedTuple):
    """Progress of an `IndexingPlan`: an index into its messages, and the position of a part."""

    message: int = 0
    part: int = 0


class PassageStatements:
    """The SQL of `MessageIndex`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        self.has_vectors = compiler.name == "postgresql"
        self.create = CREATE_POSTGRES_INDEX if self.has_vectors else CREATE_SQLITE_INDEX
        self.list_stale = compiler.compile(select_stale_sessions())
        self.find_stale = compiler.compile(select_stale_session())
        self.count_indexed = compiler.compile(count_indexed_messages())
        self.session_head = compiler.compile(select_session_head())
        session = select(sessions.c.id).where(sessions.c.id == bindparam("session_id"))
        self.lock_session = compiler.compile(session.with_for_update(key_share=True))
        self.count_runs = compiler.compile(count_runs())
        self.list_messages = compiler.compile(select_stale_messages())
        self.list_parts = compiler.compile(select_parts())
        self.upsert_passage = compiler.compile(upsert_passage(compiler))
        self.delete_passage = compiler.compile(delete(passages).where(*IS_PART))
        self.mark_message = compiler.compile(upsert_marker(compiler, indexed_messages))
        self.mark_session = compiler.compile(upsert_marker(compiler, indexed_sessions))


class MessageIndex:
    """Indexes messages that changed since the last search. Deleting a message deletes its passages."""

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

    @cached_property
    def _tails_sql(self) -> PartTailStatements:
        return self._database.statements(PartTailStatements)

    async def catch_up(
        self, owner: str, *, session_id: str | None, seconds: float
    ) -> IndexingProgress | None:
        """Index the owner's sessions, or one of them, last changed first, for at most `seconds`.

        Returns the progress when something is left, else None. Batches are short, so that other writes and
        other owners' indexing run in between.
        """
        await self._ensure_created()
        until = self._clock() + seconds
        params = {"owner": owner, "id": session_id}
        stale = self._sql.list_stale if session_id is None else self._sql.find_stale
        async with self._owner_locks.setdefault(owner, asyncio.Lock()):
            found = await self._database.read(lambda connection: connection.fetch_all(stale, params))
            for number, (id,) in enumerate(found, 1):
                finished = await self._index(id, until)
                if not finished or (number < len(found) and self._clock() >= until):
                    return await self._remaining(params)
        return None

    async def _ensure_created(self) -> None:
        """Create the index if it does not exist."""

        def job(connection: DatabaseConnection) -> None:
            connection.lock("search index")
            for sql in self._sql.create:
                connection.execute(sql, {})

        if not self._is_created:
            await self._database.write(job)
            if self._is_created is None:
                self._database.on_recovery(self._reset_created)
            self._is_created = True

    def _reset_created(self) -> None:
        """Check again after an outage: the file may have been replaced."""
        self._is_created = False

    async def _remaining(self, params: dict[str, Any]) -> IndexingProgress:
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.count_indexed, params)
        )
        total, indexed = row or (0, 0)
        left = max(total - indexed, 1)
        return IndexingProgress(done=max(total - left, 0), left=left)

    async def _index(self, session_id: str, until: float) -> bool:
        """Index a session in batches. Returns False when time is up; the next search continues there."""
        todo, place = self._interrupted.pop(session_id, (None, None))
        resumed = todo is not None
        while True:
            async with self._batch_lock:
                if place is None:
                    todo = await self._database.read(partial(self._plan, session_id=session_id))
                if todo is None:
                    return True
                place = await self._write_batch(todo, place or IndexingPosition())
            if place is not None and place.message >= len(todo.messages):
                if not resumed:
                    return True
                resumed, place = False, None  # messages may have been added since the plan was made
            if self._clock() >= until:
                if place is not None:
                    self._interrupted[session_id] = todo, place
                return False

    async def _write_batch(self, plan: IndexingPlan, position: IndexingPosition) -> IndexingPosition | None:
        """Index one batch. Returns the new position; None when the plan is outdated."""
        try:
            return await self._database.write(
                lambda connection: self._index_batch(connection, plan=plan, position=position)
            )
        except NotFound:  # the active run has deleted a part that was just read
            return None

    def _plan(self, connection: DatabaseConnection, *, session_id: str) -> IndexingPlan | None:
        """Return what to index; None when the session was deleted."""
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
        """Index one batch. Returns the new position; None when the plan is outdated."""
        this: dict[str, Any] = {"session_id": plan.session_id}
        if connection.fetch_one(self._sql.lock_session, this) is None:
            return None
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
            connection.execute_batched(self._sql.mark_message, {**here, "runs": ended})
            if self._clock() >= until and at + 1 < len(plan.messages):
                return IndexingPosition(at + 1)
        connection.execute_batched(self._sql.mark_session, {**this, "runs": plan.ended_run_count})
        return IndexingPosition(len(plan.messages))

    def _index_message(
        self, connection: DatabaseConnection, here: dict[str, Any], *, scope: str, start: int, until: float
    ) -> int | None:
        """Write a message's passages from part `start`. Returns the next part when time is up, else None."""
        while rows := connection.fetch_all(self._sql.list_parts, {**here, "start": start}):
            for position, body in rows:
                this = {**here, "position": position}
                place = {**this, "id": here["message_id"]}
                tails = read_tails(connection, self._tails_sql.of_part, params=place)
                if text := indexed_text(body, tails.get((here["message_id"], position))):
                    words = text_vector(text, scope=scope) if self._sql.has_vectors else None
                    passage = {**this, "scope": scope, "text": text, "words": words}
                    connection.execute_batched(self._sql.upsert_passage, passage)
                else:
                    connection.execute_batched(self._sql.delete_passage, this)
                start = position + 1
                if self._clock() >= until:
                    return start
        return None


def indexed_text(body: str, tail: str | None) -> str:
    """Return the plain text of a part; "" when the part cannot be read."""
    try:
        return part_text(with_tail(decode_part(body), tail))
    except (DragomanError, *DECODE_ERRORS):
        return ""


def upsert_passage(compiler: Compiler) -> UpsertPassage:
    """Return the statement that inserts a passage or updates its text."""
    columns = *PART_KEY, passages.c.scope, passages.c.text
    return UpsertPassage(
        compiler.insert(passages).values({column: bindparam(column.name) for column in columns})
    )


def upsert_marker(compiler: Compiler, table: Table) -> Insert:
    """Return the statement that records what is indexed."""
    mark = compiler.insert(table)
    return mark.on_conflict_do_update(index_elements=table.primary_key, set_={"runs": mark.excluded.runs})
