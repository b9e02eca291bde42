"""The tasks of teams in the database: their queue, their overlap and their ends.

A task is claimed in the transaction that begins its run, so it has exactly one. Its result goes to the
session where it was given in the transaction that sets `delivered_at`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from dragoman.errors import Conflict, LimitReached
from dragoman.store.connection import (
    Compiler,
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
from dragoman.store.sessions import Session, SessionRepository
from dragoman.store.tables import runs, team_pauses, team_tasks

TaskState: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]
TaskSource: TypeAlias = Literal["session", "call", "trigger", "api"]
TaskPriority: TypeAlias = Literal["low", "normal", "high", "critical"]
Overlap: TypeAlias = Literal["allow", "skip", "queue", "replace", "confirm"]
TaskDelivery: TypeAlias = Literal["session", "none"]
TASK_RANKS: Mapping[TaskPriority, int] = {"critical": 0, "high": 1, "normal": 2, "low": 3}
ACTIVE_STATES: tuple[TaskState, ...] = ("queued", "running", "waiting")
TASK_FILTERS = frozenset({"owner", "team", "state", "source_session", "parent_call", "correlation_id"})
MAX_SWEPT = 200
T = TypeVar("T")


class TeamTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a team. `chain` are the agents above it, the first one first.

    `source_session` and `source_message` are the answer in which it was given, `parent_call` is the call.
    `budget` is in US dollars, `deadline` in unix seconds. A `read_only` task answers a question: it calls
    only what reads, and does not wait in the team's queue. A `detached` one goes on when what gave it is
    stopped. `deliver` says where the result goes to, and `wake` whether it begins a run there.
    """

    id: str
    owner: str
    key_id: str | None = None
    team: str
    topic: str | None = None
    text: str
    hash: str
    priority: TaskPriority = "normal"
    rank: int = TASK_RANKS["normal"]
    overlap: Overlap = "allow"
    state: TaskState = "queued"
    source: TaskSource = "api"
    source_session: str | None = None
    source_message: str | None = None
    parent_call: str | None = None
    chain: tuple[str, ...] = ()
    read_only: bool = False
    detached: bool = False
    correlation_id: str | None = None
    dedup_key: str | None = None
    budget: float | None = None
    deadline: float | None = None
    deliver: TaskDelivery = "none"
    wake: bool = False
    webhook: str | None = None
    session_id: str
    run_id: str | None = None
    attempts: int = 0
    result: str | None = None
    artifact: str | None = None
    error: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    delivered_at: float | None = None

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""
        return self.state in ACTIVE_STATES


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended. A long result is an `artifact`, and `result` its beginning."""

    state: Literal["done", "failed", "cancelled"]
    result: str | None = None
    artifact: str | None = None
    error: str | None = None


class TaskSubmission(msgspec.Struct, frozen=True):
    """What became of a task that was handed in: the `task` that stands for it, which may be an earlier one.

    `replaced` are those that it ended.
    """

    task: TeamTask
    is_new: bool = True
    replaced: tuple[TeamTask, ...] = ()


class TaskOverlaps(Conflict):
    """A task like this one is active, and somebody has to say whether it may run beside it."""

    def __init__(self, task: TeamTask) -> None:
        super().__init__(
            f"the team {task.team!r} has a task like this already: {task.id} is {task.state}",
            hint="send `overlap`: allow, skip, queue or replace",
        )
        self.task = task


def state_in(*states: TaskState, of: FromClause = team_tasks) -> ColumnElement[bool]:
    """Return the condition that a task has one of these states."""
    return or_(*(of.c.state == literal_column(f"'{state}'") for state in states))


TABLE = team_tasks
FOUND = select_fields(TeamTask, TABLE)
COLUMNS = [TABLE.c[name] for name in TeamTask.__struct_fields__]
ZERO: ColumnElement[int] = literal_column("0")
LIMIT: ColumnElement[int] = bindparam("limit")
THIS, TEAM, OWNED = (TABLE.c[name] == bindparam(name) for name in ("id", "team", "owner"))
ACTIVE = state_in(*ACTIVE_STATES)
IS_OPEN = TABLE.c.delivered_at.is_(None)
RUN_IS_ACTIVE = runs.c.status == literal_column("'running'")
IS_BUSY = exists(select(runs.c.id)).where(runs.c.session_id == TABLE.c.session_id, RUN_IS_ACTIVE)


def claimable() -> ColumnElement[bool]:
    """Return the condition that a task waits, and none before it has to end first."""
    earlier = TABLE.alias("earlier")
    before = tuple_(earlier.c.created_at, earlier.c.id) < tuple_(TABLE.c.created_at, TABLE.c.id)
    alike = (earlier.c[name] == TABLE.c[name] for name in ("team", "owner", "hash"))
    is_behind = exists(select(earlier.c.id)).where(*alike, state_in(*ACTIVE_STATES, of=earlier), before)
    has_begun = exists(select(earlier.c.id)).where(
        earlier.c.session_id == TABLE.c.session_id, state_in("running", "waiting", of=earlier)
    )
    in_turn = or_(TABLE.c.overlap != literal_column("'queue'"), ~is_behind)
    is_paused = exists(select(team_pauses.c.team)).where(team_pauses.c.team == TABLE.c.team)
    return and_(state_in("queued"), IS_OPEN, ~has_begun, in_turn, ~is_paused)


class TeamTaskStatements:
    """The SQL of `TeamTaskRepository` about one task; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        count = select(func.count()).select_from(TABLE)
        ended: dict[str, Any] = {name: bindparam(name) for name in (*TaskEnd.__struct_fields__, "ended_at")}
        ended["delivered_at"] = bindparam("delivered")
        begun: dict[str, Any] = {
            "state": literal_column("'running'"),
            "run_id": bindparam("run"),
            "started_at": bindparam("now"),
            "attempts": TABLE.c.attempts + literal_column("1"),
        }
        moved: dict[str, Any] = {"state": bindparam("to"), "run_id": bindparam("run")}
        has_moved = state_in("running", "waiting"), TABLE.c.state != bindparam("to")
        alike = FOUND.where(TEAM, OWNED, TABLE.c.hash == bindparam("hash"), ACTIVE)
        running = count.where(TEAM, state_in("running"), IS_OPEN, TABLE.c.read_only.is_(false()))
        self.insert = compiler.compile(compiler.insert(TABLE).on_conflict_do_nothing())
        self.get = compiler.compile(FOUND.where(THIS))
        self.of_key = compiler.compile(FOUND.where(OWNED, TABLE.c.dedup_key == bindparam("key")))
        self.alike = compiler.compile(alike.order_by(TABLE.c.created_at, TABLE.c.id))
        self.count_waiting = compiler.compile(count.where(OWNED, state_in("queued"), IS_OPEN))
        self.count_running = compiler.compile(running)
        self.claim = compiler.compile(
            update(TABLE).where(THIS, claimable()).values(begun).returning(*COLUMNS)
        )
        self.move = compiler.compile(update(TABLE).where(THIS, *has_moved).values(moved).returning(*COLUMNS))
        self.end = compiler.compile(update(TABLE).where(THIS, ACTIVE).values(ended).returning(*COLUMNS))
        delivered = update(TABLE).where(THIS, IS_OPEN, ~ACTIVE).values(delivered_at=bindparam("now"))
        self.deliver = compiler.compile(delivered)
        self.pause = compiler.compile(compiler.insert(team_pauses).on_conflict_do_nothing())
        self.resume = compiler.compile(delete(team_pauses).where(team_pauses.c.team == bindparam("team")))


