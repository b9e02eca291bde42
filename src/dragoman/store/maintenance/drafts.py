"""Files that are written beside their final path, and renamed when they are complete and on the disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dragoman.errors import Conflict, StoreError
from dragoman.store.private_files import FILE_MODE, FOLDER_MODE
from dragoman.store.sqlite import LOCK_FILE, lock_folder


@contextmanager
def draft_folder(file: Path) -> Iterator[Path]:
    """Open a private folder beside a file, to write it in. One that a killed process left is emptied."""
    folder = file.with_name(f"{file.name}.partial")
    try:
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise unwritable(file, error) from None
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(folder))
        except OSError as error:
            raise unwritable(file, error) from None
        except StoreError:
            raise Conflict(
                f"another process is writing {str(folder)!r}", hint="wait until it has ended"
            ) from None
        for path in folder.iterdir():
            remove(path)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove what a killed process left in its draft folder, but not the lock."""
    if path.is_dir():
        shutil.rmtree(path)
    elif path.name != LOCK_FILE:
        path.unlink()


def write_draft(path: Path, body: bytes) -> None:
    """Write a private file and sync it to the disk. OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(body)
        opened.flush()
        os.fsync(opened.fileno())


def unwritable(path: Path, error: OSError) -> StoreError:
    """Return the error of a file or folder that cannot be written."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space on its disk" if is_full else "check that this user may write to its folder"
    return StoreError(f"cannot write {str(path)!r}: {error.strerror}", hint=hint)


def publish_new(draft: Path, file: Path) -> None:
    """Give a finished file its name, which must be new."""
    draft.chmod(FILE_MODE)
    try:
        os.link(draft, file)
    except FileExistsError:
        raise Conflict(f"{str(file)!r} exists", hint="name a new file; a backup replaces none") from None
    except OSError:  # a file system without hard links
        draft.rename(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
