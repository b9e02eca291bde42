"""The calls of a task's runs: below the agents that gave the task, within its budget and its deadline."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from msgspec.structs import replace

from dragoman.identity import Identity
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context, ParentAgent, PolicyDecider
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Rule, Verdict
from dragoman.operations.registry import RESERVED_NAMESPACE
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TeamTask
from dragoman.teams.tasks.new_task import is_task_session

ALLOWED = Verdict("allow")
READ_ONLY = Verdict("deny", Rule(decision="deny", reason="it answers a question, and may only read"))


class ReadOnlyDecider:
    """Denies what does not only read."""

    def decide(self, operation: Operation, *, identity: Identity, agent: str | None = None) -> Any:
        """Return the verdict on an operation, whoever calls it."""
        is_read = operation.policy_effect == "read" or operation.namespace == RESERVED_NAMESPACE
        return ALLOWED if is_read else READ_ONLY


class TaskContexts:
    """Binds the runs in the sessions of tasks to their tasks, also after a crash, and at another host."""

    def __init__(self, store: Store, decider: PolicyDecider) -> None:
        """`decider` is the policy of the hub: what a task calls has to be allowed to all agents above it."""
        self._store = store
        self._decider = decider
        self._budgets: dict[str, Budget] = {}
        self.sessions: dict[str, TeamTask] = {}
        """The tasks whose runs this host has, by their sessions."""

    def share_budget(self, task: TeamTask, budget: Budget | None) -> None:
        """Let a task spend from the budget of the call that gave it, as long as this host has both."""
        if budget is not None:
            self._budgets[task.id] = budget

    def forget(self, task: TeamTask) -> None:
        """Forget a task that has ended."""
        self._budgets.pop(task.id, None)
        self.sessions.pop(task.session_id, None)

    async def bind(self, context: Context) -> Context:
        """Return the context of a run within its task; as it is for the run of any other session."""
        if not is_task_session(context.session_id):
            return context
        task = await self._store.team_tasks.find_of_session(str(context.session_id))
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
            budget=await self._budget(task, context.budget),
        )

    def _parents(self, task: TeamTask) -> tuple[ParentAgent, ...]:
        above = tuple(ParentAgent(agent, self._decider) for agent in task.chain)
        return (*above, ParentAgent(None, ReadOnlyDecider())) if task.read_only else above

    async def _budget(self, task: TeamTask, own: Budget | None) -> Budget | None:
        """Return the budget of a run: its own, within what is left of that of its task."""
        shared = self._budgets.get(task.id)
        if not task.is_active or (task.budget is None and shared is None):
            return own
        limit = Budget(usd=task.budget, parent=shared)
        if task.attempts > 1 or task.state != "queued":
            limit.spent = (await self._store.usage.totals(session_id=task.session_id)).cost or 0.0
        if own is None:
            return limit
        own.parent = limit
        return own


def earlier(deadline: float | None, end: float | None) -> float | None:
    """Return the earlier of a deadline of the event loop's clock, and an end in unix seconds."""
    if end is None:
        return deadline
    own = asyncio.get_running_loop().time() + end - time.time()
    return own if deadline is None else min(own, deadline)
