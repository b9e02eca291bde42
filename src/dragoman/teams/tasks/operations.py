"""`teams.ask`, `teams.delegate`, `teams.status`, `teams.list` and `teams.history`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

import msgspec
from msgspec.structs import replace
from pydantic import Field

from dragoman.errors import ApprovalNeeded
from dragoman.operations.approval import ApprovalItem
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.ledger import hash_input
from dragoman.operations.operation import Operation
from dragoman.store.teams.task_records import Overlap, TaskOverlaps, TaskPriority, TeamTask
from dragoman.teams.spec import TeamSpec
from dragoman.teams.tasks.assignees import member_names, require_member, with_members
from dragoman.teams.tasks.new_task import MAX_KEY, MAX_TEXT, NewTask
from dragoman.teams.tasks.results import result_to_json
from dragoman.teams.tasks.service import TeamTasks

NAMESPACE = "teams"
MAX_ASKED = 10  # teams in one call
MAX_LISTED = 200
SHOWN_TEXT = 200  # characters of a task in lists
DAY = 86_400.0
ASK_SECONDS = 600.0
UNCONFIRMED = b"unconfirmed"

TeamName = Annotated[str, Field(min_length=1, max_length=64)]
TaskText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY)]
Json = dict[str, Any]


def task_operations(tasks: TeamTasks) -> Sequence[Operation]:
    """Return the operations by which agents give tasks to teams, and look at them."""
    return (
        with_members(ask_operation(tasks), tasks.teams, field="teams"),
        with_members(delegate_operation(tasks), tasks.teams, field="team"),
        with_members(status_operation(tasks), tasks.teams, field="team", has_own=True),
        list_operation(tasks),
        with_members(history_operation(tasks), tasks.teams, field="team", has_own=True),
    )


def ask_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.ask`."""

    async def ask(
        teams: Annotated[list[TeamName], Field(min_length=1, max_length=MAX_ASKED)],
        question: TaskText,
        *,
        seconds: Annotated[float, Field(gt=0, le=3_600)] = ASK_SECONDS,
        context: Context,
    ) -> list[Json]:
        """Ask teams a question and wait for their answers. They only read, and several answer at once.

        Args:
            teams: The teams to ask.
            question: The whole question, with all that is needed for it: they see nothing else.
            seconds: How long to wait at most.
        """
        names = list(dict.fromkeys(teams))
        for name in names:
            require_member(tasks.teams, name, context=context)
        now = time.time()
        questions = [
            await submit(
                tasks,
                NewTask(
                    team=name,
                    text=question,
                    source="call",
                    read_only=True,
                    deadline=now + seconds,
                    dedup_key=call_key(context, name),
                ),
                context=context,
            )
            for name in names
        ]
        return [result_to_json(task) for task in await tasks.wait_all(questions)]

    return from_function(ask, NAMESPACE, effect="read")


async def submit(tasks: TeamTasks, new: NewTask, *, context: Context) -> TeamTask:
    """Submit a task of a call, and return it."""
    return (await tasks.submit(new, context.identity, context=context)).task


def call_key(context: Context, suffix: str = "") -> str | None:
    """Return the key of a task that a call gives: the same when it is repeated after a crash."""
    return None if context.idempotency_key is None else hash_input([context.idempotency_key, suffix])


class DelegateInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `teams.delegate` takes."""

    team: str
    task: str
    priority: TaskPriority = "normal"
    overlap: Overlap = "confirm"
    topic: str | None = None
    detached: bool = False
    budget: float | None = None
    seconds: float | None = None
    correlation_id: str | None = None


DELEGATE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "team": {"type": "string", "description": "The team that does it."},
        "task": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_TEXT,
            "description": "The whole task, with all that is needed for it: the team sees nothing else.",
        },
        "priority": {
            "enum": list(get_args(TaskPriority)),
            "description": "Its priority among the team's tasks.",
        },
        "overlap": {
            "enum": list(get_args(Overlap)),
            "description": "What to do while the team has a task like this: run both (allow), keep that one"
            " (skip), wait for it (queue), stop it (replace), or ask a person (confirm).",
        },
        "topic": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY,
            "description": "A conversation of the team that the task belongs to.",
        },
        "detached": {
            "type": "boolean",
            "description": "Whether it continues when this conversation is stopped.",
        },
        "budget": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "What it may cost, in US dollars.",
        },
        "seconds": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "How long it may take, with its time in the queue.",
        },
        "correlation_id": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY,
            "description": "A name that you choose; the result carries it.",
        },
    },
    "required": ["team", "task"],
    "additionalProperties": False,
}


def delegate_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.delegate`."""

    async def delegate(input: Mapping[str, Any], context: Context) -> Json:
        wanted = msgspec.convert(input, DelegateInput)
        require_member(tasks.teams, wanted.team, context=context)
        own = tasks.teams.team_of(context)
        new = NewTask(
            team=wanted.team,
            text=wanted.task,
            source="call",
            priority=wanted.priority,
            overlap=wanted.overlap,
            topic=wanted.topic,
            detached=wanted.detached,
            budget=wanted.budget,
            deadline=None if wanted.seconds is None else time.time() + wanted.seconds,
            correlation_id=wanted.correlation_id,
            dedup_key=call_key(context),
            deliver="session",
            wake=own is not None and own.wake,
        )
        return await confirm_overlap(tasks, new, context=context)

    return Operation.from_schema(
        delegate,
        DELEGATE_SCHEMA,
        namespace=NAMESPACE,
        name="delegate",
        description="Give a task to a team, and go on: its result arrives as a message in this conversation.",
        effect="idempotent",
        resumes=True,
        only_stores=True,
    )


