"""Budgets of tasks: what a task may spend, within what the call that gave it has left.

As long as one host has both, they share the caller's budget in memory. After a crash, and at another host,
the tasks of one answer share a budget that is rebuilt from what the database knows: what was left when the
first of them was given, less what they and the answer have spent since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dragoman.operations.budget import Budget
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TeamTask
from dragoman.teams.tasks.new_task import is_task_session

MAX_TASKS = 1_000  # of one answer
Origin: TypeAlias = tuple[str, str | None]
"""A session and an answer in it: where tasks were given."""


class TaskBudgets:
    """The budgets of the tasks whose runs this host has."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._callers: dict[str, Budget] = {}
        """The budgets of calls that gave tasks, by task."""
        self._limits: dict[str, Budget] = {}
        """What tasks may spend, by task."""
        self._shared: dict[Origin, Budget] = {}

    def share(self, task: TeamTask, budget: Budget | None) -> None:
        """Let a task spend from the budget of the call that gave it."""
        if budget is not None:
            self._callers[task.id] = budget

    def forget(self, task: TeamTask) -> None:
        """Forget a task that has ended."""
        self._callers.pop(task.id, None)
        self._limits.pop(task.id, None)
        if not self._limits:
            self._shared.clear()

    async def limit(self, task: TeamTask) -> Budget | None:
        """Return what a task may spend, with all below it; None without a limit."""
        if task.id in self._limits:
            return self._limits[task.id]
        above = self._callers.get(task.id) or await self._shared_budget(task)
        if task.budget is None and above is None:
            return None
        limit = Budget(usd=task.budget, parent=above)
        if task.attempts > 1 or task.state != "queued":
            limit.spent = await self._spent(task)
        return self._limits.setdefault(task.id, limit)

    async def of_answer(self, session_id: str, message_id: str | None) -> Budget | None:
        """Return what an answer shares with the tasks that it gave before a crash; None if it gave none."""
        tasks = await self._children(session_id, message_id)
        return await self._shared_budget(tasks[0]) if tasks else None

    async def _shared_budget(self, task: TeamTask) -> Budget | None:
        """Return what the tasks of one answer may spend together, and with it."""
        if task.source_session is None or task.detached:
            return None
        origin = (task.source_session, task.source_message)
        if origin in self._shared:
            return self._shared[origin]
        tasks = await self._children(*origin)
        limits = [each.budget_left for each in tasks if each.budget_left is not None]
        above = await self._above(task.source_session)
        if not limits:
            return above
        shared = Budget(usd=max(limits), parent=above)
        first = min(each.created_at for each in tasks)
        usage = await self._store.usage.totals(session_id=task.source_session, since=first)
        shared.spent = (usage.cost or 0.0) + sum([await self._spent(each) for each in tasks])
        return self._shared.setdefault(origin, shared)

    async def _above(self, session_id: str) -> Budget | None:
        """Return what the task that runs in a session may spend."""
        if not is_task_session(session_id):
            return None
        task = await self._store.team_tasks.find_of_session(session_id)
        return await self.limit(task) if task is not None and task.is_active else None

    async def _children(self, session_id: str, message_id: str | None) -> Sequence[TeamTask]:
        """Return the tasks given in an answer that end with it, the last one first."""
        filters = {"source_session": session_id, "source_message": message_id or ""}
        found = await self._store.team_tasks.list_page(filters, limit=MAX_TASKS)
        return [each for each in found if not each.detached]

    async def _spent(self, task: TeamTask) -> float:
        """Return what a task and those below it have cost, in US dollars."""
        usage = await self._store.usage.totals(session_id=task.session_id, since=task.created_at)
        below = await self._store.team_tasks.list_page({"source_session": task.session_id}, limit=MAX_TASKS)
        return (usage.cost or 0.0) + sum(
            [await self._spent(each) for each in below if each.created_at >= task.created_at]
        )
