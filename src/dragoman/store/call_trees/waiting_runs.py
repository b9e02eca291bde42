"""Runs that have ended while their answers wait, and what for.

A run ends when its model asked for calls that wait for a person or a client-side tool; the answer continues
in another run. A run whose tasks will wake the agent of its session has ended as well: the results are
answered there. Both are stored as finished, so a list of stored statuses would show them as done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    exists,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    update,
)

from dragoman.store.call_trees.root_sums import id_params, one_of
from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob, Row, decode_json
from dragoman.store.database import Database
from dragoman.store.tables.core import approvals, runs, sessions, team_tasks

CHUNK = 50  # runs or sessions that one query asks for
MAX_NAME = 200  # characters of a question
WaitKind: TypeAlias = Literal["approval", "question", "tool", "task"]


class RunWait(msgspec.Struct, frozen=True):
    """One thing that a run or a session waits for.

    `id` and `name` are those of the request and its operations, of the question and its text, or of the task
    and its team; a client-side tool has neither.
    """

    kind: WaitKind
    id: str | None = None
    name: str | None = None


class AskedQuestion(msgspec.Struct, frozen=True):
    """The question of an approval request, as `items` has it."""

    text: str


class AskedItem(msgspec.Struct, frozen=True):
    """One operation of an approval request, as `items` has it."""

    operation: str
    question: AskedQuestion | None = None


def is_waiting() -> ColumnElement[bool]:
    """Return the condition that a run has ended and its answer waits."""
    return and_(IS_FINISHED, or_(is_paused(), gave_open_tasks()))


IS_FINISHED = runs.c.status == literal_column("'finished'")
ENDED_AT_CALLS = runs.c.finish_reason == literal_column("'tool-calls'")
IS_PENDING = and_(approvals.c.status == literal_column("'pending'"), approvals.c.run_id.is_not(None))
WAKES_SESSION = and_(
    team_tasks.c.delivered_at.is_(None),
    team_tasks.c.wake,
    team_tasks.c.deliver == literal_column("'session'"),
)


def is_paused() -> ColumnElement[bool]:
    """Return the condition that calls of a finished run wait. A later message withdraws them."""
    later = runs.alias("later")
    is_later = tuple_(later.c.started_at, later.c.id) > tuple_(runs.c.started_at, runs.c.id)
    follows = exists(select(later.c.id)).where(later.c.session_id == runs.c.session_id, is_later)
    return and_(ENDED_AT_CALLS, ~follows)


def gave_open_tasks() -> ColumnElement[bool]:
    """Return the condition that a task of the answer is open whose result will wake the session's agent."""
    of_answer = (
        team_tasks.c.source_session == runs.c.session_id,
        team_tasks.c.source_message == runs.c.message_id,
    )
    return exists(select(team_tasks.c.id)).where(*of_answer, WAKES_SESSION)