class TaskListStatements:
    """The SQL of `TeamTaskRepository` that finds tasks; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        order = TABLE.c.rank, TABLE.c.created_at, TABLE.c.id
        newest = TABLE.c.created_at.desc(), TABLE.c.id.desc()
        ready = and_(claimable(), ~IS_BUSY)
        of_session = FOUND.where(TABLE.c.session_id == bindparam("session_id")).order_by(*newest)
        children = FOUND.where(TABLE.c.source_session == bindparam("session_id"), IS_OPEN)
        idle = FOUND.where(IS_OPEN, state_in("running"), ~IS_BUSY)
        late = FOUND.where(IS_OPEN, ACTIVE, TABLE.c.deadline < bindparam("now"))
        stopped = FOUND.join(runs, runs.c.id == TABLE.c.run_id).where(state_in("cancelled"), RUN_IS_ACTIVE)
        counted = select(TABLE.c.team, TABLE.c.state, func.count()).where(OWNED, ACTIVE, IS_OPEN)
        teams = select(TABLE.c.team).where(ready).distinct().order_by(TABLE.c.team)
        self.of_session = compiler.compile(of_session.limit(literal_column("1")).offset(ZERO))
        self.ready = compiler.compile(FOUND.where(TEAM, ready).order_by(*order).limit(LIMIT).offset(ZERO))
        self.ready_teams = compiler.compile(teams)
        self.undelivered = compiler.compile(FOUND.where(IS_OPEN, ~ACTIVE).limit(LIMIT).offset(ZERO))
        self.idle = compiler.compile(idle.limit(LIMIT).offset(ZERO))
        self.late = compiler.compile(late.limit(LIMIT).offset(ZERO))
        self.still_running = compiler.compile(stopped.limit(LIMIT).offset(ZERO))
        self.open_children = compiler.compile(children.order_by(*order[1:]))
        self.count_states = compiler.compile(counted.group_by(TABLE.c.team, TABLE.c.state))
        self.paused = compiler.compile(select(team_pauses.c.team).order_by(team_pauses.c.team))


class TeamTaskRepository:
    """The tasks of all teams. Who may see them is the caller's concern."""

    def __init__(
        self, database: Database, *, sessions: SessionRepository, clock: Callable[[], float]
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._events = sessions.events
        self._clock = clock
        self._page_sql: dict[frozenset[str], str] = {}

    @cached_property
    def _sql(self) -> TeamTaskStatements:
        return self._database.statements(TeamTaskStatements)

    @cached_property
    def _lists(self) -> TaskListStatements:
        return self._database.statements(TaskListStatements)

    async def submit(self, task: TeamTask, *, session: Session, max_waiting: int) -> TaskSubmission:
        """Queue a task, with the session that it runs in, unless one with its key or one like it stands for
        it; one that it replaces is cancelled.

        Raises TaskOverlaps when somebody has to confirm it, LimitReached when `max_waiting` of its owner do.
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
            replaced = [self._end(connection, each.id, ending=REPLACED) for each in alike]
            row = connection.fetch_one(self._sql.count_waiting, {"owner": task.owner})
            check_waiting(task, 0 if row is None else row[0], limit=max_waiting)
            self._sessions.insert(connection, session)
            connection.execute(self._sql.insert, task_params(task))
            self._events.insert(connection, task_event("task.queued", task))
            return TaskSubmission(task, replaced=tuple(each for each in replaced if each is not None))

        submitted = await self._database.write(job)
        self._events.on_stored()
        return submitted

    def _find_key(self, connection: DatabaseConnection, task: TeamTask) -> TeamTask | None:
        if task.dedup_key is None:
            return None
        row = connection.fetch_one(self._sql.of_key, {"owner": task.owner, "key": task.dedup_key})
        return None if row is None else to_task(row)

    def _find_alike(self, connection: DatabaseConnection, task: TeamTask) -> Sequence[TeamTask]:
        params = {"owner": task.owner, "team": task.team, "hash": task.hash}
        return [to_task(row) for row in connection.fetch_all(self._sql.alike, params)]

    def claim_job(self, task: TeamTask, *, run_id: str, concurrency: int) -> DatabaseJob[None]:
        """Return a job that takes a task out of its team's queue, in the transaction that begins its run.

        It raises Conflict when the task does not wait any more, or the team has `concurrency` tasks running.
        """

        def job(connection: DatabaseConnection) -> None:
            if not task.read_only:
                connection.lock(f"team {task.team}")
                row = connection.fetch_one(self._sql.count_running, {"team": task.team})
                if row is not None and row[0] >= concurrency:
                    raise Conflict(f"the team {task.team!r} has as many tasks running as it may")
            params = {"id": task.id, "run": run_id, "now": self._clock()}
            row = connection.fetch_one(self._sql.claim, params)
            if row is None:
                raise Conflict(f"the task {task.id!r} does not wait any more")
            self._events.insert(connection, task_event("task.started", to_task(row)))

        return job

    async def move(self, id: str, state: Literal["running", "waiting"], *, run_id: str | None) -> bool:
        """Write that a task that has begun runs, or waits. False when it has ended, or is in this state."""

        def job(connection: DatabaseConnection) -> bool:
            row = connection.fetch_one(self._sql.move, {"id": id, "to": state, "run": run_id})
            if row is not None:
                self._events.insert(connection, task_event(f"task.{state}", to_task(row)))
            return row is not None

        return await self._write(job)

    async def end(self, id: str, ending: TaskEnd) -> TeamTask | None:
        """End a task; return it as it ended, or None when it had ended before."""
        return await self._write(lambda connection: self._end(connection, id, ending=ending))

    def _end(self, connection: DatabaseConnection, id: str, *, ending: TaskEnd) -> TeamTask | None:
        row = connection.fetch_one(self._sql.get, {"id": id})
        now = self._clock()
        has_receiver = row is not None and to_task(row).deliver == "session"
        params = {"id": id, **to_params(ending), "ended_at": now, "delivered": None if has_receiver else now}
        row = connection.fetch_one(self._sql.end, params)
        if row is None:
            return None
        task = to_task(row)
        self._events.insert(connection, task_event("task.ended", task))
        return task

    def deliver_job(self, id: str) -> DatabaseJob[None]:
        """Return a job that marks the result of a task as delivered; Conflict when it was before."""

        def job(connection: DatabaseConnection) -> None:
            if not connection.execute(self._sql.deliver, {"id": id, "now": self._clock()}):
                raise Conflict(f"the result of the task {id!r} was delivered already")

        return job

    async def get(self, id: str) -> TeamTask | None:
        """Return a task, or None."""
        found = await self._read(self._sql.get, {"id": id})
        return found[0] if found else None

    async def find_of_session(self, session_id: str) -> TeamTask | None:
        """Return the last task that runs, or ran, in a session."""
        found = await self._read(self._lists.of_session, {"session_id": session_id})
        return found[0] if found else None

    async def list_ready(self, team: str, *, limit: int) -> Sequence[TeamTask]:
        """Return what waits in a team's queue and may begin, in order."""
        return await self._read(self._lists.ready, {"team": team, "limit": limit})

    async def ready_teams(self) -> Sequence[str]:
        """Return the teams in whose queue something may begin."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._lists.ready_teams, {}))
        return [row[0] for row in rows]

    async def list_idle(self) -> Sequence[TeamTask]:
        """Return tasks that are running while no run of their session is: their end is not written yet."""
        return await self._read(self._lists.idle, {"limit": MAX_SWEPT})

    async def list_late(self) -> Sequence[TeamTask]:
        """Return active tasks whose deadline is over."""
        return await self._read(self._lists.late, {"limit": MAX_SWEPT, "now": self._clock()})

    async def list_still_running(self) -> Sequence[TeamTask]:
        """Return cancelled tasks whose run is still active."""
        return await self._read(self._lists.still_running, {"limit": MAX_SWEPT})

    async def list_undelivered(self) -> Sequence[TeamTask]:
        """Return tasks that have ended, whose results have not been delivered."""
        return await self._read(self._lists.undelivered, {"limit": MAX_SWEPT})

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
        """Return the tasks that match `TASK_FILTERS`, newest first; `before` is the last one of a page."""
        params: dict[str, Any] = {**filters, "limit": limit}
        if before is not None:
            params |= {"before_at": before.created_at, "before_id": before.id}
        names = frozenset(params)
        if names not in self._page_sql:
            self._page_sql[names] = self._database.compile(select_task_page(names))
        return await self._read(self._page_sql[names], params)

    async def pause(self, team: str, *, by: str) -> None:
        """Let a team begin no tasks until it is resumed."""
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

    async def _read(self, sql: str, params: Params) -> Sequence[TeamTask]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_task(row) for row in rows]


DECIDED: tuple[Overlap, ...] = ("skip", "replace", "confirm")
REPLACED = TaskEnd(state="cancelled", error="replaced by a new task like it")


def select_task_page(names: frozenset[str]) -> Select[Any]:
    """Return the query for a page of tasks with these parameters."""
    place = team_tasks.c.created_at, team_tasks.c.id
    found = select_fields(TeamTask, team_tasks)
    for name in sorted(names & TASK_FILTERS):
        found = found.where(match_filter(team_tasks.c[name], names))
    if "before_at" in names:
        found = found.where(tuple_(*place) < tuple_(bindparam("before_at"), bindparam("before_id")))
    newest = found.order_by(*(column.desc() for column in place))
    return newest.limit(bindparam("limit")).offset(literal_column("0"))


def check_waiting(task: TeamTask, count: int, *, limit: int) -> None:
    """Raise LimitReached when as many tasks of its owner wait as may; a question does not wait."""
    if count >= limit and not task.read_only:
        raise LimitReached(f"{count} tasks of their owner wait already, as many as may", retry_after=5.0)


def task_event(name: str, task: TeamTask) -> NewEvent:
    """Return the event that tells where a task was given, or else in its own session, what became of it."""
    body = {
        "taskId": task.id,
        "team": task.team,
        "state": task.state,
        "sessionId": task.session_id,
        "runId": task.run_id,
        "error": task.error,
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
    return {**to_params(task), "chain": encode_json(task.chain or None)}


def to_task(row: Row) -> TeamTask:
    """Return the task in a row."""
    fields = to_fields(TeamTask, row)
    flags = {name: bool(fields[name]) for name in ("read_only", "detached", "wake")}
    chain = decode_json(fields["chain"], tuple[str, ...]) or ()
    return TeamTask(**fields | flags | {"chain": chain})


def with_priority(task: TeamTask, priority: TaskPriority) -> TeamTask:
    """Return a task with a priority, and its rank."""
    return replace(task, priority=priority, rank=TASK_RANKS[priority])
