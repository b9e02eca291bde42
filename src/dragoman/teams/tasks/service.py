"""The tasks of teams: submit, read, cancel and await them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.errors import NotFound
from dragoman.identity import Identity
from dragoman.operations.context import Context
from dragoman.operations.sanitize import escape_invisible
from dragoman.runs.registry import RunRegistry
from dragoman.store.store import Store
from dragoman.store.teams.task_records import ACTIVE_STATES, TaskEnd, TaskState, TaskSubmission, TeamTask
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.tasks.administration import StoredTasks
from dragoman.teams.tasks.call_contexts import TaskContexts
from dragoman.teams.tasks.delivery import MAX_WAKES
from dragoman.teams.tasks.new_task import (
    NewTask,
    is_task_session,
    make_task,
    task_session,
)
from dragoman.teams.tasks.worker import TaskWorker
from dragoman.teams.topic_routing import find_topic

MAX_WAITING = 1_000  # tasks of an owner
MAX_SHOWN = 20  # tasks of a team in its status
POLL_INTERVAL = 0.5  # seconds between two polls for the end of a task, which another host may run


class TeamTasks(StoredTasks):
    """The tasks of all teams of a running hub."""

    def __init__(
        self,
        store: Store,
        teams: TeamRegistry,
        *,
        runs: RunRegistry,
        contexts: TaskContexts,
        max_wakes: int = MAX_WAKES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(store)
        self.teams = teams
        self.on_remove: list[Callable[[str], Awaitable[None]]] = []
        """Called with each team that is about to be removed."""
        self.worker = TaskWorker(store, teams, runs=runs, contexts=contexts, max_wakes=max_wakes)
        self._contexts = contexts
        self._clock = clock

    async def submit(
        self, new: NewTask, identity: Identity, *, context: Context | None = None
    ) -> TaskSubmission:
        """Submit a task, for a call if it has a `context`. It is stored when this returns.

        Raises NotFound for an unknown team, with the names of all; TaskOverlaps, LimitReached, BadRequest,
        CallError.
        """
        team = self.teams.get(new.team)
        if new.topic is None and not new.read_only:
            new = replace(new, topic=find_topic(team.topics, new.text))
        task = make_task(new, identity, context=context, now=self._clock())
        if context is not None:  # also for a detached task, which could otherwise renew its budget for ever
            task = await self._contexts.budgets.share(task, context.budget)
        try:
            submitted = await self._store.team_tasks.submit(
                task, session=task_session(task), max_waiting=MAX_WAITING
            )
        except BaseException:
            self._contexts.budgets.forget(task)
            raise
        if submitted.task.id != task.id:
            self._contexts.budgets.forget(task)
        for replaced in submitted.replaced:
            self._contexts.forget(replaced)
            await self.worker.after_end(replaced)
        if submitted.is_new:
            if task.source_session is not None:
                self._contexts.sources.add(task.source_session)
            may_begin = submitted.is_alone and task.topic is None and task.overlap != "queue"
            self.worker.wake(task.team, only=task if may_begin else None)
            self.worker.hold_back(task)
        return submitted

    async def wait(self, task: TeamTask) -> TeamTask:
        """Wait until a task has ended, wherever it runs, and return it. NotFound when it was deleted."""
        while task.is_active:
            await self.worker.wait_for_end(task.id, seconds=POLL_INTERVAL)
            found = await self._store.team_tasks.get(task.id)
            if found is None:
                raise NotFound(f"the task {task.id!r} was deleted")
            task = found
        return task

    async def wait_all(self, tasks: Sequence[TeamTask]) -> Sequence[TeamTask]:
        """Wait until tasks have ended, and return them. If the caller is cancelled, so are they."""
        try:
            return await asyncio.gather(*map(self.wait, tasks))
        except asyncio.CancelledError:
            self.worker.withdraw(tasks)
            raise

    async def list_below(self, session_id: str) -> Sequence[TeamTask]:
        """Return the tasks that were given in a session, newest first: those that are not over yet."""
        return list(reversed(await self._store.team_tasks.open_children(session_id)))

    async def find_of_session(self, session_id: str | None) -> TeamTask | None:
        """Return the task that runs in a session; None in any other session."""
        if session_id is None or not is_task_session(session_id):
            return None
        return await self._store.team_tasks.find_of_session(session_id)

    async def tell(
        self, session_id: str, text: str, *, sender: str, identity: Identity, key: str | None
    ) -> None:
        """Send a message to the agent of a session: it reads it at its next step, or is woken by it.

        It is one line of JSON, so that nothing in it passes for the hub's words. With a `key` it is sent
        once. Raises NotFound, LimitReached.
        """
        quoted = escape_invisible(msgspec.json.encode({"message": text}).decode())
        await self.worker.delivery.tell(
            session_id, text=f"[the hub] A message of {sender}:\n{quoted}", identity=identity, key=key
        )

    async def count_states(self, identity: Identity) -> Mapping[str, Mapping[str, int]]:
        """Return how many active tasks of a caller's owner each team has, by state."""
        return await self._store.team_tasks.count_states(identity.owner)

    async def paused_teams(self) -> Sequence[str]:
        """Return the teams that begin no tasks."""
        return await self._store.team_tasks.paused_teams()

    async def list_active(self, team: str, identity: Identity) -> Sequence[TeamTask]:
        """Return the tasks of a caller's owner that a team has begun, newest first."""
        return await self._list_states(team, identity, states=("running", "waiting"), limit=MAX_SHOWN)

    async def list_begun(self, team: str) -> Sequence[TeamTask]:
        """Return active tasks of a team, of all owners; not all of them if there are very many."""
        pages = [await self.list({"team": team, "state": state}, limit=200) for state in ACTIVE_STATES]
        return [task for page in pages for task in page]

    async def list_ended(self, team: str, identity: Identity, *, limit: int) -> Sequence[TeamTask]:
        """Return the tasks of a caller's owner that a team has ended, newest first in each state."""
        return await self._list_states(team, identity, states=("done", "failed", "cancelled"), limit=limit)

    async def _list_states(
        self, team: str, identity: Identity, *, states: Sequence[TaskState], limit: int
    ) -> Sequence[TeamTask]:
        filters = [{"owner": identity.owner, "team": team, "state": state} for state in states]
        pages = await asyncio.gather(*(self.list(each, limit=limit) for each in filters))
        return [task for page in pages for task in page]

    async def resume(self, team: str) -> None:
        """See `StoredTasks.resume`; the tasks that wait begin at once."""
        await super().resume(team)
        self.worker.wake(team)

    async def _end(self, task: TeamTask, ending: TaskEnd) -> None:
        await self.worker.end(task, ending)

    def _check(self, team: str) -> str:
        return self.teams.get(team).name
