"""Protection of the repositories in a workspace: commands can read them, and cannot change them.

Hooks and configuration of a repository name programs that git runs for whoever works in the folder next. So
`.git` is mounted read-only: unlike a plain folder, a mount point can be neither renamed nor removed. Where
the top folder has no `.git`, an empty one is there while commands run. Repositories in folders below are
mounted as well, and so are the folders that lead to them, which could be renamed and replaced otherwise.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from dragoman.errors import CallError
from dragoman.tools.version_control import hook_paths, is_repository_name

GIT_FOLDER = ".git"
MAX_TRIES = 100
READ_ONLY_HINT = (
    "The sandbox writes to the workspace only, and not to the repositories that were in it before the "
    "command: they name programs that git would run for the next person. Set `shell: {git: true}` in "
    "team.yaml to allow it."
)
MAX_ENTRIES = 500_000  # files and folders that are looked through for repositories
MAX_REPOSITORIES = 200


@contextmanager
def placeholder(folder: Path) -> Iterator[None]:
    """Create `.git` in a folder if it is missing; remove it after the last command if it is empty.

    Other processes may run commands in the folder, too. Removing a folder takes away what is mounted on it,
    so each of them holds a shared lock on it. Commands cannot lock it: they see the folder mounted over it.
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

    Raises CallError if other processes keep removing it.
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
    """Return bubblewrap's options that protect `.git` of a folder that is mounted at `target`.

    Raises CallError for a link or something else that cannot be protected. No command can create one, because
    all see a protected `.git`.
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


def find_nested(folder: Path) -> tuple[str, ...]:
    """Return the repositories below a folder and their folders of hooks, without `.git` of the folder itself.

    These are relative paths of files and folders, without links. Raises CallError if there are too many.
    """
    paths = []
    for entry in iter_repository_entries(folder):
        if entry.name != GIT_FOLDER or Path(entry.path).parent != folder:
            paths.append(Path(entry.path))
        with suppress(OSError):  # another command has removed it
            paths += hook_folders(Path(entry.path), folder)
        if len(paths) > MAX_REPOSITORIES:
            raise too_much(f"more than {MAX_REPOSITORIES} repositories")
    return tuple(sorted({path.relative_to(folder).as_posix() for path in paths}))


def iter_repository_entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files and folders below a folder that mark a repository. Raises CallError for too many."""
    waiting, count = [str(folder)], 0
    while waiting:
        for entry in list_folder(waiting.pop()):
            count += 1
            if count > MAX_ENTRIES:
                raise too_much(f"more than {MAX_ENTRIES} files")
            if entry.is_symlink():
                continue
            if is_repository_name(entry.name):
                yield entry
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def list_folder(path: str) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:  # another command has removed it, or made it unreadable
        return []


def hook_folders(repository: Path, folder: Path) -> Iterator[Path]:
    """Yield the folders within `folder` that a repository's configuration names for its hooks.

    `repository` is the path of `.git`.
    """
    parent = os.open(repository.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parts in hook_paths(parent):
            path = repository.parent.joinpath(*parts)
            if path != folder and path.resolve() == path and path.exists():
                yield path
    finally:
        os.close(parent)


def nested_mounts(paths: Sequence[str], folder: Path, *, target: str) -> list[str]:
    """Return bubblewrap's options that protect repositories below a folder that is mounted at `target`.

    Paths that another command has removed since are skipped (`-try`).
    """
    parents = {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents} - {"."}
    options = []
    for parent in sorted(parents - {*paths}, key=lambda path: path.count("/")):
        options += ["--bind-try", str(folder / parent), f"{target}/{parent}"]
    for path in paths:
        options += ["--ro-bind-try", str(folder / path), f"{target}/{path}"]
    return options


def too_much(amount: str) -> CallError:
    return CallError(
        f"Commands cannot run here: the workspace has {amount}, so its repositories cannot be protected.",
        hint="Delete some, or set `shell: {git: true}` in team.yaml.",
    )
