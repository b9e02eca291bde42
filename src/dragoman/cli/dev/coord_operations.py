"""Coordination of agents (seed 000's `coord.*`): a worktree and a child session for each task.

A task is written to disk before its first step, so a crash loses none: at the next start its worktree is
found, its state is `interrupted`, and a message makes its agent continue.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dragoman.cli.dev.hub_sessions import HubSessions
from dragoman.cli.dev.task_store import LAST_TEXT, TaskState, TaskStore, WorktreeTask
from dragoman.cli.dev.worktree_agent import WorktreeAgents
from dragoman.cli.dev.worktrees import GitState, WorktreeDiff, Worktrees
from dragoman.errors import BadRequest, Conflict, DragomanError, RateLimited
from dragoman.ids import new_id
from dragoman.operations.context import Context
from dragoman.runners.client.runner import Runner
from dragoman.runners.client.turn import RunnerTurn
from dragoman.session_ids import MAX_ID_LENGTH, client_session_id
from dragoman.wire.runner.frames import FrameOfTurn, PartTextDelta, PartToolUpdate

log = logging.getLogger(__name__)

CHILD_SESSION, GIT_STATE, DIFF = "child-session", "git-state", "diff"  # names of domain events
OPEN_STATES: frozenset[TaskState] = frozenset({"starting", "working", "ready", "failed", "interrupted"})
PROGRESS_SECONDS = 1.0
BRANCH_PREFIX = "dragoman/"


class SpawnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `coord.spawn`."""

    task: str
    session_id: str | None = None
    branch: str | None = None
    base: str | None = None
    parent_session_id: str | None = None
    model: str | None = None


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A task as its parent sees it. `last_text` is the end of what its agent wrote last."""

    session_id: str
    parent_session_id: str | None
    task: str
    branch: str
    base: str
    worktree: str
    state: TaskState
    detail: str = ""
    last_text: str = ""
    updated_at: float = 0.0
    git: GitState | None = None


class Coordination:
    """Creates tasks, answers their turns, and publishes their progress in the parent sessions."""

    def __init__(
        self,
        worktrees: Worktrees,
        store: TaskStore,
        *,
        sessions: HubSessions,
        agents: WorktreeAgents,
        max_tasks: int,
    ) -> None:
        self.runner: Runner | None = None
        self._worktrees = worktrees
        self._store = store
        self._sessions = sessions
        self._agents = agents
        self._max_tasks = max_tasks
        self._lock = asyncio.Lock()  # held while a task is added
        self._last_texts: dict[str, str] = {}

    async def restore(self) -> Sequence[str]:
        """Find the tasks of earlier processes; return the sessions to serve again."""
        for task in self._store.all():
            if task.state not in OPEN_STATES:
                continue
            if not self._worktrees.exists(task):
                detail = (
                    "its worktree is gone; its branch is there" if task.state != "starting" else "not begun"
                )
                await self._store.update(task.session_id, state="failed", detail=detail)
            elif task.state in ("starting", "working"):
                detail = "the spoke ended while its agent worked; a message makes it continue"
                await self._store.update(task.session_id, state="interrupted", detail=detail)
        return [task.session_id for task in self._store.all() if task.state in OPEN_STATES]

    # ---- Operations.

    async def spawn(self, request: SpawnRequest, context: Context) -> TaskStatus:
        """Make a worktree and a child session, and let an agent begin there."""
        owner = context.identity.owner
        async with self._lock:
            session_id, parent = name_sessions(request, context)
            earlier = self._store.find(session_id)
            if earlier is not None:
                return await self._same_task(earlier, request, owner=owner)
            self._check_count(owner)
            task = await self._new_task(request, session_id=session_id, parent=parent, owner=owner)
            await self._store.add(task)
        try:
            await self._begin(task)
        except BaseException as error:
            detail = error.message if isinstance(error, DragomanError) else type(error).__name__
            with suppress(asyncio.CancelledError):
                await self._set_state(task, "failed", detail=detail)
            raise
        return await self._status(self._store.get(session_id, owner))

    async def status(self, parent: str | None, owner: str) -> Sequence[TaskStatus]:
        """Return the tasks, those of one parent session if it is named."""
        return [await self._status(task) for task in self._store.list(owner, parent)]

    async def message(self, session_id: str, body: str, *, context: Context) -> tuple[TaskStatus, bool]:
        """Send a message to a child session; return whether its agent began to answer, or has it queued."""
        owner, key = context.identity.owner, context.idempotency_key or new_id("key")
        task = self._store.get(session_id, owner)
        if task.state not in OPEN_STATES or not self._worktrees.exists(task):
            raise Conflict(f"the worktree of {task.branch!r} is {task.state}", hint="spawn another task")
        await self._serve(task)
        begun = await self._sessions.prompt(task.session_id, body, key=key)
        return await self._status(self._store.get(session_id, owner)), begun

    async def diff(self, session_id: str, owner: str) -> WorktreeDiff:
        """Return what a task has changed."""
        return await self._worktrees.diff(self._store.get(session_id, owner))

    async def merge(self, session_id: str, owner: str, *, message: str | None) -> tuple[TaskStatus, str]:
        """Merge a task's branch into its base; return the commit."""
        task = self._idle(self._store.get(session_id, owner))
        title = " ".join(task.task.split())[:72]
        commit = await self._worktrees.merge(task, message or f"Merge {task.branch}: {title}")
        merged = await self._set_state(task, "merged", detail=f"as {commit[:12]} into {task.base}")
        return await self._status(merged), commit

    async def remove(self, session_id: str, owner: str, *, discard: bool) -> tuple[TaskStatus, str | None]:
        """Remove a task's worktree; return the ref that has what was discarded."""
        task = self._idle(self._store.get(session_id, owner))
        saved = await self._worktrees.remove(task, discard=discard)
        if self.runner is not None:
            self.runner.leave(task.session_id)
        detail = f"git branch NAME {saved} brings it back" if saved else ""
        removed = await self._set_state(task, "removed", detail=detail)
        return await self._status(removed), saved

    # ---- Turns.

    async def answer(self, turn: RunnerTurn) -> None:
        """Answer a turn of a child session with the agent of its worktree, and tell the parent."""
        task = self._store.find(client_session_id(turn.session_id))
        if task is None or task.state not in OPEN_STATES:
            raise Conflict("no worktree belongs to this session")
        task = await self._set_state(task, "working", detail="")
        state: TaskState = "interrupted"
        detail = "its turn was stopped; a message makes it continue"
        progress = turn.observer = TurnProgress(partial(self._note_progress, task))
        try:
            await self._agents.answer_function(task)(turn)
            state, detail = "ready", ""
        except DragomanError as error:
            state, detail = "failed", error.message
            raise
        finally:
            self._last_texts[task.session_id] = progress.last_text
            await asyncio.shield(self._end_turn(task, state, detail=detail))

    async def _end_turn(self, task: WorktreeTask, state: TaskState, *, detail: str) -> None:
        task = await self._set_state(task, state, detail=detail)
        try:
            git_state, diff = await self._worktrees.state(task), await self._worktrees.diff(task)
        except DragomanError as error:
            log.warning("the state of %s cannot be read: %s", task.worktree, error.message)
            return
        place = {"sessionId": task.session_id}
        self._sessions.publish(task.parent_session_id, GIT_STATE, data={**place, **to_json(git_state)})
        self._sessions.publish(task.parent_session_id, DIFF, data={**place, **to_json(diff)})

    def _note_progress(self, task: WorktreeTask, detail: str) -> None:
        self._publish_task(msgspec.structs.replace(task, detail=detail))

    # ---- Steps.

    async def _new_task(
        self, request: SpawnRequest, *, session_id: str, parent: str | None, owner: str
    ) -> WorktreeTask:
        base, commit = await self._worktrees.base(request.base)
        branch = request.branch or BRANCH_PREFIX + branch_name(session_id)
        return WorktreeTask(
            session_id=session_id,
            parent_session_id=parent,
            owner=owner,
            task=request.task,
            branch=branch,
            base=base,
            base_commit=commit,
            worktree=str(await self._worktrees.path_for(branch, session_id)),
            model=request.model,
        )

    async def _begin(self, task: WorktreeTask) -> None:
        await self._worktrees.add(task)
        await self._sessions.create(task.session_id, task.task)
        await self._serve(task)
        self._publish_task(task)
        await self._sessions.prompt(task.session_id, task.task, key=f"{task.session_id} {task.created_at}")

    async def _serve(self, task: WorktreeTask) -> None:
        if self.runner is None:
            raise Conflict("the runner of this spoke is not connected")
        await self.runner.join(task.session_id)

    async def _same_task(self, task: WorktreeTask, request: SpawnRequest, *, owner: str) -> TaskStatus:
        """Return the task of a repeated call. Raises Conflict for another one."""
        if task.owner != owner or task.task != request.task:
            raise Conflict(f"the session {task.session_id!r} has a task already", hint="choose another id")
        return await self._status(task)

    def _check_count(self, owner: str) -> None:
        open_tasks = [task for task in self._store.list(owner) if task.state in OPEN_STATES]
        if len(open_tasks) >= self._max_tasks:
            raise RateLimited(
                f"there are {len(open_tasks)} worktrees, the limit of this spoke; merge or remove one",
                retry_after=60.0,
            )

    @staticmethod
    def _idle(task: WorktreeTask) -> WorktreeTask:
        if task.state == "working":
            raise Conflict(f"the agent of {task.branch!r} is at work", hint="wait for it, or stop its answer")
        if task.state == "removed":
            raise Conflict(f"the worktree of {task.branch!r} is removed")
        return task

    async def _set_state(self, task: WorktreeTask, state: TaskState, *, detail: str) -> WorktreeTask:
        changed = await self._store.update(task.session_id, state=state, detail=detail)
        self._publish_task(changed)
        return changed

    def _publish_task(self, task: WorktreeTask) -> None:
        self._sessions.publish(task.parent_session_id, CHILD_SESSION, data=to_json(self._view(task)))

    async def _status(self, task: WorktreeTask) -> TaskStatus:
        git_state = None
        if self._worktrees.exists(task):
            with suppress(DragomanError):
                git_state = await self._worktrees.state(task)
        return self._view(task, git_state)

    def _view(self, task: WorktreeTask, git_state: GitState | None = None) -> TaskStatus:
        return TaskStatus(
            session_id=task.session_id,
            parent_session_id=task.parent_session_id,
            task=task.task[:LAST_TEXT],
            branch=task.branch,
            base=task.base,
            worktree=Path(task.worktree).name,
            state=task.state,
            detail=task.detail,
            last_text=self._last_texts.get(task.session_id, ""),
            updated_at=task.updated_at,
            git=git_state,
        )


