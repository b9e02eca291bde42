"""The tasks in call trees: each below the call that gave it, with its runs and their calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from dragoman.operations.call_tree import CallTreeNode, elapsed, shorten, with_tasks
from dragoman.operations.outcome import CallStatus
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TaskState, TeamTask

MAX_TASKS = 200  # of one answer
MAX_NESTED = 6  # levels of tasks below tasks
STATUS: Mapping[TaskState, CallStatus] = {
    "queued": "pending",
    "running": "running",
    "waiting": "pending",
    "done": "done",
    "failed": "failed",
    "cancelled": "aborted",
}
ReadRun: TypeAlias = Callable[[RunRecord], Awaitable[CallTreeNode]]
"""Returns the tree of a run, without tasks."""


class TaskList:
    """Reads the tasks of answers, of one owner or of all."""

    def __init__(self, store: Store, *, may_see: Callable[[str], bool]) -> None:
        self._store = store
        self._may_see = may_see

    async def list(self, run: RunRecord) -> Sequence[TeamTask]:
        """Return the tasks that the answer of a run gave, the first one first."""
        filters = {"source_session": run.session_id, "source_message": run.message_id}
        found = await self._store.team_tasks.list_page(filters, limit=MAX_TASKS)
        return [task for task in reversed(found) if self._may_see(task.owner)]

    async def runs(self, task: TeamTask) -> Sequence[RunRecord]:
        """Return the runs that answered a task."""
        return [each for each in await self._store.runs.list(task.session_id) if is_run_of(each, task)]

    async def path(self, run: RunRecord) -> Sequence[dict[str, str]]:
        """Return what a run is below, outermost first: the runs and calls that gave tasks, and the tasks."""
        task = await self._store.team_tasks.find_of_session(run.session_id)
        if task is None or not self._may_see(task.owner):
            return ()
        step = {"id": task.id, "kind": "task", "name": task.team, "status": STATUS[task.state]}
        if task.parent_call is None:
            return [step]
        calls = await self._store.calls.list_ancestors(task.parent_call)
        above = [
            {"id": each.id, "kind": "call", "name": each.operation, "status": each.status} for each in calls
        ]
        giver = await self._store.runs.get(calls[-1].run_id or "") if calls else None
        return [step] if giver is None else [*await self.path(giver), run_step(giver), *above, step]


class TaskTrees:
    """Adds tasks to trees of one owner, or of all."""

    def __init__(self, store: Store, read_run: ReadRun, *, may_see: Callable[[str], bool]) -> None:
        self.tasks = TaskList(store, may_see=may_see)
        self._read_run = read_run

    async def add(self, tree: CallTreeNode, run: RunRecord, *, depth: int = MAX_NESTED) -> CallTreeNode:
        """Return the tree of a run, or of a call in it, with the tasks that were given there."""
        if not depth:
            return tree
        nodes: dict[str | None, list[CallTreeNode]] = {}
        for task in await self.tasks.list(run):
            if tree.kind == "run" or task.parent_call is not None:
                nodes.setdefault(task.parent_call, []).append(await self._task_node(task, depth=depth))
        if tree.kind == "run":
            return with_tasks(tree, nodes)
        return with_tasks(tree, {id: nodes[id] for id in nodes if contains(tree, id)})

    async def _task_node(self, task: TeamTask, *, depth: int) -> CallTreeNode:
        runs = await self.tasks.runs(task)
        children = [await self.add(await self._read_run(run), run, depth=depth - 1) for run in runs]
        costs = [each.cost for each in children if each.cost is not None]
        return CallTreeNode(
            id=task.id,
            kind="task",
            name=task.team,
            status=STATUS[task.state],
            started_at=task.created_at,
            ended_at=task.ended_at,
            duration=elapsed(task.created_at, task.ended_at),
            agent=task.team,
            input=shorten(task.text),
            result=shorten(task.result),
            error={"code": task.state, "message": task.error} if task.error else None,
            cost=sum(costs) if costs else None,
            children=tuple(children),
        )


def is_run_of(run: RunRecord, task: TeamTask) -> bool:
    """Return whether a run in the session of a task answered it: a topic has several tasks."""
    begun = task.started_at is not None and run.started_at >= task.created_at
    return begun and (task.topic is None or task.ended_at is None or run.started_at <= task.ended_at)


def contains(tree: CallTreeNode, id: str | None) -> bool:
    """Return whether a tree has a node of this id."""
    return tree.id == id or any(contains(child, id) for child in tree.children)


def run_step(run: RunRecord) -> dict[str, str]:
    """Return a run as a step of a path."""
    status = "running" if run.status == "running" else "done"
    return {"id": run.id, "kind": "run", "name": run.model or run.agent or "run", "status": status}
