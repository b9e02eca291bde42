"""Budgets of tasks: what a task may spend, within what the call that gave it has left.

The budgets of that call become shared when it gives its first task: rows of the database in which both
reserve what they spend, at whichever host, also after a crash. On the same host they also share them in
memory.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.accounts.shared_budgets import SharedBudgets
from dragoman.operations.budget import Budget
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TeamTask


class TaskBudgets:
    """The budgets of the tasks whose runs this host has."""

    def __init__(self, store: Store, shared: SharedBudgets) -> None:
        self._store = store
        self._shared = shared
        self._callers: dict[str, Budget] = {}
        """The budgets of calls that gave tasks, by task."""
        self._limits: dict[str, Budget] = {}
        """What tasks may spend, by task."""

    async def share(self, task: TeamTask, budget: Budget | None) -> TeamTask:
        """Let a task spend from the budget of the call that gives it; return the task with its shares."""
        if budget is None:
            return task
        charges = await self._shared.share(budget)
        self._callers[task.id] = budget
        return replace(task, shared_budgets=tuple(charges))

    async def rejoin(self, budget: Budget | None) -> None:
        """Share the budget of an answer again if it was shared before a crash."""
        if budget is not None:
            await self._shared.rejoin(budget)

    def forget(self, task: TeamTask) -> None:
        """Forget a task that has ended."""
        self._callers.pop(task.id, None)
        self._limits.pop(task.id, None)

    async def limit(self, task: TeamTask) -> Budget | None:
        """Return what a task may spend, with all below it; None without a limit."""
        if task.id in self._limits:
            return self._limits[task.id]
        above = self._callers.get(task.id) or await self._shared.restore(task.shared_budgets)
        if task.budget is None and above is None:
            return None
        limit = Budget(usd=task.budget, parent=above, name=f"task:{task.id}")
        if task.attempts > 1 or task.state != "queued":
            since = task.started_at or task.created_at  # earlier tasks of its topic used the same session
            usage = await self._store.usage.totals(session_id=task.session_id, since=since)
            limit.spent = usage.cost or 0.0
            await self._shared.rejoin(limit)
        return self._limits.setdefault(task.id, limit)
