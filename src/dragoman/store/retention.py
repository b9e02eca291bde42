"""Retention: deletes rows that are older than their table's period, and that no run needs any more.

A reader finds the rows, a few of each owner at a time, by the index on owner and time. The writer deletes
them in transactions of a few milliseconds, and checks each row again: rows that a run uses by then stay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
    Table,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)

from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob
from dragoman.store.database import Database
from dragoman.store.hub_events import SESSION_DELETED, HubEventRepository
from dragoman.store.runner_frame_log import RunnerFrameRepository
from dragoman.store.shared_messages import IS_SHARED, AncestorStatements, SharedMessages
from dragoman.store.tables.core import (
    DELETED_OWNER,
    IS_DELETED,
    approvals,
    artifacts,
    calls,
    hub_events,
    messages,
    queued_runs,
    runs,
    sessions,
    team_tasks,
    usage,
)
from dragoman.store.tables.responses import responses

RetentionPeriods: TypeAlias = Mapping[str, float | None]
"""How long the rows of a table are kept, in seconds; None for ever."""

FOUND_ROWS = 500  # rows that one query finds
MAX_BATCH_SECONDS = 0.004  # of one transaction, so that other writers do not wait long
PAUSE_SECONDS = 0.005  # between two transactions
ROWS_PER_DELETE = 20  # rows of a session that are looked up, or messages that are deleted, at once
PURGE_LOCK = "retention"
EVENTS = "events"
# The last event is kept, because SQLite would use its id again.
LAST_EVENT: ColumnElement[int] = literal_column("(SELECT max(id) FROM hub_events)")


class RetentionRule(NamedTuple):
    """A table, the time from which its rows age, and the condition on which an old row may go.

    The index on the owner and this time finds old rows; the condition may ask for more, such as a later end.
    """

    table: Table
    time: Column[Any]
    is_expired: ColumnElement[bool]


CUTOFF: ColumnElement[float] = bindparam("cutoff")
NOW: ColumnElement[float] = bindparam("now")


def retention_rules() -> Mapping[str, RetentionRule]:
    """Return the rule of each table, in the order in which they are applied."""
    open_call = status_in(calls, "pending", "running")
    parent = calls.alias("parent")
    has_open_parent = exists().where(
        parent.c.id == calls.c.parent_id, status_in(parent, "pending", "running")
    )
    call_approval = exists().where(approvals.c.call_id == calls.c.id, IS_WAITING)
    ended_before = func.coalesce(calls.c.ended_at, calls.c.started_at) < CUTOFF
    waiting_call = exists().where(calls.c.id == approvals.c.call_id, open_call)
    session = exists().where(sessions.c.id == artifacts.c.session_id, sessions.c.updated_at >= CUTOFF)
    later = responses.alias("later")  # a chain of responses is deleted as a whole
    has_successor = exists().where(later.c.root_id == responses.c.root_id, later.c.created_at >= CUTOFF)
    in_progress = status_in(responses, "queued", "in_progress") & (responses.c.updated_at >= CUTOFF)
    of_run = exists().where(runs.c.id == usage.c.run_id, IS_ACTIVE)
    return {
        "calls": RetentionRule(
            calls,
            calls.c.started_at,
            ended_before & ~open_call & ~has_open_parent & ~call_approval & ~is_busy(calls.c.session_id),
        ),
        "approvals": RetentionRule(
            approvals,
            approvals.c.created_at,
            or_(~IS_OPEN, approvals.c.expires_at < CUTOFF)
            & (func.coalesce(approvals.c.answered_at, approvals.c.created_at) < CUTOFF)
            & ~waiting_call,
        ),
        "artifacts": RetentionRule(
            artifacts, artifacts.c.created_at, ~session & ~is_busy(artifacts.c.session_id)
        ),
        "responses": RetentionRule(responses, responses.c.created_at, ~has_successor & ~in_progress),
        "sessions": RetentionRule(
            sessions,
            sessions.c.updated_at,
            ~is_busy(sessions.c.id) & sessions.c.kind.is_distinct_from(ANCESTOR) & ~IS_DELETED,
        ),
        "usage": RetentionRule(usage, usage.c.started_at, ~of_run),
        EVENTS: RetentionRule(hub_events, hub_events.c.created_at, true()),
    }


def status_in(table: Any, *statuses: str) -> ColumnElement[bool]:
    """Return the condition that a row has one of the statuses."""
    found: ColumnElement[bool] = table.c.status.in_([literal_column(f"'{status}'") for status in statuses])
    return found


IS_OPEN = status_in(approvals, "pending", "approved")
IS_WAITING = IS_OPEN & (approvals.c.expires_at > NOW)
IS_ACTIVE: ColumnElement[bool] = runs.c.status == literal_column("'running'")
IS_QUEUED_RUN: ColumnElement[bool] = queued_runs.c.status == literal_column("'queued'")
IS_OPEN_TASK: ColumnElement[bool] = team_tasks.c.delivered_at.is_(None)


def is_busy(session_id: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that a session has an active run, or something that waits.

    That is an approval, a queued message, or a task that is to run in it or to report to it.
    """
    active = exists().where(runs.c.session_id == session_id, IS_ACTIVE)
    waiting = exists().where(approvals.c.session_id == session_id, IS_WAITING)
    queued = exists().where(queued_runs.c.session_id == session_id, IS_QUEUED_RUN)
    reported = exists().where(team_tasks.c.source_session == session_id, IS_OPEN_TASK)
    own_task = exists().where(team_tasks.c.session_id == session_id, IS_OPEN_TASK)
    return active | waiting | queued | reported | own_task


