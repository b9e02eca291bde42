"""The tasks of a repository, on disk: written before each step, read again after a crash."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import Conflict, NotFound
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.session_ids import client_session_id

log = logging.getLogger(__name__)

TaskState: TypeAlias = Literal["starting", "working", "ready", "failed", "interrupted", "merged", "removed"]
FOLDER_MODE = 0o700
LAST_TEXT = 2_000  # characters of the end of an agent's text


class WorktreeTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task: a branch in a worktree of its own, and the session in which an agent works on it.

    `base` is the branch that it leaves and is merged into, `base_commit` where it left. `ready`: the agent's
    turn has ended and nothing is lost; `interrupted`: the spoke ended meanwhile. `owner` is who asked for it.
    """

    session_id: str
    task: str
    branch: str
    base: str
    base_commit: str
    worktree: str
    owner: str
    parent_session_id: str | None = None
    model: str | None = None
    state: TaskState = "starting"
    detail: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0


class TaskStore:
    """Reads and writes the records in a folder. `open` locks it: one spoke serves a repository."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tasks"
        self._lock_path = folder / "lock"
        self._lock_file: IO[bytes] | None = None
        self._tasks: dict[str, WorktreeTask] = {}
        self._write_lock = asyncio.Lock()  # otherwise an older record could replace a newer one

    def open(self) -> None:
        """Lock the folder and read its records. Raises Conflict if another process has it."""
        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self._lock_file = self._lock_path.open("ab")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise Conflict(
                "another `dragoman dev` serves this repository", hint="stop it, or use it from there"
            ) from None
        for path in sorted(self._folder.glob("*.json")):
            try:
                task = msgspec.json.decode(path.read_bytes(), type=WorktreeTask)
            except (OSError, *DECODE_ERRORS) as error:
                log.warning("the record %s cannot be read and is left as it is: %s", path.name, error)
                continue
            self._tasks[task.session_id] = task

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock_file is not None:
            self._lock_file.close()

    def list(self, owner: str, parent: str | None = None) -> Sequence[WorktreeTask]:
        """Return the owner's tasks, those of one parent session if it is given, the oldest first."""
        wanted = None if parent is None else client_session_id(parent)
        found = [
            task
            for task in self._tasks.values()
            if task.owner == owner
            and (wanted is None or client_session_id(task.parent_session_id or "") == wanted)
        ]
        return sorted(found, key=lambda task: task.created_at)

    def all(self) -> Sequence[WorktreeTask]:
        """Return every task."""
        return tuple(self._tasks.values())

    def get(self, session_id: str, owner: str) -> WorktreeTask:
        """Return the task of a child session. Raises NotFound, also for another owner's."""
        task = self._tasks.get(client_session_id(session_id))
        if task is None or task.owner != owner:
            raise NotFound(f"no task has the session {session_id!r}", hint="coord.status lists the tasks")
        return task

    def find(self, session_id: str) -> WorktreeTask | None:
        """Return the task of a child session, of any owner."""
        return self._tasks.get(session_id)

    async def add(self, task: WorktreeTask) -> WorktreeTask:
        """Write a new task."""
        return await self._write(replace(task, created_at=time.time(), updated_at=time.time()))

    async def update(self, session_id: str, **changes: Any) -> WorktreeTask:
        """Change a task's fields and write it."""
        return await self._write(replace(self._tasks[session_id], updated_at=time.time(), **changes))

    async def _write(self, task: WorktreeTask) -> WorktreeTask:
        self._tasks[task.session_id] = task
        async with self._write_lock:
            newest = self._tasks[task.session_id]
            await asyncio.to_thread(write_durably, self._path(task.session_id), msgspec.json.encode(newest))
        return task

    def _path(self, session_id: str) -> Path:
        return self._folder / f"{hashlib.sha256(session_id.encode()).hexdigest()[:32]}.json"


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file such that a crash leaves the old or the new one, whole."""
    temporary = path.with_suffix(f".{time.monotonic_ns()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
