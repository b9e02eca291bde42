"""A folder that paths cannot leave: each step is opened below the last one, without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import msgspec

from dragoman.errors import BadRequest, ConfigError, Forbidden, NotFound, TooLarge
from dragoman.ids import new_id
from dragoman.tools.files.protected_files import ProtectedFiles

MAX_PATH_BYTES = 4_096  # bytes of a path
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")  # the system's state, with secrets of running programs


class RootedFolder:
    """Files below a root.

    Each step of a path is opened relative to the folder before it, and no step follows a link. So nothing
    outside the root can be reached: neither by `..`, nor by a link, nor by a link that another process
    creates between check and use.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ConfigError(
                f"There is no folder {str(root)!r}.",
                hint="create it, or correct the path, which is relative to where the hub is started",
            )
        self._root = root.resolve()
        self._system_devices = system_devices()
        if self._root.stat().st_dev in self._system_devices:
            raise ConfigError(f"{str(root)!r} contains the system's state, which may not be shared.")

    @contextmanager
    def open(self, path: str, *, display_path: str | None = None) -> Iterator[int]:
        """Open a file or folder for reading and yield its descriptor.

        Raises NotFound, Forbidden or BadRequest. `display_path` is the path in error messages.
        """
        shown_path = path if display_path is None else display_path
        descriptor = self._open_root()
        try:
            for name in path_parts(path):
                child = open_child(descriptor, name, path=shown_path)
                os.close(descriptor)
                descriptor = child
                if os.fstat(descriptor).st_dev in self._system_devices:
                    raise Forbidden(f"{shown_path!r} is part of the system's state, which may not be read.")
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def open_parent(
        self, path: str, *, display_path: str, protected: ProtectedFiles
    ) -> Iterator[tuple[int, str]]:
        """Open the folder that a file is to be written in; yield its descriptor and the file's name.

        Creates missing folders. Raises Forbidden within a protected folder, and BadRequest for the root.
        """
        *folders, name = path_parts(path) or ("",)
        if not name:
            raise BadRequest(f"{display_path!r} is a folder.", field="path", hint="Name a file in it.")
        protected.check_names((*folders, name), path=display_path)
        descriptor = self._open_root()
        try:
            protected.check(os.fstat(descriptor), path=display_path)
            for depth, folder in enumerate(folders):
                protected.check_hooks(descriptor, (*folders[depth:], name), path=display_path)
                with suppress(FileExistsError):
                    make_folder(descriptor, folder, path=display_path)
                child = open_child(descriptor, folder, path=display_path)
                os.close(descriptor)
                descriptor = child
                status = os.fstat(descriptor)
                protected.check(status, path=display_path)
                if not stat.S_ISDIR(status.st_mode):
                    raise BadRequest(f"{display_path!r} leads through a file.", field="path")
                if status.st_dev in self._system_devices:
                    raise Forbidden(f"{display_path!r} is part of the system's state.")
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _open_root(self) -> int:
        try:
            return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Forbidden(f"The root folder cannot be opened: {error_reason(error)}") from None


def system_devices() -> frozenset[int]:
    """Return the device numbers of the system's file systems, wherever they are mounted."""
    root_device = Path("/").stat().st_dev
    devices = {Path(folder).stat().st_dev for folder in SYSTEM_FOLDERS if Path(folder).is_dir()}
    return frozenset(devices - {root_device})


def path_parts(path: str) -> tuple[str, ...]:
    """Return the names along a path. Raises BadRequest if it leads out of the folder or is not a path."""
    parts = PurePosixPath(path).parts
    if path.startswith(("/", "~")) or ".." in parts:
        raise BadRequest(
            f"The path {path[:200]!r} must be relative and inside the folder: no leading / or ~, and no ..",
            field="path",
        )
    if "\0" in path or len(path.encode(errors="replace")) > MAX_PATH_BYTES:
        raise BadRequest("The path is not a valid file path.", field="path")
    return parts


def open_child(descriptor: int, name: str, *, path: str) -> int:
    """Open `name` in an open folder. Only files and folders are opened."""
    try:
        mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise Forbidden(f"{path!r} contains a link; links are not followed.")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise Forbidden(f"{path!r} is neither a file nor a folder.")
        # Non-blocking: the file may have been replaced by a pipe.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    except FileNotFoundError:
        raise NotFound(f"There is no {path!r}.", hint="files.list shows what exists.") from None
    except NotADirectoryError:
        raise NotFound(f"{path!r} leads through a file.", hint="files.list shows what exists.") from None
    except (OSError, UnicodeEncodeError) as error:
        raise Forbidden(f"{path!r} cannot be opened: {error_reason(error)}") from None


def error_reason(error: OSError | UnicodeEncodeError) -> str:
    """Return the reason, without the path on this machine."""
    return error.strerror or "error" if isinstance(error, OSError) else "its name is not valid text"


class FileText(msgspec.Struct, frozen=True):
    """The text of a file, and its mode; None for a new file's."""

    text: str
    mode: int | None = None


def read_whole(
    parent: int, name: str, *, path: str, protected: ProtectedFiles, limit: int
) -> FileText | None:
    """Read a file that is about to be replaced; None if it does not exist. `parent` is its open folder.

    Raises Forbidden for a protected file or a link, BadRequest if it is not UTF-8 text, TooLarge.
    """
    try:
        descriptor = open_child(parent, name, path=path)
    except NotFound:
        return None
    try:
        protected.check(os.fstat(descriptor), path=path)
        return decode_whole(descriptor, path=path, limit=limit)
    finally:
        os.close(descriptor)


def decode_whole(descriptor: int, *, path: str, limit: int) -> FileText:
    """Return the text of an open file. Raises BadRequest unless it is a file of UTF-8 text, TooLarge."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BadRequest(f"{path!r} is a folder.", field="path", hint="Name a file in it.")
    if status.st_size > limit:
        raise TooLarge(f"{path!r} has {status.st_size} bytes; the limit is {limit}.")
    try:
        return FileText(os.pread(descriptor, limit, 0).decode(), stat.S_IMODE(status.st_mode))
    except UnicodeDecodeError:
        raise BadRequest(f"{path!r} is not UTF-8 text.", field="path") from None


def replace_file(parent: int, name: str, *, content: FileText, path: str) -> None:
    """Write a file in an open folder atomically: a new file takes the place of the old one."""
    temporary = f".{new_id('write')}.tmp"
    try:
        write_new_file(parent, temporary, content=content)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except (OSError, UnicodeEncodeError) as error:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise Forbidden(f"{path!r} cannot be written: {error_reason(error)}") from None


def write_new_file(parent: int, name: str, *, content: FileText) -> None:
    """Create a file in an open folder. Raises OSError if the name is taken."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as file:
        if content.mode is not None:
            os.fchmod(descriptor, content.mode & 0o777)
        file.write(content.text.encode())


def make_folder(parent: int, name: str, *, path: str) -> None:
    """Create a folder in an open one. Raises FileExistsError, Forbidden."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        raise
    except (OSError, UnicodeEncodeError) as error:
        raise Forbidden(f"{path!r} cannot be created: {error_reason(error)}") from None