ANCESTOR: ColumnElement[str] = literal_column("'ancestor'")
IMPORT_SECONDS = 86_400.0  # after which an import that has not ended is deleted
RELATED = (
    messages,
    runs,
    calls,
    approvals,
    artifacts,
    hub_events,
)  # of a session; the rest goes with its messages


class RuleSQL:
    """The SQL of one rule. Each statement is compiled when it is used: the hub purges as it starts."""

    def __init__(self, rule: RetentionRule, compiler: Compiler) -> None:
        self._rule = rule
        self._compiler = compiler
        self._old = rule.time < CUTOFF

    @cached_property
    def next_owner(self) -> str:
        """The query for the owner after another one."""
        owner = self._rule.table.c.owner
        return self._compiler.compile(select(func.min(owner)).where(owner > bindparam("after")))

    @cached_property
    def find(self) -> str:
        """The query for the expired rows of an owner, after a place."""
        age, id, owner = self._rule.time, self._rule.table.c.id, self._rule.table.c.owner
        place = tuple_(age, id) > tuple_(bindparam("after"), bindparam("after_id"))
        found = select(age, id).where(owner == bindparam("owner"), self._old, place, self._rule.is_expired)
        found = found.order_by(age, id).limit(bindparam("limit")).offset(literal_column("0"))
        return self._compiler.compile(found)

    @cached_property
    def count(self) -> str:
        """The query for the number of expired rows."""
        counted = select(func.count()).select_from(self._rule.table).where(self._old, self._rule.is_expired)
        return self._compiler.compile(counted)

    @cached_property
    def delete(self) -> str:
        """The statement that deletes a row if it is expired."""
        table = self._rule.table
        expired = table.c.id == bindparam("id"), self._old, self._rule.is_expired
        return self._compiler.compile(delete(table).where(*expired))