class TurnProgress:
    """Watches the frames of a turn: the end of its text, and its calls, at most one a second."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.last_text = ""
        self._notify = notify
        self._next_at = 0.0

    def __call__(self, frame: FrameOfTurn) -> None:
        """Note a frame that is written."""
        match frame:
            case PartTextDelta(delta=delta):
                self.last_text = (self.last_text + delta)[-LAST_TEXT:]
            case PartToolUpdate(tool_name=name, status="running"):
                self._report(name)
            case _:
                pass

    def _report(self, tool_name: str) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + PROGRESS_SECONDS
            self._notify(tool_name)


def name_sessions(request: SpawnRequest, context: Context) -> tuple[str, str | None]:
    """Return the ids of the child session and of its parent, as their owner's clients know them.

    `session_id` names the child; where it is the calling session's own id, that is the parent.
    """
    caller = client_session_id(context.session_id) if context.session_id else None
    parent = client_session_id(request.parent_session_id) if request.parent_session_id else caller
    child = request.session_id
    if child is not None and caller is not None and client_session_id(child) == caller:
        child, parent = None, caller
    if child is None:
        key = context.idempotency_key or new_id("key")
        child = f"task-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    child = client_session_id(child)
    if not (1 <= len(child) <= MAX_ID_LENGTH and child.isprintable()):
        raise BadRequest("sessionId must be 1 to 200 printable characters", field="sessionId")
    return child, parent


def branch_name(session_id: str) -> str:
    """Return a name for a branch that git takes, made of a session's id."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in session_id)
    return plain.strip("-")[:60] or hashlib.sha256(session_id.encode()).hexdigest()[:12]


def to_json(value: Any) -> Any:
    """Return a struct as JSON-able values."""
    return msgspec.to_builtins(value)