class WaitStatements:
    """The SQL of `WaitReader`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        columns = (runs.c.id, runs.c.session_id, runs.c.message_id, is_paused())
        newest = runs.alias("newest")
        last = select(newest.c.id).where(newest.c.session_id == sessions.c.id)
        last = last.order_by(newest.c.started_at.desc(), newest.c.id.desc())
        last = last.limit(literal_column("1")).offset(literal_column("0"))
        of_session = select(*columns).select_from(sessions.join(runs, runs.c.id == last.scalar_subquery()))
        self.runs = compiler.compile(select(*columns).where(one_of(runs.c.id, CHUNK), is_waiting()))
        self.last_runs = compiler.compile(
            of_session.where(one_of(sessions.c.id, CHUNK), IS_FINISHED, is_paused())
        )
        stopped = {"status": literal_column("'stopped'"), "finish_reason": null()}
        paused = update(runs).where(runs.c.id == bindparam("id"), IS_FINISHED, ENDED_AT_CALLS)
        self.stop = compiler.compile(paused.values(stopped))
        self.approvals = compiler.compile(select_approvals())
        self.tasks = compiler.compile(select_tasks())


def select_approvals() -> Select[Any]:
    found = select(approvals.c.session_id, approvals.c.id, approvals.c["items"])
    found = found.where(one_of(approvals.c.session_id, CHUNK), IS_PENDING)
    return found.order_by(approvals.c.created_at, approvals.c.id)


def select_tasks() -> Select[Any]:
    tasks = team_tasks.c
    found = select(tasks.source_session, tasks.source_message, tasks.id, tasks.team)
    found = found.where(one_of(tasks.source_session, CHUNK), WAKES_SESSION)
    return found.order_by(tasks.created_at, tasks.id)


class WaitReader:
    """Reads in a job what runs and sessions wait for; those that do not wait are not in the answers."""

    def __init__(self, database: Database, connection: DatabaseConnection) -> None:
        self._sql = database.statements(WaitStatements)
        self._connection = connection

    def of_runs(self, ids: Sequence[str]) -> Mapping[str, Sequence[RunWait]]:
        """Return what each of these runs waits for."""
        rows = self._in_chunks(self._sql.runs, ids)
        session_ids = list({session_id for _, session_id, _, _ in rows})
        requests = self._requests([session_id for _, session_id, _, paused in rows if paused])
        tasks = self._tasks(session_ids)
        return {
            id: (*(requests[session_id] if paused else ()), *tasks.get((session_id, message_id), ()))
            for id, session_id, message_id, paused in rows
        }

    def of_sessions(self, ids: Sequence[str]) -> Mapping[str, Sequence[RunWait]]:
        """Return what each of these sessions waits for: its last answer, and tasks of all answers."""
        paused = [session_id for _, session_id, _, _ in self._in_chunks(self._sql.last_runs, ids)]
        found: dict[str, tuple[RunWait, ...]] = dict(self._requests(paused))
        for (session_id, _), tasks in self._tasks(ids).items():
            found[session_id] = (*found.get(session_id, ()), *tasks)
        return found

    def _requests(self, session_ids: Sequence[str]) -> Mapping[str, tuple[RunWait, ...]]:
        """Return the open requests of paused sessions; one without any waits for a client-side tool."""
        found: dict[str, tuple[RunWait, ...]] = dict.fromkeys(session_ids, ())
        for session_id, id, items in self._in_chunks(self._sql.approvals, list(found)):
            found[session_id] = (*found[session_id], to_wait(id, items))
        return {session_id: waits or (RunWait("tool"),) for session_id, waits in found.items()}

    def _tasks(self, session_ids: Sequence[str]) -> Mapping[tuple[str, str], tuple[RunWait, ...]]:
        """Return the open tasks by session and message."""
        found: dict[tuple[str, str], tuple[RunWait, ...]] = {}
        for session_id, message_id, id, team in self._in_chunks(self._sql.tasks, session_ids):
            place = session_id, message_id
            found[place] = (*found.get(place, ()), RunWait("task", id, team))
        return found

    def _in_chunks(self, sql: str, ids: Sequence[str]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(ids), CHUNK):
            rows += self._connection.fetch_all(sql, id_params(ids[start : start + CHUNK], CHUNK))
        return rows


def to_wait(id: str, items: str) -> RunWait:
    """Return what an approval request asks: the answer to its question, or consent to its operations."""
    found = decode_json(items, tuple[AskedItem, ...])
    questions = [item.question.text for item in found if item.question is not None]
    if questions:
        return RunWait("question", id, questions[0][:MAX_NAME])
    return RunWait("approval", id, ", ".join(dict.fromkeys(item.operation for item in found))[:MAX_NAME])


class WaitingRunRepository:
    """Says what runs and sessions wait for. Who may see it is the caller's concern."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_runs(self, ids: Sequence[str]) -> Mapping[str, Sequence[RunWait]]:
        """Return what each of these runs waits for; those that do not wait are not in it."""
        return await self._read(lambda reader: reader.of_runs(ids)) if ids else {}

    async def of_sessions(self, ids: Sequence[str]) -> Mapping[str, Sequence[RunWait]]:
        """Return what each of these sessions waits for; those that do not wait are not in it."""
        return await self._read(lambda reader: reader.of_sessions(ids)) if ids else {}

    def stop_job(self, run_id: str) -> DatabaseJob[None]:
        """Return a job that marks a run as stopped whose calls are declined, as no later run will."""
        sql = self._database.statements(WaitStatements).stop

        def job(connection: DatabaseConnection) -> None:
            connection.execute(sql, {"id": run_id})

        return job

    async def _read(
        self, read: Callable[[WaitReader], Mapping[str, Sequence[RunWait]]]
    ) -> Mapping[str, Sequence[RunWait]]:
        return await self._database.read(lambda connection: read(WaitReader(self._database, connection)))
