"""The lock on a data folder: two hubs never share one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import StoreError

NAME = "hub.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends in whatever way.

    StoreError, naming the process, when another one holds it.
    """
    file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(file, folder)
        yield
    finally:
        os.close(file)


def _take(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 20, 0).decode("ascii", "replace").strip()
        raise StoreError(
            f"the data folder {str(folder)!r} is in use by process {holder or 'unknown'}",
            hint="stop that hub first, or give this one a folder of its own with --data",
        ) from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)
