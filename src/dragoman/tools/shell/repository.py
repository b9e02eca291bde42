"""The git repository of a folder that commands write: they read it, and cannot change or create it.

Its hooks and configuration name programs that git runs for whoever works in the folder next. So `.git` is a
read-only mount of its own: a mount is neither renamed nor removed, which a file or folder in it would allow.
Where there is none, an empty folder takes the place while commands run.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import CallError

GIT_FOLDER = ".git"
MAX_TRIES = 100
READ_ONLY_HINT = (
    "The sandbox writes to the workspace only, and not to its `.git`, which names programs that git would "
    "run for the next person: work in a clone in a folder below, or set `shell: {git: true}` in team.yaml."
)


@contextmanager
def placeholder(folder: Path) -> Iterator[None]:
    """Create `.git` in a folder if it is missing; remove it after the last command if it is empty.

    Other processes may run commands in the folder, too. To remove a folder takes away what is mounted there,
    so all hold a shared lock on it. No command can: in its place it sees another one.
    """
    path = folder / GIT_FOLDER
    file = _lock_placeholder(path)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):  # others run commands here, or it is a repository
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.rmdir()
            os.close(file)


def _lock_placeholder(path: Path) -> int | None:
    """Return the locked folder at a path, created if it is missing; None for a file or a link.

    Raises CallError if it is removed again and again meanwhile.
    """
    for _ in range(MAX_TRIES):
        with suppress(FileExistsError):
            path.mkdir()
        try:
            file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        if _is_locked(file) and _is_same(path, file):
            return file
        os.close(file)
    raise CallError(f"Commands cannot run here: {GIT_FOLDER} of the workspace is being changed.")


def _is_locked(file: int) -> bool:
    """Lock a folder; return False while another process removes it. Some file systems have no locks."""
    with suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_same(path: Path, file: int) -> bool:
    """Return whether the folder at a path is the one that was opened: another process may have removed it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(file))
    return False


def repository_mounts(folder: Path, target: str) -> list[str]:
    """Return the options that protect `.git` of a folder that is shown at `target`.

    Raises CallError for a link or something else that cannot be protected. No command can make one meanwhile.
    """
    path, place = folder / GIT_FOLDER, f"{target}/{GIT_FOLDER}"
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        has_content = any(path.iterdir())
        return ["--ro-bind", str(path), place] if has_content else ["--tmpfs", place, "--remount-ro", place]
    if stat.S_ISREG(mode):
        return ["--ro-bind", str(path), place]
    raise CallError(
        f"Commands cannot run here: {GIT_FOLDER} of the workspace is neither a folder nor a file.",
        hint="Move the repository into the workspace, or set `shell: {git: true}` in team.yaml.",
    )
