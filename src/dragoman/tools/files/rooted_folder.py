"""A folder that is looked into and not out of: paths below one root, opened without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from dragoman.errors import BadRequest, ConfigError, Forbidden, NotFound

MAX_PATH_BYTES = 4_096  # bytes of a path
SYSTEM_FOLDERS = (
    "/proc",
    "/sys",
    "/dev",
)  # where the system tells of itself, secrets of running programs too


class RootedFolder:
    """Files below a root.

    Each step of a path is opened from the folder that holds it, and no step follows a link, so that nothing
    outside of the root is reached: neither by `..`, nor by a link, nor by one that is put there meanwhile.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ConfigError(f"there is no folder {str(root)!r} to show files from")
        self._root = root.resolve()
        self._system_devices = system_devices()
        if self._root.stat().st_dev in self._system_devices:
            raise ConfigError(f"{str(root)!r} holds no files but the system's state, which is not shown")

    @contextmanager
    def open(self, path: str, *, display_path: str | None = None) -> Iterator[int]:
        """A descriptor of the file or folder, for reading. NotFound, Forbidden or BadRequest if not.

        `shown` is what errors call the path.
        """
        called = path if display_path is None else display_path
        descriptor = self._open_root()
        try:
            for step in path_parts(path):
                inner = open_child(descriptor, step, path=called)
                os.close(descriptor)
                descriptor = inner
                if os.fstat(descriptor).st_dev in self._system_devices:
                    raise Forbidden(f"{called!r} is part of the system's state, which is not shown")
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_root(self) -> int:
        try:
            return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Forbidden(f"the folder of these files cannot be opened: {error_reason(error)}") from None


def system_devices() -> frozenset[int]:
    """The numbers of the file systems that hold no files, wherever they are mounted."""
    ordinary = Path("/").stat().st_dev
    found = {Path(place).stat().st_dev for place in SYSTEM_FOLDERS if Path(place).is_dir()}
    return frozenset(found - {ordinary})


def path_parts(path: str) -> tuple[str, ...]:
    """The names along a path; BadRequest when it leads out of the folder or is no path."""
    parts = PurePosixPath(path).parts
    if path.startswith(("/", "~")) or ".." in parts:
        raise BadRequest(f"path {path[:200]!r} must lead down from the folder: no /, ~ or ..", field="path")
    if "\0" in path or len(path.encode(errors="replace")) > MAX_PATH_BYTES:
        raise BadRequest("the path cannot be one of a file", field="path")
    return parts


def open_child(descriptor: int, name: str, *, path: str) -> int:
    """Open what is called `step` in an open folder. What is neither file nor folder is not even opened."""
    try:
        mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise Forbidden(f"{path!r} leads over a link, and links are not followed")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise Forbidden(f"{path!r} is neither a file nor a folder")
        # Not blocking, lest a pipe that has taken the file's place is waited for.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    except FileNotFoundError:
        raise NotFound(f"there is no {path!r}", hint="files.list shows what there is") from None
    except NotADirectoryError:
        raise NotFound(f"{path!r} leads through a file", hint="files.list shows what there is") from None
    except (OSError, UnicodeEncodeError) as error:
        raise Forbidden(f"{path!r} cannot be opened: {error_reason(error)}") from None


def error_reason(error: OSError | UnicodeEncodeError) -> str:
    """Why, without the path on this machine."""
    return error.strerror or "error" if isinstance(error, OSError) else "its name is no text"
