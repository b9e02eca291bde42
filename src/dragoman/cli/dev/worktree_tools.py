"""The operations of a worktree's agent: files, shell and git, below the worktree's folder.

Files cannot leave the folder: each step of a path is opened below the last one, and no link is followed.
Commands start in it, without the hub's key in their environment, and end with all their child processes; what
they reach beyond is for the operating system to limit. Hooks block what is destructive.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from pydantic import Field

from dragoman.agent.hooks.guards.destructive_commands import confirm_destructive
from dragoman.agent.hooks.guards.paths import path_guard
from dragoman.agent.hooks.hooks import Hooks
from dragoman.cli.dev.git import run_git
from dragoman.cli.dev.task_store import WorktreeTask
from dragoman.cli.dev.worktrees import WorktreeDiff, Worktrees
from dragoman.errors import CallError, CallTimeout
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.tools.files.operations import reading_operations
from dragoman.tools.files.roots import Roots
from dragoman.tools.files.scope import FileScope, OneScope
from dragoman.tools.files.scoped_operations import writing_operations
from dragoman.tools.shell.command import ShellCommand, ShellProgram
from dragoman.tools.shell.environment import shell_environ

SHELL_SECONDS = 120
MAX_SHELL_SECONDS = 1_800


class ShellOutput(TypedDict):
    """How a command ended: its exit code, and its output and errors in one text. `left_out` counts the bytes
    that are not in it.
    """

    exit_code: int
    output: str
    left_out: int


def worktree_operations(worktrees: Worktrees, task: WorktreeTask) -> Sequence[Operation]:
    """Return the operations of the worktree of a task."""
    root = Path(task.worktree)
    files = OneScope(FileScope(Roots(root), writable=["."]))
    return [
        *reading_operations(files, identity_aware=False),
        *writing_operations(files),
        shell_operation(root),
        *git_operations(worktrees, task),
    ]


def worktree_hooks(root: Path) -> Hooks:
    """Return the guards of an agent in a worktree."""
    hooks = Hooks()
    hooks.on("pre_tool_use", path_guard([root], names=["path"]), name="path_guard")
    guard = confirm_destructive(action="block", ignore=["text", "old", "new", "message"])
    return hooks.on("pre_tool_use", guard, name="confirm_destructive")


def shell_operation(root: Path) -> Operation:
    """Return `shell.run`."""

    async def run(
        command: Annotated[str, Field(min_length=1, max_length=20_000)],
        *,
        seconds: Annotated[int, Field(ge=1, le=MAX_SHELL_SECONDS)] = SHELL_SECONDS,
    ) -> ShellOutput:
        """Run a shell command in the worktree and return its exit code and output.

        Args:
            command: What `sh -c` gets.
            seconds: How long it may take; then it is ended with all that it started.
        """
        return await run_shell(command, root, seconds=seconds)

    return from_function(run, "shell", timeout=MAX_SHELL_SECONDS + 60)


async def run_shell(command: str, root: Path, *, seconds: float) -> ShellOutput:
    """Run a command to its end. Raises CallTimeout."""
    arguments = ["/bin/sh", "-c", f"exec 2>&1\n{command}"]
    running = await ShellCommand.start(ShellProgram(arguments, str(root), shell_environ(os.environ)))
    end = await running.run(seconds)
    output = running.output
    if end == "timeout":
        raise CallTimeout(
            f"The command took longer than {seconds:g} seconds; its output so far: {output.text()[-2_000:]}"
        )
    if running.exit_code is None:
        raise CallError(f"The command was ended after {output.size} bytes of output.")
    return ShellOutput(exit_code=running.exit_code, output=output.text(), left_out=output.left_out)


def git_operations(worktrees: Worktrees, task: WorktreeTask) -> list[Operation]:
    """Return `git.status`, `git.diff`, `git.log` and `git.commit` of the worktree."""
    root = Path(task.worktree)

    async def status() -> str:
        """Show the branch and the files that are changed."""
        return (await checked("status", "--short", "--branch", root=root)) or "nothing is changed"

    async def diff() -> WorktreeDiff:
        """Show all changes since the branch was made, committed or not, with new files."""
        return await worktrees.diff(task)

    async def log(limit: Annotated[int, Field(ge=1, le=100)] = 20) -> str:
        """Show the newest commits, one a line.

        Args:
            limit: How many.
        """
        return await checked("log", "--oneline", "--no-decorate", f"--max-count={limit}", root=root)

    async def commit(message: Annotated[str, Field(min_length=1, max_length=5_000)]) -> str:
        """Commit all changes of the worktree on its branch.

        Args:
            message: The commit's message: a title, an empty line, the reasons.
        """
        return await worktrees.commit(task, message) or "nothing is changed"

    return [
        from_function(status, "git", effect="read", timeout=60),
        from_function(diff, "git", effect="read", timeout=120),
        from_function(log, "git", effect="read", timeout=60),
        from_function(commit, "git", timeout=120),
    ]


async def checked(*arguments: str, root: Path) -> str:
    """Return git's output. Raises CallError."""
    result = await run_git(*arguments, cwd=root, limit=60_000)
    if result.code:
        raise CallError(result.error)
    return result.output.strip()
