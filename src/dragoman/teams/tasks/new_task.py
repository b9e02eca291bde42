"""A new task: checked, and made into its row."""

from __future__ import annotations

import hashlib

import msgspec

from dragoman.agent.subagent import MAX_DEPTH
from dragoman.errors import BadRequest, CallDenied, CallError
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.operations.context import Context
from dragoman.operations.sanitize import INVISIBLE
from dragoman.runs.preparation import first_words
from dragoman.session_ids import client_session_id, hub_session_id
from dragoman.store.sessions.sessions import Session
from dragoman.store.teams.task_records import (
    TASK_RANKS,
    Overlap,
    TaskDelivery,
    TaskPriority,
    TaskSource,
    TeamTask,
)
from dragoman.unicode_normalisation import normalise_text

SESSION_PREFIX = "task_"
MAX_TEXT = 100_000  # characters of a task
MAX_KEY = 200  # characters of a topic, a correlation id or a key


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task for a team. See `TeamTask` for the fields; those that a call knows are taken from its context.

    An owner has one task for each `dedup_key`: submitting a second one returns the first.
    """

    team: str
    text: str
    source: TaskSource = "api"
    priority: TaskPriority = "normal"
    overlap: Overlap = "allow"
    topic: str | None = None
    subagent: str | None = None
    max_steps: int | None = None
    correlation_id: str | None = None
    dedup_key: str | None = None
    deliver: TaskDelivery = "none"
    wake: bool = False
    webhook: str | None = None
    source_session: str | None = None
    budget: float | None = None
    deadline: float | None = None
    detached: bool = False
    read_only: bool = False


def make_task(new: NewTask, identity: Identity, *, context: Context | None, now: float) -> TeamTask:
    """Return the row of a task. Raises BadRequest, CallError when it is nested too deep, CallDenied."""
    if context is not None and context.agent is not None:  # people see what the next model reads
        new = msgspec.structs.replace(new, text=INVISIBLE.sub("", new.text))
    check_texts(new)
    id = new_id("task")
    session_name = SESSION_PREFIX + (id if new.topic is None else topic_key(new.team, new.topic))
    task = TeamTask(
        id=id,
        owner=identity.owner,
        key_id=identity.key_id,
        team=new.team,
        topic=new.topic,
        subagent=new.subagent,
        max_steps=new.max_steps,
        text=new.text,
        hash=text_hash(new.text),
        priority=new.priority,
        rank=TASK_RANKS[new.priority],
        overlap=new.overlap,
        source=new.source,
        source_session=new.source_session,
        read_only=new.read_only,
        detached=new.detached,
        correlation_id=new.correlation_id,
        dedup_key=new.dedup_key,
        budget=new.budget,
        deadline=new.deadline,
        deliver=new.deliver,
        wake=new.wake,
        webhook=new.webhook,
        session_id=hub_session_id(session_name, owner=identity.owner),
        created_at=now,
    )
    return task if context is None else within_call(task, context, now=now)


def within_call(task: TeamTask, context: Context, *, now: float) -> TeamTask:
    """Return a task as a part of the call that submits it: below the call's agents, within its limits.

    Raises CallError when it is nested too deep, CallDenied when others are behind the call.
    """
    if context.intermediaries:
        raise CallDenied(
            "You may not give tasks to teams while you serve a call of somebody else.",
            hint="Answer the call, and let whoever made it give the task.",
        )
    agents = [*(each.agent for each in context.parent_agents), context.agent]
    chain = [agent for agent in agents if agent is not None]
    if len(chain) > MAX_DEPTH:
        names = " > ".join([*chain, task.team])
        raise CallError(f"tasks may be nested {MAX_DEPTH} deep at most: {names}")
    left = None if context.budget is None else context.budget.left
    remaining = context.remaining
    limits = [each for each in (task.budget, left) if each is not None]
    ends = [each for each in (task.deadline, None if remaining is None else now + remaining) if each]
    return msgspec.structs.replace(
        task,
        chain=tuple(chain),
        parent_call=context.call_id,
        source_session=context.session_id,
        source_message=context.key_scope,
        budget=min(limits, default=None),
        budget_left=left,
        deadline=None if task.detached and task.deadline is None else min(ends, default=None),
    )


def check_texts(new: NewTask) -> None:
    """Raise BadRequest for a text that is empty, or too long."""
    if not new.text.strip():
        raise BadRequest("the task is empty", field="task")
    if len(new.text) > MAX_TEXT:
        raise BadRequest(f"the task has more than {MAX_TEXT} characters", field="task")
    keys = {"topic": new.topic, "correlationId": new.correlation_id, "dedupKey": new.dedup_key}
    for name, value in keys.items():
        if value is not None and not 1 <= len(value) <= MAX_KEY:
            raise BadRequest(f"`{name}` must have 1 to {MAX_KEY} characters", field=name)


def text_hash(text: str) -> str:
    """Return the hash of a task's text: case, spaces and a last dot do not count."""
    words = " ".join(normalise_text("NFKC", text).casefold().split())
    return hashlib.sha256(words.rstrip(" .!?…").encode()).hexdigest()[:32]


def topic_key(team: str, topic: str) -> str:
    """Return the key in the session id of a team's topic."""
    return hashlib.sha256(f"{team}\0{topic}".encode()).hexdigest()[:24]


def task_session(task: TeamTask) -> Session:
    """Return the session that a task runs in."""
    return Session(
        id=task.session_id,
        owner=task.owner,
        title=first_words(task.topic or task.text),
        agent=task.agent,
        max_steps=task.max_steps,
        created_at=task.created_at,
        updated_at=task.created_at,
        labels=("task",),
    )


def is_task_session(session_id: str | None) -> bool:
    """Return whether a session's id is like that of a task. Only the database knows whether it is one."""
    return session_id is not None and client_session_id(session_id).startswith(SESSION_PREFIX)
