"""Tasks as the database has them: read, cancel and pause them, also while no hub runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.errors import BadRequest, NotFound
from dragoman.identity import Identity
from dragoman.operations.authorization import is_visible, visible_owner
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TaskEnd, TeamTask
from dragoman.teams.spec import NAME_PATTERN

LIST_HINT = "`dragoman teams tasks` and GET /api/tasks list them"


class StoredTasks:
    """The tasks in a store. Callers see their owner's tasks only, unless they have the scope admin.

    A hub that runs over the same data notices within seconds what this has changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, id: str, identity: Identity) -> TeamTask:
        """Return a task. Raises NotFound, also for another owner's task."""
        task = await self._store.team_tasks.get(id)
        if task is None or not is_visible(task.owner, to=visible_owner(identity)):
            raise NotFound(f"there is no task {id[:100]!r}", hint=LIST_HINT)
        return task

    async def list(
        self, filters: Mapping[str, str], *, before: TeamTask | None = None, limit: int = 50
    ) -> Sequence[TeamTask]:
        """Return the tasks that match, newest first. The caller restricts the owner."""
        return await self._store.team_tasks.list_page(filters, before=before, limit=limit)

    async def cancel(self, id: str, identity: Identity, *, reason: str) -> TeamTask:
        """End a task and all below it, and return it; one that has ended stays as it is. Raises NotFound."""
        task = await self.get(id, identity)
        await self._end(task, TaskEnd(state="cancelled", error=reason))
        return await self.get(id, identity)

    async def pause(self, team: str, *, by: Identity) -> None:
        """Let a team begin no tasks until it is resumed. Raises NotFound, BadRequest."""
        await self._store.team_tasks.pause(self._check(team), by=by.owner)

    async def resume(self, team: str) -> None:
        """Let a team begin tasks again. Raises NotFound, BadRequest."""
        await self._store.team_tasks.resume(self._check(team))

    async def _end(self, task: TeamTask, ending: TaskEnd) -> None:
        await self._store.team_tasks.end(task, ending)

    def _check(self, team: str) -> str:
        """Return the name of a team. Raises BadRequest for one that no team can have."""
        if not NAME_PATTERN.fullmatch(team):
            raise BadRequest(f"{team[:100]!r} is not the name of a team")
        return team
