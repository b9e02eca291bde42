"""Tasks of teams as the database has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from dragoman.errors import Conflict
from dragoman.store.accounts.budgets import ChargedBudget

TaskState: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]
TaskSource: TypeAlias = Literal["session", "call", "trigger", "api"]
TaskPriority: TypeAlias = Literal["low", "normal", "high", "critical"]
Overlap: TypeAlias = Literal["allow", "skip", "queue", "replace", "confirm"]
TaskDelivery: TypeAlias = Literal["session", "none"]
TASK_RANKS: Mapping[TaskPriority, int] = {"critical": 0, "high": 1, "normal": 2, "low": 3}
ACTIVE_STATES: tuple[TaskState, ...] = ("queued", "running", "waiting")
RESULT_PREFIX, TELL_PREFIX = "result_", "tell_"
"""Prefixes of the ids of messages that wake an agent: results of tasks, and messages of teams."""
TASK_FILTERS = frozenset(
    {"owner", "team", "state", "source_session", "source_message", "parent_call", "correlation_id"}
)


class TeamTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a team. `chain` are the agents above it, the first one first.

    `source_session` and `source_message` are the answer in which it was given, `parent_call` is the call.
    A `subagent` of the team does it, if set, in at most `max_steps`. `stall_level` is the last notice
    that it has waited for long: 1 a warning, 2 an error.
    `budget` is in US dollars, `budget_left` what the call that gave it had left, `deadline` in unix seconds.
    `shared_budgets` are those that it shares with that call, the innermost first.
    A `read_only` task answers a question: it calls only what reads, and does not wait in the queue of its
    team. A `detached` one continues when what gave it is stopped. `deliver` is where the result goes, and
    `wake` whether it begins a run there.
    """

    id: str
    owner: str
    key_id: str | None = None
    team: str
    topic: str | None = None
    subagent: str | None = None
    max_steps: int | None = None
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
    budget_left: float | None = None
    shared_budgets: tuple[ChargedBudget, ...] = ()
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
    stall_level: int | None = None

    @property
    def agent(self) -> str:
        """The agent that does it: the team's, or one of its sub-agents."""
        return self.team if self.subagent is None else f"{self.team}/{self.subagent}"

    @property
    def has_receiver(self) -> bool:
        """Whether a session gets the result."""
        return self.deliver == "session" and self.source_session is not None

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
    """The outcome of a submission: the `task` that was queued, or an earlier one in its place.

    `replaced` are those that it ended. `is_alone`: no other task waits in the queue of its team.
    """

    task: TeamTask
    is_new: bool = True
    replaced: tuple[TeamTask, ...] = ()
    is_alone: bool = False


class TaskOverlaps(Conflict):
    """A task like this one is active, and somebody has to confirm that this one may run beside it."""

    def __init__(self, task: TeamTask) -> None:
        super().__init__(
            f"the team {task.team!r} has a task like this already: {task.id} is {task.state}",
            hint="send `overlap`: allow, skip, queue or replace",
        )
        self.task = task
