"""The SQL of the tasks of teams."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    and_,
    bindparam,
    case,
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

from dragoman.store.connection import Compiler, select_fields
from dragoman.store.tables.core import queued_runs, runs, team_pauses, team_tasks
from dragoman.store.teams.task_records import (
    ACTIVE_STATES,
    RESULT_PREFIX,
    TELL_PREFIX,
    TaskEnd,
    TaskState,
    TeamTask,
)


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
    """Return the condition that a task waits, and no earlier one has to end first."""
    earlier = TABLE.alias("earlier")
    # The sum keeps SQLite from reading all earlier tasks of the owner, in the index that has their times.
    before = tuple_(earlier.c.created_at + ZERO, earlier.c.id) < tuple_(TABLE.c.created_at, TABLE.c.id)
    alike = (earlier.c[name] == TABLE.c[name] for name in ("team", "owner", "hash"))
    is_active = state_in(*ACTIVE_STATES, of=earlier), earlier.c.delivered_at.is_(None)
    is_behind = exists(select(earlier.c.id)).where(*alike, *is_active, before)
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
        alike = FOUND.where(TEAM, OWNED, TABLE.c.hash == bindparam("hash"), ACTIVE, IS_OPEN)
        running = count.where(TEAM, state_in("running"), IS_OPEN, TABLE.c.read_only.is_(false()))
        self.insert = compiler.compile(compiler.insert(TABLE).on_conflict_do_nothing())
        self.get = compiler.compile(FOUND.where(THIS))
        self.of_key = compiler.compile(FOUND.where(OWNED, TABLE.c.dedup_key == bindparam("key")))
        self.alike = compiler.compile(alike)
        self.count_waiting = compiler.compile(count.where(OWNED, state_in("queued"), IS_OPEN))
        self.count_questions = compiler.compile(
            count.where(OWNED, ACTIVE, IS_OPEN, TABLE.c.read_only.is_not(false()))
        )
        self.count_running = compiler.compile(running)
        self.claim = compiler.compile(
            update(TABLE).where(THIS, claimable()).values(begun).returning(*COLUMNS)
        )
        self.move = compiler.compile(update(TABLE).where(THIS, *has_moved).values(moved).returning(*COLUMNS))
        end = update(TABLE).where(THIS, ACTIVE).values(ended).returning(*COLUMNS)
        self.end = compiler.compile(end)
        message_waits = exists(select(queued_runs.c.session_id)).where(
            queued_runs.c.session_id == TABLE.c.session_id, queued_runs.c.status == literal_column("'queued'")
        )
        self.end_answered = compiler.compile(end.where(~message_waits))
        waits_since = case((state_in("queued"), TABLE.c.created_at), else_=TABLE.c.started_at)
        level: ColumnElement[int] = bindparam("level")
        stalled = (
            state_in("queued", "waiting"),
            IS_OPEN,
            waits_since < bindparam("since"),
            func.coalesce(TABLE.c.stall_level, ZERO) < level,
        )
        self.stall = compiler.compile(
            update(TABLE).where(*stalled).values(stall_level=level).returning(*COLUMNS)
        )
        delivered = update(TABLE).where(THIS, IS_OPEN, ~ACTIVE).values(delivered_at=bindparam("now"))
        self.deliver = compiler.compile(delivered)
        self.pause = compiler.compile(compiler.insert(team_pauses).on_conflict_do_nothing())
        self.resume = compiler.compile(delete(team_pauses).where(team_pauses.c.team == bindparam("team")))
        self._add_ends(compiler)

    def _add_ends(self, compiler: Compiler) -> None:
        """Add the statements after which a failed or cancelled task wakes no agent any more."""
        giver, later = TABLE.alias("giver"), TABLE.alias("later")
        has_failed = exists(select(giver.c.id)).where(
            giver.c.session_id == TABLE.c.source_session,
            state_in("failed", "cancelled", of=giver),
            giver.c.ended_at >= TABLE.c.created_at,
        )
        goes_on = exists(select(later.c.id)).where(
            later.c.session_id == TABLE.c.source_session, state_in(*ACTIVE_STATES, of=later)
        )
        self.giver_is_over = compiler.compile(select(TABLE.c.id).where(THIS, has_failed, ~goes_on))
        message = queued_runs.c.message_id
        wakes = [
            func.substr(message, literal_column("1"), literal_column(str(len(prefix))))
            == literal_column(f"'{prefix}'")
            for prefix in (RESULT_PREFIX, TELL_PREFIX)
        ]
        withdrawn: dict[str, Any] = {"status": literal_column("'withdrawn'"), "ended_at": bindparam("now")}
        in_session = queued_runs.c.session_id == bindparam("session_id")
        is_queued = queued_runs.c.status == literal_column("'queued'")
        self.withdraw_wakes = compiler.compile(
            update(queued_runs).where(in_session, is_queued, or_(*wakes)).values(withdrawn)
        )


class TaskListStatements:
    """The SQL of `TeamTaskRepository` that finds tasks; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        order = TABLE.c.rank, TABLE.c.created_at, TABLE.c.id
        newest = TABLE.c.created_at.desc(), TABLE.c.id.desc()
        ready = and_(claimable(), ~IS_BUSY)
        at_work = case((state_in("running", "waiting"), ZERO), else_=literal_column("1"))
        of_session = FOUND.where(TABLE.c.session_id == bindparam("session_id")).order_by(at_work, *newest)
        children = FOUND.where(TABLE.c.source_session == bindparam("session_id"), IS_OPEN)
        idle = FOUND.where(IS_OPEN, state_in("running"), ~IS_BUSY)
        late = FOUND.where(IS_OPEN, ACTIVE, TABLE.c.deadline < bindparam("now"))
        # From the few active runs to their tasks: a join would read all tasks.
        busy_sessions = select(runs.c.session_id).where(RUN_IS_ACTIVE)
        own_run = exists(select(runs.c.id)).where(runs.c.id == TABLE.c.run_id, RUN_IS_ACTIVE)
        stopped = FOUND.where(TABLE.c.session_id.in_(busy_sessions), state_in("cancelled"), own_run)
        origin = and_(
            runs.c.session_id == TABLE.c.source_session, runs.c.message_id == TABLE.c.source_message
        )
        was_stopped = runs.c.status == literal_column("'stopped'")
        above = TABLE.alias("above")  # the task that gave it; sessions of topics have several
        is_giver = or_(above.c.topic.is_(None), above.c.run_id == runs.c.id)
        has_failed = exists(select(above.c.id)).where(
            above.c.session_id == TABLE.c.source_session, state_in("failed", "cancelled", of=above), is_giver
        )
        is_orphan = or_(was_stopped, has_failed), TABLE.c.detached.is_(false())
        orphans = FOUND.join(runs, origin).where(IS_OPEN, ACTIVE, *is_orphan)
        counted = select(TABLE.c.team, TABLE.c.state, func.count()).where(OWNED, ACTIVE, IS_OPEN)
        teams = select(TABLE.c.team).where(ready).distinct().order_by(TABLE.c.team)
        self.of_session = compiler.compile(of_session.limit(literal_column("1")).offset(ZERO))
        self.ready = compiler.compile(FOUND.where(TEAM, ready).order_by(*order).limit(LIMIT).offset(ZERO))
        self.ready_teams = compiler.compile(teams)
        queued = select(TABLE.c.id).where(state_in("queued"), IS_OPEN)
        self.queued = compiler.compile(queued.limit(LIMIT).offset(ZERO))
        open_run = select(runs.c.id).where(RUN_IS_ACTIVE)
        unsettled = or_(exists(select(TABLE.c.id).where(IS_OPEN)), exists(open_run))
        self.has_unsettled = compiler.compile(select(unsettled))
        self.queued_in_team = compiler.compile(queued.where(TEAM).limit(LIMIT).offset(ZERO))
        source = TABLE.c.source_session
        ended = state_in("done", "failed", "cancelled")
        awaiting = select(source).where(IS_OPEN, ended, source > bindparam("after")).distinct()
        self.awaiting_sessions = compiler.compile(awaiting.order_by(source).limit(LIMIT).offset(ZERO))
        self.idle = compiler.compile(idle.limit(LIMIT).offset(ZERO))
        self.late = compiler.compile(late.limit(LIMIT).offset(ZERO))
        self.orphans = compiler.compile(orphans.limit(LIMIT).offset(ZERO))
        self.still_running = compiler.compile(stopped.limit(LIMIT).offset(ZERO))
        self.open_children = compiler.compile(children.order_by(*order[1:]))
        self.count_states = compiler.compile(counted.group_by(TABLE.c.team, TABLE.c.state))
        self.paused = compiler.compile(select(team_pauses.c.team).order_by(team_pauses.c.team))
