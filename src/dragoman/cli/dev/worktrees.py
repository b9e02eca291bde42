"""The worktrees of a repository: add, inspect, merge and remove them. No step loses unmerged work.

A merge is made in git's object store, and then the base branch moves to it in one step: a conflict or a crash
leaves the base as it was. What a worktree has when it is removed is saved under `refs/dragoman/removed/`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dragoman.cli.dev.git import check_branch, git, run_git
from dragoman.cli.dev.task_store import WorktreeTask
from dragoman.errors import BadRequest, CallError, ConfigError, Conflict
from dragoman.json_decoding import parse_digits

MAX_DIFF = 32_000  # bytes of a diff that are shown; an event takes 65,536 in all
MAX_FILES = 100  # files of a diff that are listed
MAX_CONFLICTS = 20
IDENTITY = ("-c", "user.name=dragoman dev", "-c", "user.email=dragoman@localhost")  # if git has none
REMOVED_REFS = "refs/dragoman/removed/"


class FileChange(msgspec.Struct, frozen=True, rename="camel"):
    """Lines that were added to and deleted from a file; None for a binary one."""

    path: str
    added: int | None
    deleted: int | None


class WorktreeDiff(msgspec.Struct, frozen=True, rename="camel"):
    """What a worktree changes since its base. `truncated`: the text or the list of files is cut."""

    text: str
    files: Sequence[FileChange]
    truncated: bool = False


class GitState(msgspec.Struct, frozen=True, rename="camel"):
    """A worktree's branch, its newest commit, how many are new since the base, and how many files are
    changed and not committed.
    """

    branch: str
    head: str
    ahead: int
    uncommitted: int


class Worktrees:
    """The worktrees of one repository, in a folder beside it. One change at a time."""

    def __init__(self, root: Path, state_folder: Path, *, folder: Path) -> None:
        self.root = root
        self.state_folder = state_folder
        self.folder = folder
        self._lock = asyncio.Lock()

    @classmethod
    async def find(cls, path: Path, *, folder: Path | None = None) -> Worktrees:
        """Return those of the repository around a path. Raises ConfigError if there is none."""
        result = await run_git("rev-parse", "--show-toplevel", "--git-common-dir", cwd=path)
        lines = result.output.splitlines()
        if result.code or len(lines) != 2:
            raise ConfigError(
                f"{str(path)!r} is not in a git repository", hint="change to one, or make it: `git init`"
            )
        root = Path(lines[0])
        common = (path / lines[1]).resolve()
        return cls(root, common / "dragoman", folder=folder or root.with_name(f"{root.name}.worktrees"))

    async def base(self, name: str | None) -> tuple[str, str]:
        """Return the base branch, by default the one that is checked out, and its commit, or BadRequest."""
        if name is None:
            name = (await run_git("symbolic-ref", "--short", "HEAD", cwd=self.root)).output.strip()
        commit = await run_git("rev-parse", "--verify", "--quiet", f"refs/heads/{name}", cwd=self.root)
        if commit.code or not name:
            shown = f"there is no branch {name!r}" if name else "no branch is checked out"
            raise BadRequest(f"{shown} to leave from", field="base", hint="name a branch that has a commit")
        return name, commit.output.strip()

    async def path_for(self, branch: str, session_id: str) -> Path:
        """Return where the worktree of a branch goes. Raises BadRequest, or Conflict if the branch exists."""
        await check_branch(branch, cwd=self.root)
        found = await run_git("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}", cwd=self.root)
        if not found.code:
            raise Conflict(f"the branch {branch!r} exists already", hint="choose another name")
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", branch).strip("-.")[:60]
        return self.folder / f"{slug}-{hashlib.sha256(session_id.encode()).hexdigest()[:8]}"

    async def add(self, task: WorktreeTask) -> None:
        """Make the worktree and the branch of a task. Raises CallError."""
        async with self._lock:
            self.folder.mkdir(parents=True, exist_ok=True)
            await git("worktree", "add", "-b", task.branch, task.worktree, task.base_commit, cwd=self.root)

    def exists(self, task: WorktreeTask) -> bool:
        """Return whether the worktree is there."""
        return (Path(task.worktree) / ".git").exists()

    async def state(self, task: WorktreeTask) -> GitState:
        """Return the git state of a worktree. Raises CallError."""
        cwd = Path(task.worktree)
        head = (await git("rev-parse", "HEAD", cwd=cwd)).strip()
        ahead = await git("rev-list", "--count", f"{task.base_commit}..HEAD", cwd=cwd)
        changed = await git("status", "--porcelain", "-z", cwd=cwd)
        branch = (await run_git("symbolic-ref", "--short", "HEAD", cwd=cwd)).output.strip()
        return GitState(branch or head[:12], head, int(ahead), changed.count("\0"))

    async def diff(self, task: WorktreeTask) -> WorktreeDiff:
        """Return what the worktree changes since its base, new files too. Raises CallError."""
        cwd = Path(task.worktree)
        with TemporaryDirectory(prefix="dragoman-") as folder:
            index = await copy_index(cwd, Path(folder))
            await git("add", "--all", "--intent-to-add", "--", ".", cwd=cwd, index=index)
            options = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", task.base_commit)
            text = await run_git(*options, cwd=cwd, index=index, limit=MAX_DIFF)
            numbers = await git(*options, "--numstat", "--no-renames", "-z", cwd=cwd, index=index)
        files = [file_change(line) for line in numbers.split("\0") if line.count("\t") == 2]
        return WorktreeDiff(text.output, files[:MAX_FILES], text.truncated or len(files) > MAX_FILES)

    async def commit(self, task: WorktreeTask, message: str) -> str | None:
        """Commit all that is changed; the new commit, or None if nothing is. Raises CallError."""
        cwd = Path(task.worktree)
        async with self._lock:
            await git("add", "--all", cwd=cwd)
            if not (await run_git("diff", "--cached", "--quiet", cwd=cwd)).code:
                return None
            await git(*await self._identity(), "commit", "--quiet", "--message", message, cwd=cwd)
        return (await git("rev-parse", "HEAD", cwd=cwd)).strip()

    async def merge(self, task: WorktreeTask, message: str) -> str:
        """Merge the branch of a task into its base and return the commit. Raises Conflict or CallError."""
        await self.commit(task, message)
        async with self._lock:
            base = (await git("rev-parse", f"refs/heads/{task.base}", cwd=self.root)).strip()
            head = (await git("rev-parse", f"refs/heads/{task.branch}", cwd=self.root)).strip()
            if not (await run_git("merge-base", "--is-ancestor", head, base, cwd=self.root)).code:
                return base
            merged = await run_git(
                *("merge-tree", "--write-tree", "--name-only", "--no-messages", base, head), cwd=self.root
            )
            lines = merged.output.splitlines()
            if merged.code:
                raise conflict(task, lines[1:] if merged.code == 1 else [], error=merged.error)
            commit = await git(
                *await self._identity(),
                *("commit-tree", lines[0], "-p", base, "-p", head, "-m", message),
                cwd=self.root,
            )
            await self._move_base(task.base, old=base, new=commit.strip())
        return commit.strip()

    async def remove(self, task: WorktreeTask, *, discard: bool) -> str | None:
        """Remove a worktree, and its branch if it is merged; return the ref that has what was discarded.

        Raises Conflict for work that is neither merged nor to be discarded.
        """
        if not self.exists(task):
            async with self._lock:
                await git("worktree", "prune", cwd=self.root)
            return None
        state = await self.state(task)
        merged = not (await run_git("merge-base", "--is-ancestor", state.head, task.base, cwd=self.root)).code
        if not discard and (state.uncommitted or not merged):
            what = "changes that are not committed" if state.uncommitted else "commits that are not merged"
            raise Conflict(
                f"the worktree of {task.branch!r} has {what}",
                hint="merge it with coord.merge, or remove it with discard: true",
            )
        async with self._lock:
            saved = await self._save(task) if state.uncommitted or not merged else None
            await git("worktree", "remove", "--force", task.worktree, cwd=self.root)
            if merged or saved is not None:
                await run_git("branch", "--delete", "--force", task.branch, cwd=self.root)
        return saved

    async def _save(self, task: WorktreeTask) -> str:
        """Save all of a worktree, uncommitted files too, under a ref."""
        cwd = Path(task.worktree)
        with TemporaryDirectory(prefix="dragoman-") as folder:
            index = await copy_index(cwd, Path(folder))
            await git("add", "--all", cwd=cwd, index=index)
            tree = (await git("write-tree", cwd=cwd, index=index)).strip()
        message = f"Removed worktree of {task.branch}"
        identity = await self._identity()
        commit = await git(*identity, "commit-tree", tree, "-p", "HEAD", "-m", message, cwd=cwd)
        ref = f"{REMOVED_REFS}{hashlib.sha256(task.session_id.encode()).hexdigest()[:16]}"
        await git("update-ref", ref, commit.strip(), cwd=cwd)
        return ref

    async def _move_base(self, branch: str, *, old: str, new: str) -> None:
        """Move the base branch to a commit, and the files of the worktree where it is checked out."""
        listing = await git("worktree", "list", "--porcelain", "-z", cwd=self.root)
        for block in listing.split("\0\0"):
            fields = dict(line.partition(" ")[::2] for line in block.split("\0"))
            if fields.get("branch") == f"refs/heads/{branch}":
                result = await run_git("merge", "--ff-only", "--quiet", new, cwd=Path(fields["worktree"]))
                if result.code:
                    raise Conflict(
                        f"{branch!r} is checked out, and files there are changed: {result.error}",
                        hint="commit or stash them, then merge again",
                    )
                return
        await git("update-ref", f"refs/heads/{branch}", new, old, cwd=self.root)

    async def _identity(self) -> tuple[str, ...]:
        """Return options that name a committer, if git has none."""
        return IDENTITY if (await run_git("var", "GIT_COMMITTER_IDENT", cwd=self.root)).code else ()


async def copy_index(cwd: Path, folder: Path) -> Path:
    """Copy a worktree's index, so that git can add to the copy while others use the original."""
    source = cwd / (await git("rev-parse", "--git-path", "index", cwd=cwd)).strip()
    copy = folder / "index"
    if source.exists():
        await asyncio.to_thread(shutil.copyfile, source, copy)
    return copy


def file_change(line: str) -> FileChange:
    """Read a line of `git diff --numstat`."""
    added, deleted, path = line.split("\t")
    return FileChange(
        path,
        parse_digits(added),
        parse_digits(deleted),
    )


def conflict(task: WorktreeTask, paths: Sequence[str], *, error: str) -> Conflict | CallError:
    """Return the error of a merge that git did not make."""
    if not paths:
        return CallError(f"{task.branch!r} cannot be merged: {error}")
    names = ", ".join(path for path in paths[:MAX_CONFLICTS] if path)
    return Conflict(
        f"{task.branch!r} and {task.base!r} change the same lines of: {names}",
        hint=f"merge {task.base} in the worktree {task.worktree}, or ask its agent to, then merge again",
    )
