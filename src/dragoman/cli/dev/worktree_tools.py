"""The operations of a worktree's agent: files, shell and git, below the worktree's folder.

Files cannot leave the folder: each step of a path is opened below the last one, and no link is followed.
Commands start in it, without the hub's key in their environment, and end with all that they started; what
they reach beyond is for the operating system to limit. Hooks block what is destructive.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, TypedDict

from pydantic import Field

from dragoman.agent.hooks.guards.destructive_commands import confirm_destructive
from dragoman.agent.hooks.guards.paths import path_guard
from dragoman.agent.hooks.hooks import Hooks
from dragoman.cli.dev.git import run_git
from dragoman.cli.dev.task_store import WorktreeTask
from dragoman.cli.dev.worktrees import WorktreeDiff, Worktrees
from dragoman.errors import BadRequest, CallError, CallTimeout, Forbidden
from dragoman.operations.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.processes.program import EXIT_GRACE, Program
from dragoman.tools.files import operations as file_operations
from dragoman.tools.files.rooted_folder import RootedFolder, path_parts
from dragoman.tools.files.roots import Roots

MAX_WRITE = 2_000_000  # characters of a file that is written
MAX_EDIT_BYTES = 8_000_000
SHELL_OUTPUT = 30_000  # bytes of a command's output: its beginning and its end
SHELL_SECONDS = 120
MAX_SHELL_SECONDS = 1_800
SHELL_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ", "VIRTUAL_ENV", "NODE_PATH"}
)
SHELL_PREFIXES = ("LC_", "XDG_")
GIT_FOLDER = ".git"


class WrittenFile(TypedDict):
    """A file that was written; `created`: there was none."""

    path: str
    size: int
    created: bool


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
    return [
        *file_operations.operations(root),
        *writing_operations(WritableFolder(root)),
        shell_operation(root),
        *git_operations(worktrees, task),
    ]


def worktree_hooks(root: Path) -> Hooks:
    """Return the guards of an agent in a worktree."""
    hooks = Hooks()
    hooks.on("pre_tool_use", path_guard([root], names=["path"]), name="path_guard")
    guard = confirm_destructive(action="block", ignore=["text", "old", "new", "message"])
    return hooks.on("pre_tool_use", guard, name="confirm_destructive")


class WritableFolder:
    """A folder whose files may be written, each as a whole: a reader sees the old or the new one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._readable = RootedFolder(root)
        self.roots = Roots(root)

    def write(self, path: str, data: bytes) -> bool:
        """Write a file and the folders above it; return whether it is new. Raises Forbidden or BadRequest."""
        *folders, name = self._parts(path)
        with self._open_folders(folders, path) as descriptor:
            mode = self._mode(descriptor, name, path=path)
            temporary = f".{name[:100]}.{secrets.token_hex(4)}.tmp"
            try:
                write_new(temporary, data, descriptor=descriptor, mode=mode)
                os.replace(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=descriptor)
                raise
        return mode is None

    def read(self, path: str) -> bytes:
        """Return a file. Raises NotFound, Forbidden or BadRequest."""
        with self._readable.open("/".join(self._parts(path))) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_EDIT_BYTES:
                raise BadRequest(f"{path!r} is not a file that can be edited.", field="path")
            return os.pread(descriptor, MAX_EDIT_BYTES, 0)

    def _parts(self, path: str) -> tuple[str, ...]:
        parts = path_parts(path)
        if not parts:
            raise BadRequest(f"{path!r} is the folder itself.", field="path")
        if any(part.casefold() == GIT_FOLDER for part in parts):
            raise Forbidden(f"{path!r} is git's own, which is not written as a file.")
        return parts

    @contextmanager
    def _open_folders(self, names: Sequence[str], path: str) -> Iterator[int]:
        """Open the folders down to a file, made where they are missing."""
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
                below = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor
                )
                os.close(descriptor)
                descriptor = below
            yield descriptor
        except (NotADirectoryError, OSError) as error:
            raise Forbidden(f"{path!r} cannot be written: {error.strerror}") from None
        finally:
            os.close(descriptor)

    @staticmethod
    def _mode(descriptor: int, name: str, *, path: str) -> int | None:
        """Return the mode of a file, None if there is none. Raises Forbidden for what is not a file."""
        try:
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(mode):
            raise Forbidden(f"{path!r} is not a file; links are not followed.")
        return stat.S_IMODE(mode)


def write_new(name: str, data: bytes, *, descriptor: int, mode: int | None) -> None:
    """Write a file that is not there into an open folder, with a mode if it is to have one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, mode or 0o666, dir_fd=descriptor)
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
        if mode is not None:
            os.fchmod(file, mode)


def writing_operations(folder: WritableFolder) -> list[Operation]:
    """Return `files.write` and `files.edit`."""

    def write(path: str, text: Annotated[str, Field(max_length=MAX_WRITE)]) -> WrittenFile:
        """Write a text file, in place of the one that is there. Folders above it are made.

        Args:
            path: The file, relative to the worktree.
            text: All of its text.
        """
        data = text.encode()
        return WrittenFile(path=path, size=len(data), created=folder.write(path, data))

    def edit(
        path: str,
        old: Annotated[str, Field(min_length=1, max_length=MAX_WRITE)],
        *,
        new: Annotated[str, Field(max_length=MAX_WRITE)],
        everywhere: bool = False,
    ) -> WrittenFile:
        """Replace a text in a file. The text must be in it exactly once, unless `everywhere`.

        Args:
            path: The file, relative to the worktree.
            old: The text to replace, with its spaces and line breaks.
            new: The text in its place.
            everywhere: Replace every occurrence.
        """
        body = folder.read(path)
        count = body.count(old.encode())
        if count == 0 or (count > 1 and not everywhere):
            raise BadRequest(
                f"The text to replace is in {path!r} {count} times.",
                field="old",
                hint="Add lines around it." if count else "Read the file again; spaces count.",
            )
        data = body.replace(old.encode(), new.encode())
        folder.write(path, data)
        return WrittenFile(path=path, size=len(data), created=False)

    return [
        from_function(write, "files", effect="idempotent", timeout=30),
        from_function(edit, "files", timeout=30),
    ]


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
    program = await Program.spawn(
        ["/bin/sh", "-c", f"exec 2>&1\n{command}"], cwd=str(root), environ=shell_environ(os.environ)
    )
    output = HeadAndTail(SHELL_OUTPUT)
    done = False
    try:
        async with asyncio.timeout(seconds):
            await program.write_input(b"")
            await output.read(program)
            code = await program.process.wait()
            done = True
    except TimeoutError:
        raise CallTimeout(
            f"The command took longer than {seconds:g} seconds; its output so far: {output.text()[-2_000:]}"
        ) from None
    finally:
        await program.stop(grace=EXIT_GRACE if done else 0)
    return ShellOutput(exit_code=code, output=output.text(), left_out=output.left_out)


class HeadAndTail:
    """The beginning and the end of an output."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0

    async def read(self, program: Program) -> None:
        """Read the output of a program to its end."""
        async with aclosing(program.chunks()) as chunks:
            async for data in chunks:
                self._add(data)

    def _add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        over = len(self._tail) - self._half
        if over > 0:
            self.left_out += over
            del self._tail[:over]

    def text(self) -> str:
        """Return both, with a line between them if something is left out."""
        gap = f"\n… {self.left_out} bytes are left out …\n" if self.left_out else ""
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")


def shell_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a model's commands: none that could hold a secret."""
    return {
        name: value
        for name, value in environ.items()
        if name in SHELL_VARIABLES or name.startswith(SHELL_PREFIXES)
    }


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