async def confirm_overlap(tasks: TeamTasks, new: NewTask, *, context: Context) -> Json:
    """Submit a task; while one like it is active, ask a person first whether both may run.

    Raises ApprovalNeeded.
    """
    if context.state is not None and context.grant is not None:
        new = replace(new, overlap="allow" if context.grant.approved else "skip")
    try:
        submitted = await tasks.submit(new, context.identity, context=context)
    except TaskOverlaps as error:
        input = {"team": new.team, "task": new.text, "like": error.task.id}
        item = ApprovalItem("teams.delegate", input, hash_input(input), reason=error.message)
        raise ApprovalNeeded(error.message, items=[item], state=UNCONFIRMED) from None
    return {**task_to_item(submitted.task), "isNew": submitted.is_new}


def status_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.status`."""

    async def status(team: TeamName | None = None, *, context: Context) -> list[Json]:
        """Tell what teams do now: how many of your tasks run and wait, and which.

        Args:
            team: One team; without it, all that you may ask, and your own.
        """
        names = [team] if team is not None else visible_names(tasks, context)
        counts = await tasks.count_states(context.identity)
        paused = await tasks.paused_teams()
        found = []
        for spec in map(tasks.teams.get, names):
            running = await tasks.list_active(spec.name, context.identity)
            found.append(
                {
                    "team": spec.name,
                    "concurrency": spec.concurrency,
                    "paused": spec.name in paused,
                    "tasks": dict(counts.get(spec.name, {})),
                    "current": [task_to_item(task) for task in running],
                }
            )
        return found

    return from_function(status, NAMESPACE, effect="read")


def visible_names(tasks: TeamTasks, context: Context) -> list[str]:
    """Return the teams that a caller may look at: its own, and those that it may ask."""
    own = tasks.teams.team_of(context)
    return sorted({*member_names(tasks.teams, context), *([] if own is None else [own.name])})


def list_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.list`."""

    async def list_teams(recursive: bool = False, *, context: Context) -> list[Json]:
        """List the teams that you may ask, with what each accepts.

        Args:
            recursive: Whether to list the teams below them, too.
        """
        names = list(member_names(tasks.teams, context))
        for name in names:
            if recursive:
                names += [each.name for each in tasks.teams.children(name) if each.name not in names]
        return [team_to_item(tasks.teams.get(name)) for name in sorted(names)]

    return from_function(list_teams, NAMESPACE, name="list", effect="read")


def team_to_item(team: TeamSpec) -> Json:
    """Return a team as callers see it."""
    return {
        "team": team.name,
        "description": team.description,
        "accepts": list(team.accepts),
        "parent": team.parent,
    }


def history_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.history`."""

    async def history(
        team: TeamName | None = None,
        *,
        days: Annotated[float, Field(gt=0, le=365)] = 7.0,
        limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 50,
        context: Context,
    ) -> list[Json]:
        """List tasks that have ended, newest first, with their results.

        Args:
            team: One team; without it, all that you may ask, and your own.
            days: The maximum age of the tasks.
            limit: How many at most.
        """
        names = [team] if team is not None else visible_names(tasks, context)
        since = time.time() - days * DAY
        recent: list[TeamTask] = []
        for name in names:  # one after the other: no more than `limit` long texts of each are in memory
            found = await tasks.list_ended(name, context.identity, limit=limit)
            recent += (task for task in found if task.created_at >= since)
            recent = sorted(recent, key=lambda task: (task.created_at, task.id), reverse=True)[:limit]
        return [task_to_item(task) | result_to_json(task) for task in recent]

    return from_function(history, NAMESPACE, effect="read")


def task_to_item(task: TeamTask) -> Json:
    """Return a summary of a task."""
    return {
        "taskId": task.id,
        "team": task.team,
        "state": task.state,
        "task": task.text[:SHOWN_TEXT],
        "createdAt": task.created_at,
    }
