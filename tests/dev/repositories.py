"""Git repositories with a commit, and tasks in them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dragoman.cli.dev.task_store import WorktreeTask
from dragoman.cli.dev.worktrees import Worktrees

ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def git(folder: Path, *arguments: str) -> str:
    """The output of a git command, which must not fail."""
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=ENVIRON, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_repository(folder: Path) -> Path:
    """A repository with a file and a commit on the branch main."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "a.txt").write_text("one\ntwo\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Begin")
    return folder


async def add_task(worktrees: Worktrees, session_id: str = "s1", branch: str = "topic") -> WorktreeTask:
    """A task with its worktree."""
    base, commit = await worktrees.base(None)
    task = WorktreeTask(
        session_id=session_id,
        task="do it",
        branch=branch,
        base=base,
        base_commit=commit,
        worktree=str(await worktrees.path_for(branch, session_id)),
        owner="ada",
    )
    await worktrees.add(task)
    return task
