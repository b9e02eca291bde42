"""The calls of a task's runs: below the agents that gave the task, within its budget and its deadline."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from msgspec.structs import replace

from dragoman.accounts.shared_budgets import SharedBudgets
from dragoman.identity import Identity
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context, ParentAgent, PolicyDecider
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Rule, Verdict
from dragoman.operations.registry import RESERVED_NAMESPACE
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TeamTask
from dragoman.teams.tasks.budgets import TaskBudgets
from dragoman.teams.tasks.new_task import is_task_session

ALLOWED = Verdict("allow")
READ_ONLY = Verdict("deny", Rule(decision="deny", reason="it answers a question, and may only read"))


class ReadOnlyDecider:
    """Denies every operation that is not read-only."""

    def decide(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> Any:
        """Return the verdict on an operation, whoever calls it."""
        is_read = operation.policy_effect == "read" or operation.namespace == RESERVED_NAMESPACE
        return ALLOWED if is_read else READ_ONLY


class TaskContexts:
    """Binds the runs in the sessions of tasks to their tasks, also after a crash, and at another host."""

    def __init__(self, store: Store, decider: PolicyDecider, *, shared_budgets: SharedBudgets) -> None:
        """`decider` is the policy of the hub: what a task calls has to be allowed to all agents above it."""
        self._store = store
        self._decider = decider
        self.budgets = TaskBudgets(store, shared_budgets)
        self.sessions: dict[str, TeamTask] = {}
        """The tasks whose runs this host has, by their sessions."""
        self.sources: set[str] = set()
        """The sessions in which tasks were given at this host."""
        self._beginning: dict[str, TeamTask] = {}

    def begin(self, task: TeamTask) -> None:
        """Remember a task whose first run begins at this host, so that `bind` does not read it again."""
        self.sessions[task.session_id] = self._beginning[task.session_id] = task

    def not_begun(self, task: TeamTask) -> None:
        """Undo `begin`: another host has the task, or it has to wait."""
        for tasks in (self.sessions, self._beginning):
            if tasks.get(task.session_id) is task:
                del tasks[task.session_id]

    def find_childless(self, session_id: str) -> TeamTask | None:
        """Return the task of a session, as it was before its only run, if that gave no tasks; else None."""
        task = self.sessions.get(session_id)
        is_first = task is not None and task.state == "queued" and task.topic is None
        return task if is_first and session_id not in self.sources else None

    def forget(self, task: TeamTask) -> None:
        """Forget a task that has ended."""
        self.budgets.forget(task)
        self.sessions.pop(task.session_id, None)
        self.sources.discard(task.session_id)
        self._beginning.pop(task.session_id, None)

    async def bind(self, context: Context) -> Context:
        """Return the context of a run within its task; as it is for the run of any other session."""
        if context.replayed_calls is not None:
            await self.budgets.rejoin(context.budget)
        if not is_task_session(context.session_id):
            return context
        task = await self._find(str(context.session_id))
        if task is None or task.owner != context.identity.owner:
            return context
        if task.is_active:
            self.sessions[task.session_id] = task
        if task.state == "waiting":
            await self._store.team_tasks.move(task.id, "running", run_id=context.run_id)
        return replace(
            context,
            parent_agents=(*context.parent_agents, *self._parents(task)),
            deadline=earlier(context.deadline, task.deadline),
            budget=within(context.budget, await self.budgets.limit(task) if task.is_active else None),
        )

    async def _find(self, session_id: str) -> TeamTask | None:
        beginning = self._beginning.pop(session_id, None)
        return beginning or await self._store.team_tasks.find_of_session(session_id)

    def _parents(self, task: TeamTask) -> tuple[ParentAgent, ...]:
        above = tuple(ParentAgent(agent, self._decider) for agent in task.chain)
        return (*above, ParentAgent(None, ReadOnlyDecider())) if task.read_only else above


def within(own: Budget | None, limit: Budget | None) -> Budget | None:
    """Return a budget that is charged to a limit, too."""
    if own is None or limit is None:
        return own or limit
    own.parent = limit
    return own


def earlier(deadline: float | None, end: float | None) -> float | None:
    """Return the earlier of a deadline of the event loop's clock, and an end in unix seconds."""
    if end is None:
        return deadline
    own = asyncio.get_running_loop().time() + end - time.time()
    return own if deadline is None else min(own, deadline)
