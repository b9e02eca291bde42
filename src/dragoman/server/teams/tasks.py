"""HTTP handlers of the tasks of teams: give one, list them, read the outcome of one, cancel it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

import msgspec

from dragoman.errors import BadRequest, Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.operations.authorization import restrict_owner, visible_owner
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.sessions.session_lookup import find_session_for
from dragoman.session_ids import session_id_for
from dragoman.store.sessions.sessions import SessionRepository
from dragoman.store.teams.task_records import Overlap, TaskPriority, TaskState, TeamTask
from dragoman.teams.tasks.administration import StoredTasks
from dragoman.teams.tasks.new_task import NewTask
from dragoman.teams.tasks.service import TeamTasks

Json: TypeAlias = dict[str, Any]
MAX_BODY = 1_000_000  # bytes
MAX_PAGE = 200
CANCELLED = "cancelled by its owner"
FILTERS: Mapping[str, str] = {
    "team": "team",
    "state": "state",
    "owner": "owner",
    "correlationId": "correlation_id",
    "text": "text",
}


class TaskBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The body of a new task. `session` gets its result, and with `wake` its agent answers it."""

    team: str
    task: str
    priority: TaskPriority = "normal"
    overlap: Overlap = "allow"
    topic: str | None = None
    session: str | None = None
    wake: bool = False
    budget: float | None = None
    seconds: float | None = None
    correlation_id: str | None = None
    dedup_key: str | None = None


class TaskHandlers:
    """Handlers of `/api/tasks`, and of the pauses of teams.

    A key sees its owner's tasks; with the scope "admin" it sees all.
    """

    def __init__(self, tasks: StoredTasks, sessions: SessionRepository) -> None:
        """Only `TeamTasks` takes new tasks: a hub must be running for that."""
        self._tasks = tasks
        self._sessions = sessions

    async def create(self, exchange: Exchange) -> None:
        """Give a task to a team. It is queued when the response is sent."""
        if not isinstance(self._tasks, TeamTasks):
            raise Unavailable("To give a task needs a running hub.", hint="`dragoman serve` starts one")
        body = parse_body(await exchange.read_json(MAX_BODY))
        source: str | None = None
        if body.session is not None:
            session = await find_session_for(
                self._sessions, body.session, caller=exchange.identity, role="write"
            )
            source = session.id
        new = NewTask(
            team=body.team,
            text=body.task,
            priority=body.priority,
            overlap=body.overlap,
            topic=body.topic,
            source_session=source,
            deliver="none" if source is None else "session",
            wake=body.wake,
            budget=body.budget,
            deadline=None if body.seconds is None else time.time() + body.seconds,
            correlation_id=body.correlation_id,
            dedup_key=body.dedup_key,
        )
        submitted = await self._tasks.submit(new, exchange.identity)
        task = submitted.task
        headers = {"location": f"/api/tasks/{task.id}"}
        await exchange.respond(202, {"id": task.id, "isNew": submitted.is_new}, headers=headers)

    async def list(self, exchange: Exchange) -> None:
        """List tasks, newest first; `?team`, `?state`, `?text`, `?correlationId` and `?owner` filter."""
        query = exchange.query
        filters: Mapping[str, str] = {name: query[key] for key, name in FILTERS.items() if key in query}
        filters = restrict_owner(filters, visible_owner(exchange.identity))
        states = get_args(TaskState)
        if filters.get("state", "done") not in states:
            raise BadRequest(
                f"there is no state {filters['state']!r}; there are {', '.join(states)}", field="state"
            )
        limit = parse_limit(query.get("limit", "50"), maximum=MAX_PAGE)
        before = await self._tasks.get(query["before"], exchange.identity) if "before" in query else None
        found = await self._tasks.list(filters, before=before, limit=limit)
        shown = [task_to_json(task, caller=exchange.identity) for task in found]
        await exchange.respond(200, {"tasks": shown, "next": found[-1].id if len(found) == limit else None})

    async def get(self, exchange: Exchange) -> None:
        """Return one task with its result."""
        task = await self._tasks.get(exchange.path_params["id"], exchange.identity)
        await exchange.respond(200, task_to_json(task, caller=exchange.identity))

    async def cancel(self, exchange: Exchange) -> None:
        """Cancel a task and all below it; one that has ended stays as it is."""
        task = await self._tasks.cancel(exchange.path_params["id"], exchange.identity, reason=CANCELLED)
        await exchange.respond(200, task_to_json(task, caller=exchange.identity))

    async def pause(self, exchange: Exchange) -> None:
        """Pause a team: it begins no tasks until it is resumed."""
        name = exchange.path_params["name"]
        await self._tasks.pause(name, by=exchange.identity)
        await exchange.respond(200, {"team": name, "paused": True})

    async def resume(self, exchange: Exchange) -> None:
        """Let a team begin tasks again."""
        name = exchange.path_params["name"]
        await self._tasks.resume(name)
        await exchange.respond(200, {"team": name, "paused": False})


def parse_body(body: Any) -> TaskBody:
    """Parse the body of a new task. Raises BadRequest."""
    try:
        parsed = msgspec.convert(body, TaskBody)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body is invalid: {error}") from None
    for name in ("budget", "seconds"):
        value = getattr(parsed, name)
        if value is not None and not 0 < value < float("inf"):
            raise BadRequest(f"`{name}` must be above 0, got {value!r}", field=name)
    return parsed


def task_to_json(task: TeamTask, *, caller: Identity) -> Json:
    """Return a task as a JSON value."""
    return {
        "id": task.id,
        "team": task.team,
        "state": task.state,
        "result": task.result,
        "artifact": task.artifact,
        "error": task.error,
        "task": task.text,
        "topic": task.topic,
        "owner": task.owner,
        "priority": task.priority,
        "overlap": task.overlap,
        "source": task.source,
        "sourceSession": session_id_for(caller.owner, task.source_session),
        "parentCall": task.parent_call,
        "chain": list(task.chain),
        "readOnly": task.read_only,
        "detached": task.detached,
        "correlationId": task.correlation_id,
        "budget": task.budget,
        "deadline": task.deadline,
        "sessionId": session_id_for(caller.owner, task.session_id),
        "runId": task.run_id,
        "attempts": task.attempts,
        "createdAt": task.created_at,
        "startedAt": task.started_at,
        "endedAt": task.ended_at,
        "deliveredAt": task.delivered_at,
    }
