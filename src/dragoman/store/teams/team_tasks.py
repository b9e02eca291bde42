"""The tasks of teams in the database: their queue, their overlap and their ends.

A task is claimed in the transaction that begins its run, so it has exactly one. Its result goes to the
session where it was given in the transaction that sets `delivered_at`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import Select, bindparam, func, literal_column, tuple_

from dragoman.errors import Conflict, LimitReached
from dragoman.store.accounts.budgets import ChargedBudget
from dragoman.store.call_trees.roots import escape_like
from dragoman.store.connection import (
    DatabaseConnection,
    DatabaseJob,
    Params,
    Row,
    decode_json,
    encode_json,
    match_filter,
    select_fields,
    to_fields,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.hub_events import NewEvent
from dragoman.store.sessions.sessions import Session, SessionRepository
from dragoman.store.tables.core import team_tasks
from dragoman.store.teams.task_records import (
    TASK_FILTERS,
    Overlap,
    TaskEnd,
    TaskOverlaps,
    TaskSubmission,
    TeamTask,
)
from dragoman.store.teams.task_statements import TaskListStatements, TeamTaskStatements

MAX_SWEPT = 200
MAX_WITH_DEADLINE = 10_000  # tasks whose deadlines are watched after the clock was set back
MAX_QUESTIONS = 200  # of an owner that are being answered: each may ask further teams
T = TypeVar("T")


class TeamTaskRepository:
    """The tasks of all teams. Who may see them is the caller's concern."""

    def __init__(
        self, database: Database, *, sessions: SessionRepository, clock: Callable[[], float]
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._events = sessions.events
        self._clock = clock

    @cached_property
    def _sql(self) -> TeamTaskStatements:
        return self._database.statements(TeamTaskStatements)

    @cached_property
    def _lists(self) -> TaskListStatements:
        return self._database.statements(TaskListStatements)

    async def submit(self, task: TeamTask, *, session: Session, max_waiting: int) -> TaskSubmission:
        """Queue a task, and insert the session that it runs in, unless a task with its key, or one like it,
        takes its place; one that it replaces is cancelled.

        Raises TaskOverlaps when somebody has to confirm it, LimitReached when its owner has `max_waiting`.
        """

        def job(connection: DatabaseConnection) -> TaskSubmission:
            connection.lock(f"team {task.team}")
            earlier = self._find_key(connection, task)
            if earlier is not None:
                return TaskSubmission(earlier, is_new=False)
            alike = self._find_alike(connection, task) if task.overlap in DECIDED else []
            if alike and task.overlap == "confirm":
                raise TaskOverlaps(alike[-1])
            if alike and task.overlap == "skip":
                return TaskSubmission(alike[-1], is_new=False)
            replaced = [self._end(connection, each, ending=REPLACED) for each in alike]
            counted = self._sql.count_questions if task.read_only else self._sql.count_waiting
            row = connection.fetch_one(counted, {"owner": task.owner})
            check_waiting(task, 0 if row is None else row[0], limit=max_waiting)
            self._sessions.insert(connection, session)
            if not connection.execute(self._sql.insert, task_params(task)):
                earlier = self._find_key(connection, task)  # given to another team at this moment
                if earlier is None:
                    raise Conflict(f"the task {task.id!r} could not be stored")
                return TaskSubmission(earlier, is_new=False)
            self._events.insert(connection, task_event("task.queued", task))
            queued = connection.fetch_all(self._lists.queued_in_team, {"team": task.team, "limit": 2})
            ended = tuple(each for each in replaced if each is not None)
            return TaskSubmission(task, replaced=ended, is_alone=len(queued) == 1)

        submitted = await self._database.write(job)
        self._events.on_stored()
        return submitted

    def _find_key(self, connection: DatabaseConnection, task: TeamTask) -> TeamTask | None:
        if task.dedup_key is None:
            return None
        row = connection.fetch_one(self._sql.of_key, {"owner": task.owner, "key": task.dedup_key})
        return None if row is None else to_task(row)

    def _find_alike(self, connection: DatabaseConnection, task: TeamTask) -> Sequence[TeamTask]:
        """Return the active tasks of a task's owner and team that have its text, oldest first."""
        params = {"owner": task.owner, "team": task.team, "hash": task.hash}
        found = [to_task(row) for row in connection.fetch_all(self._sql.alike, params)]
        return sorted(found, key=lambda each: (each.created_at, each.id))

    def claim_job(self, task: TeamTask, *, run_id: str, concurrency: int) -> DatabaseJob[None]:
        """Return a job that takes a task out of its team's queue, in the transaction that begins its run.

        It raises Conflict when the task no longer waits, or the team has `concurrency` tasks running.
        """

        def job(connection: DatabaseConnection) -> None:
            if not task.read_only:
                connection.lock(f"team {task.team}")
                row = connection.fetch_one(self._sql.count_running, {"team": task.team})
                if row is not None and row[0] >= concurrency:
                    raise Conflict(f"the team {task.team!r} already runs its maximum number of tasks")
            params = {"id": task.id, "run": run_id, "now": self._clock()}
            row = connection.fetch_one(self._sql.claim, params)
            if row is None:
                raise Conflict(f"the task {task.id!r} no longer waits")
            self._events.insert(connection, task_event("task.started", to_task(row)))

        return job

    async def move(self, id: str, state: Literal["running", "waiting"], *, run_id: str | None) -> bool:
        """Write that a begun task runs, or waits. False when it has ended, or is in this state already."""

        def job(connection: DatabaseConnection) -> bool:
            row = connection.fetch_one(self._sql.move, {"id": id, "to": state, "run": run_id})
            if row is not None:
                self._events.insert(connection, task_event(f"task.{state}", to_task(row)))
            return row is not None

        return await self._write(job)

    async def end(self, task: TeamTask, ending: TaskEnd, *, is_silent: bool = False) -> TeamTask | None:
        """End a task; return it as it ended, or None when it had ended before.

        If `is_silent`, the result is not delivered.
        """
        return await self._write(
            lambda connection: self._end(connection, task, ending=ending, is_silent=is_silent)
        )

    def end_job(self, task: TeamTask, ending: TaskEnd) -> DatabaseJob[TeamTask | None]:
        """Return a job that does what `end` does, but not while a message waits in the task's session."""
        return lambda connection: self._end(
            connection, task, ending=ending, is_silent=False, sql=self._sql.end_answered
        )

    def _end(
        self,
        connection: DatabaseConnection,
        task: TeamTask,
        *,
        ending: TaskEnd,
        is_silent: bool = True,
        sql: str | None = None,
    ) -> TeamTask | None:
        now = self._clock()
        delivered = None if task.has_receiver and not is_silent else now
        params = {"id": task.id, **to_params(ending), "ended_at": now, "delivered": delivered}
        row = connection.fetch_one(sql or self._sql.end, params)
        if row is None:
            return None
        ended = to_task(row)
        if ended.state != "done":  # otherwise messages that wait to wake its agent would begin another run
            wakes = {"session_id": ended.session_id, "now": now}
            connection.execute(self._sql.withdraw_wakes, wakes)
        self._events.insert(connection, task_event("task.ended", ended))
        return ended

    def deliver_job(self, id: str, *, is_unanswered: bool = False, wakes: bool = False) -> DatabaseJob[None]:
        """Return a job that marks the result of a task as delivered; Conflict when it was before.

        `is_unanswered`: it should wake an agent, but does not, which an event reports. With `wakes` it raises
        Conflict, too, when the task that gave it has failed or was cancelled.
        """

        def job(connection: DatabaseConnection) -> None:
            if wakes and connection.fetch_one(self._sql.giver_is_over, {"id": id}) is not None:
                raise Conflict(f"the task that gave {id!r} has ended")
            if not connection.execute(self._sql.deliver, {"id": id, "now": self._clock()}):
                raise Conflict(f"the result of the task {id!r} was delivered already")
            row = connection.fetch_one(self._sql.get, {"id": id}) if is_unanswered else None
            if row is not None:
                self._events.insert(connection, task_event("task.unanswered", to_task(row)))

        return job

    async def is_giver_over(self, id: str) -> bool:
        """Return whether the task in whose session a task was given has failed or was cancelled since."""
        sql = self._sql.giver_is_over
        return await self._database.read(lambda connection: connection.fetch_one(sql, {"id": id})) is not None

    async def claim_stalled(self, level: int, *, since: float, kind: str) -> Sequence[TeamTask]:
        """Return the tasks that have waited since before a time and have had no notice of this level.

        The notice counts as given then: an event reports it in the session where each was given.
        """

        def job(connection: DatabaseConnection) -> Sequence[TeamTask]:
            rows = connection.fetch_all(self._sql.stall, {"level": level, "since": since})
            tasks = [to_task(row) for row in rows]
            for task in tasks:
                self._events.insert(connection, task_event("task.stalled", task, level=kind))
            return tasks

        return await self._write(job)

    async def get(self, id: str) -> TeamTask | None:
        """Return a task, or None."""
        found = await self._read(self._sql.get, {"id": id}, by_key=True)
        return found[0] if found else None

    async def find_of_session(self, session_id: str) -> TeamTask | None:
        """Return the task that runs in a session, or else the last one: those of a topic share theirs."""
        found = await self._read(self._lists.of_session, {"session_id": session_id})
        return found[0] if found else None

    async def list_ready(self, team: str, *, limit: int) -> Sequence[TeamTask]:
        """Return the tasks that wait in a team's queue and may begin, in order."""
        queued = await self._count_queued(self._lists.queued_in_team, {"team": team})
        if not queued:
            return []
        # A long queue is sorted in another thread.
        return await self._read(self._lists.ready, {"team": team, "limit": limit}, by_key=queued == 1)

    async def ready_teams(self) -> Sequence[str]:
        """Return the teams in whose queues a task may begin."""
        if not await self._count_queued(self._lists.queued, {}):
            return []
        rows = await self._database.read(lambda connection: connection.fetch_all(self._lists.ready_teams, {}))
        return [row[0] for row in rows]

    async def has_unsettled(self) -> bool:
        """Return whether a task is active or its result is not delivered, or any run is active."""
        sql = self._lists.has_unsettled
        row = await self._database.read_by_key(lambda connection: connection.fetch_one(sql, {}))
        return row is not None and bool(row[0])

    async def list_idle(self) -> Sequence[TeamTask]:
        """Return running tasks without an active run in their session: their end is not written yet."""
        return await self._read(self._lists.idle, {"limit": MAX_SWEPT})

    async def list_late(self) -> Sequence[TeamTask]:
        """Return active tasks whose deadline is over."""
        return await self._read(self._lists.late, {"limit": MAX_SWEPT, "now": self._clock()})

    async def list_with_deadline(self) -> Sequence[TeamTask]:
        """Return active tasks that have a deadline."""
        return await self._read(self._lists.late, {"limit": MAX_WITH_DEADLINE, "now": math.inf})

    async def list_orphans(self) -> Sequence[TeamTask]:
        """Return active tasks, not detached, that were given in an answer that was stopped, or of a task that
        has failed or was cancelled.
        """
        return await self._read(self._lists.orphans, {"limit": MAX_SWEPT})

    async def list_still_running(self) -> Sequence[TeamTask]:
        """Return cancelled tasks whose run is still active."""
        return await self._read(self._lists.still_running, {"limit": MAX_SWEPT})

    async def awaiting_sessions(self, after: str = "", *, limit: int) -> Sequence[str]:
        """Return the sessions that are to get results of tasks that have ended, by id, after one."""
        params = {"after": after, "limit": limit}
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._lists.awaiting_sessions, params)
        )
        return [row[0] for row in rows]

    async def open_children(self, session_id: str) -> Sequence[TeamTask]:
        """Return the tasks given in a session that are active, or whose results were not delivered."""
        return await self._read(self._lists.open_children, {"session_id": session_id})

    async def count_states(self, owner: str) -> Mapping[str, Mapping[str, int]]:
        """Return how many active tasks of an owner each team has, by state."""
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._lists.count_states, {"owner": owner})
        )
        counts: dict[str, dict[str, int]] = {}
        for team, state, count in rows:
            counts.setdefault(team, {})[state] = count
        return counts

    async def list_page(
        self, filters: Mapping[str, str], *, before: TeamTask | None = None, limit: int = 50
    ) -> Sequence[TeamTask]:
        """Return the tasks that match `TASK_FILTERS` and have a `text`, newest first, before the last one of
        a page.
        """
        params: dict[str, Any] = {**filters, "limit": limit}
        if "text" in filters:
            params["text"] = f"%{escape_like(filters['text'].lower())}%"
        if before is not None:
            params |= {"before_at": before.created_at, "before_id": before.id}
        return await self._read(self._database.query_sql(select_task_page, frozenset(params)), params)

    async def pause(self, team: str, *, by: str) -> None:
        """Pause a team: it begins no tasks until it is resumed."""
        params = {"team": team, "paused_at": self._clock(), "paused_by": by}
        await self._database.write(lambda connection: connection.execute(self._sql.pause, params))

    async def resume(self, team: str) -> bool:
        """Let a team begin tasks again; False when it was not paused."""
        return await self._database.write(
            lambda connection: connection.execute(self._sql.resume, {"team": team}) > 0
        )

    async def paused_teams(self) -> Sequence[str]:
        """Return the teams that are paused."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._lists.paused, {}))
        return [row[0] for row in rows]

    async def _write(self, job: DatabaseJob[T]) -> T:
        result = await self._database.write(job)
        self._events.on_stored()
        return result

    async def _count_queued(self, sql: str, params: Params) -> int:
        """Return how many tasks wait, up to two."""
        limited = {**params, "limit": 2}
        return len(await self._database.read_by_key(lambda connection: connection.fetch_all(sql, limited)))

    async def _read(self, sql: str, params: Params, *, by_key: bool = False) -> Sequence[TeamTask]:
        read = self._database.read_by_key if by_key else self._database.read
        rows = await read(lambda connection: connection.fetch_all(sql, params))
        return [to_task(row) for row in rows]


DECIDED: tuple[Overlap, ...] = ("skip", "replace", "confirm")
REPLACED = TaskEnd(state="cancelled", error="replaced by a new task like it")


def select_task_page(names: frozenset[str]) -> Select[Any]:
    """Return the query for a page of tasks with these parameters."""
    place = team_tasks.c.created_at, team_tasks.c.id
    found = select_fields(TeamTask, team_tasks)
    for name in sorted(names & TASK_FILTERS):
        found = found.where(match_filter(team_tasks.c[name], names))
    if "text" in names:
        found = found.where(func.lower(team_tasks.c.text).like(bindparam("text"), escape="/"))
    if "before_at" in names:
        found = found.where(tuple_(*place) < tuple_(bindparam("before_at"), bindparam("before_id")))
    newest = found.order_by(*(column.desc() for column in place))
    return newest.limit(bindparam("limit")).offset(literal_column("0"))


def check_waiting(task: TeamTask, count: int, *, limit: int) -> None:
    """Raise LimitReached when as many tasks of its owner wait as may, or are questions that are answered."""
    if count >= (MAX_QUESTIONS if task.read_only else limit):
        what = (
            "questions of their owner are being answered" if task.read_only else "tasks of their owner wait"
        )
        raise LimitReached(f"{count} {what} already, the maximum", retry_after=5.0)


def task_event(name: str, task: TeamTask, **details: str) -> NewEvent:
    """Return an event of a task, in the session where it was given, or else in its own."""
    body = {
        "taskId": task.id,
        "team": task.team,
        "state": task.state,
        "source": task.source,
        "correlationId": task.correlation_id,
        "sessionId": task.session_id,
        "runId": task.run_id,
        "error": task.error,
        **details,
    }
    return NewEvent(
        name=name,
        owner=task.owner,
        session_id=task.source_session or task.session_id,
        data=msgspec.json.encode(body).decode(),
        key_id=task.key_id,
    )


def task_params(task: TeamTask) -> dict[str, Any]:
    """Return a task's fields as parameters."""
    lists = {"chain": task.chain or None, "shared_budgets": task.shared_budgets or None}
    return {**to_params(task), **{name: encode_json(value) for name, value in lists.items()}}


def to_task(row: Row) -> TeamTask:
    """Return the task in a row."""
    fields = to_fields(TeamTask, row)
    flags = {name: bool(fields[name]) for name in ("read_only", "detached", "wake")}
    chain = decode_json(fields["chain"], tuple[str, ...]) or ()
    shared = decode_json(fields["shared_budgets"], tuple[ChargedBudget, ...]) or ()
    return TeamTask(**fields | flags | {"chain": chain, "shared_budgets": shared})