class RetentionStatements:
    """The SQL of `Retention`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        rules = retention_rules()
        self.rules = {name: RuleSQL(rule, compiler) for name, rule in rules.items()}
        this = sessions.c.id == bindparam("id")
        nobody: ColumnElement[str] = literal_column(f"'{DELETED_OWNER}'")
        # What forks share stays the owner's: they still read it.
        hidden = {
            "owner": case((IS_SHARED, sessions.c.owner), else_=nobody),
            "kind": case((IS_SHARED, literal_column("'deleting'")), else_=null()),
        }
        session = rules["sessions"]
        expired = update(sessions).where(this, session.time < CUTOFF, session.is_expired)
        self.hide = compiler.compile(expired.values(hidden))
        is_importing = sessions.c.kind == literal_column("'importing'")
        is_stale = is_importing, sessions.c.updated_at < CUTOFF
        self.hide_always = compiler.compile(update(sessions).where(this).values(hidden))
        self.hide_kept = compiler.compile(update(sessions).where(this).values(owner=nobody, kind=null()))
        self.find_import = compiler.compile(select(sessions.c.id).where(*is_stale))
        self.hide_imports = compiler.compile(
            update(sessions).where(*is_stale).values(owner=nobody, kind=null())
        )
        hidden_row = select(sessions.c.kind).where(this, IS_DELETED)
        self.get_hidden = compiler.compile(hidden_row)
        self.lock_hidden = compiler.compile(hidden_row.with_for_update())
        self.list_hidden = compiler.compile(select(sessions.c.id).where(IS_DELETED))
        self.delete_session = compiler.compile(delete(sessions).where(this, IS_DELETED))
        self._compiler = compiler

    @cached_property
    def related(self) -> Sequence[tuple[str, str]]:
        """For each of RELATED but messages, the query for rows of a session, and what deletes one."""
        others = [table for table in RELATED if table is not messages]
        return [(self._find_related(table), self._delete_related(table)) for table in others]

    @cached_property
    def find_messages(self) -> str:
        """The query for the first and the last position of a session's next messages.

        In the order of their index: otherwise Postgres would look up all of them each time.
        """
        position = messages.c.position
        zero: ColumnElement[int] = literal_column("0")
        most: ColumnElement[int] = literal_column(str(ROWS_PER_DELETE))
        following = select(position).where(messages.c.session_id == bindparam("session_id"))
        following = following.order_by(position).limit(most).offset(zero)
        found = following.subquery().c.position
        return self._compiler.compile(select(func.min(found), func.max(found)))

    @cached_property
    def delete_messages(self) -> str:
        """The statement that deletes the messages of a session between two positions."""
        position = messages.c.position
        this = messages.c.session_id == bindparam("session_id")
        within = position >= bindparam("first"), position <= bindparam("last")
        return self._compiler.compile(delete(messages).where(this, *within))

    def _find_related(self, table: Table) -> str:
        found = select(table.c.id).where(table.c.session_id == bindparam("session_id"))
        if table is hub_events:  # the event of its deletion stays
            deleted: ColumnElement[str] = literal_column(f"'{SESSION_DELETED}'")
            found = found.where(table.c.id < LAST_EVENT, table.c.name != deleted)
        limit: ColumnElement[int] = literal_column(str(ROWS_PER_DELETE))
        zero: ColumnElement[int] = literal_column("0")
        return self._compiler.compile(found.limit(limit).offset(zero))

    def _delete_related(self, table: Table) -> str:
        this = table.c.session_id == bindparam("session_id"), table.c.id == bindparam("id")
        return self._compiler.compile(delete(table).where(*this))


class Retention:
    """Counts and deletes expired rows."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float],
        events: HubEventRepository,
        frames: RunnerFrameRepository,
    ) -> None:
        self._database = database
        self._clock = clock
        self._events = events
        self._frames = frames

    @cached_property
    def _sql(self) -> RetentionStatements:
        return self._database.statements(RetentionStatements)

    @cached_property
    def _ancestors_sql(self) -> AncestorStatements:
        return self._database.statements(AncestorStatements)

    async def count(self, periods: RetentionPeriods) -> Mapping[str, int]:
        """Return how many rows of each table would be deleted, without what is deleted with its session."""

        def query(connection: DatabaseConnection) -> Mapping[str, int]:
            counts: dict[str, int] = {}
            for name, params in self._expired(periods):
                row = connection.fetch_one(self._sql.rules[name].count, params)
                counts[name] = row[0] if row else 0
            return counts

        return await self._database.read(query)

    async def purge(self, periods: RetentionPeriods) -> Mapping[str, int]:
        """Delete expired rows; return how many of each table. StoreError, Unavailable.

        Does nothing while another host is purging.
        """
        counts: dict[str, int] = {}
        async with self._database.try_lock(PURGE_LOCK) as is_alone:
            if not is_alone:
                return counts
            await self._hide_imports()
            await self._delete_hidden_sessions()  # that an earlier process did not finish
            await self._frames.purge()
            for name, params in self._expired(periods):
                if name == EVENTS:  # their ids are in the order of time
                    counts[name] = await self._events.purge(cutoff=params["cutoff"])
                else:
                    counts[name] = await self._purge_table(name, params)
        return counts

    def _expired(self, periods: RetentionPeriods) -> Iterator[tuple[str, Mapping[str, float]]]:
        now = self._clock()
        for name in self._sql.rules:
            period = periods.get(name)
            if period is not None:
                yield name, {"now": now, "cutoff": now - period}

    async def _purge_table(self, name: str, params: Mapping[str, float]) -> int:
        statements, count = self._sql.rules[name], 0
        owner = DELETED_OWNER
        while (following := await self._next_owner(statements, owner)) is not None:
            owner = following
            place: dict[str, Any] = {"after": -1e300, "after_id": ""}
            while found := await self._find(statements, {**params, **place, "owner": owner}):
                ids = [id for _, id in found]
                count += await self._delete(name, ids, params=params)
                place = {"after": found[-1][0], "after_id": found[-1][1]}
        return count

    async def _next_owner(self, statements: RuleSQL, owner: str) -> str | None:
        row = await self._database.read(
            lambda connection: connection.fetch_one(statements.next_owner, {"after": owner})
        )
        return row[0] if row else None

    async def _find(self, statements: RuleSQL, params: Mapping[str, Any]) -> Sequence[Any]:
        bounded = {**params, "limit": FOUND_ROWS}
        return await self._database.read(lambda connection: connection.fetch_all(statements.find, bounded))

    async def _delete(self, name: str, ids: Sequence[str], *, params: Mapping[str, float]) -> int:
        sql = self._sql.hide if name == "sessions" else self._sql.rules[name].delete
        deleted, done = 0, 0
        while done < len(ids):
            rows = [{**params, "id": id} for id in ids[done:]]
            handled, changed = await self._submit(delete_rows_job(sql, rows))
            done, deleted = done + handled, deleted + changed
            if name == "sessions":
                for id in ids[done - handled : done]:
                    await self.delete_hidden(id)
        return deleted

    async def _hide_imports(self) -> None:
        """Hide sessions whose import has not ended, because its process has."""
        stale = {"cutoff": self._clock() - IMPORT_SECONDS}
        if await self._database.read(lambda connection: connection.fetch_one(self._sql.find_import, stale)):
            await self._submit(lambda connection: connection.execute(self._sql.hide_imports, stale))

    async def _delete_hidden_sessions(self) -> None:
        for id in await self._list_ids(self._sql.list_hidden):
            await self.delete_hidden(id)
        if unused := await self._list_ids(self._ancestors_sql.list_unused):
            hidden: Sequence[str] = await self._submit(partial(self.hide_unused, ids=unused))
            for id in hidden:
                await self.delete_hidden(id)

    async def _list_ids(self, sql: str) -> Sequence[str]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, {}))
        return [row[0] for row in rows]

    def hide(self, connection: DatabaseConnection, id: str) -> None:
        """In a job: take a session from its owner, so that `delete_hidden` or the next purge deletes it."""
        connection.execute(self._sql.hide_always, {"id": id})

    def hide_unused(self, connection: DatabaseConnection, ids: Sequence[str]) -> Sequence[str]:
        """In a job: hide those of these sessions that were kept for forks, and have none; return them."""
        sql = self._ancestors_sql.hide_unused
        return [id for id in ids if connection.execute(sql, {"id": id})]

    def shared_messages(self, connection: DatabaseConnection, id: str) -> SharedMessages:
        """In a job: return what others share with a session, which is locked."""
        return SharedMessages(connection, self._ancestors_sql, session_id=id, now=self._clock())

    async def is_hidden(self, id: str) -> bool:
        """Return whether a session is being deleted, or was when a process ended."""
        sql = self._sql.get_hidden
        return await self._database.read(lambda connection: connection.fetch_one(sql, {"id": id}) is not None)

    async def delete_hidden(self, id: str) -> None:
        """Delete a hidden session with its rows, in small transactions.

        Usage records stay, and messages that forks share. Ancestors that only it needed are deleted as well.
        """
        waiting = [id]
        while waiting:
            job = self._delete_session_job(waiting.pop())
            while (unused := await self._submit(job)) is None:
                pass
            waiting += unused

    def _delete_session_job(self, id: str) -> DatabaseJob[Sequence[str] | None]:
        """Return a job that deletes a part of a session.

        It returns None, or when nothing is left, the ids of hidden sessions that were kept for it.
        """

        def job(connection: DatabaseConnection) -> Sequence[str] | None:
            deadline = time.monotonic() + MAX_BATCH_SECONDS
            hidden = connection.fetch_one(self._sql.lock_hidden, {"id": id})
            if hidden is None:
                return ()  # somebody else has deleted it, and its id may be that of a new session
            shared = self.shared_messages(connection, id)
            if not shared.keep(until=deadline):
                return None
            if hidden[0] is not None:
                connection.execute(self._sql.hide_kept, {"id": id})  # forks read something else now
            if not self._delete_related(connection, id, until=deadline):
                return None
            ancestors = shared.ancestors()
            self._events.delete_old_deletions(connection, id)
            connection.execute(self._sql.delete_session, {"id": id})
            return self.hide_unused(connection, ancestors)

        return job

    def _delete_related(self, connection: DatabaseConnection, id: str, *, until: float) -> bool:
        """In a job: delete rows of a session; return whether all are deleted."""
        this = {"session_id": id}
        while (place := connection.fetch_one(self._sql.find_messages, this)) and place[0] is not None:
            connection.execute(self._sql.delete_messages, {**this, "first": place[0], "last": place[1]})
            if time.monotonic() > until:
                return False
        for find, remove in self._sql.related:
            while rows := connection.fetch_all(find, this):
                connection.execute_many(remove, [{**this, "id": row[0]} for row in rows])
                if time.monotonic() > until:
                    return False
        return True

    async def _submit(self, job: DatabaseJob[Any]) -> Any:
        """Run a job after those of runs, and leave them a pause after it."""
        result = await self._database.submit(job, is_long=True)
        await asyncio.sleep(PAUSE_SECONDS)
        return result


def delete_rows_job(sql: str, rows: Sequence[Mapping[str, Any]]) -> DatabaseJob[tuple[int, int]]:
    """Return a job that runs the statement for rows until its time is up, at least for one.

    It returns for how many it ran, and how many rows were deleted.
    """

    def job(connection: DatabaseConnection) -> tuple[int, int]:
        deadline = time.monotonic() + MAX_BATCH_SECONDS
        handled = changed = 0
        for params in rows:
            changed += connection.execute(sql, params)
            handled += 1
            if time.monotonic() > deadline:
                break
        return handled, changed

    return job
