"""The folder of one host within a data folder: its files wait for the database, and one process writes them.

The first host of a machine has the data folder itself, further ones have `hosts/2`, `hosts/3` and so on. A
new process takes a free folder in which another process has left something, and replays that. What is left in
other folders is replayed by the running processes: see `find_leftovers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from dragoman.errors import StoreError
from dragoman.store.private_files import make_private_folder
from dragoman.store.sqlite import lock_folder

HOSTS_FOLDER = "hosts"
USAGE_SPOOL = "usage.spool"
ANSWERS_FOLDER = "answers.spool"
FIRST_NUMBER = 2
LEFTOVERS = (USAGE_SPOOL, f"{USAGE_SPOOL}.replayed", f"{ANSWERS_FOLDER}/*.json")


class HostFolder:
    """Takes a folder of its own for this process, until `release`."""

    def __init__(self, data: Path) -> None:
        """`data` is the data folder, which hosts of one machine may share."""
        self.path = data
        self._data = data
        self._lock: ExitStack | None = None

    def take(self) -> None:
        """Choose and lock a folder for this process, and set `path` to it. Does nothing the second time."""
        if self._lock is not None:
            return
        make_private_folder(self._data)
        for path in self._candidates():
            with ExitStack() as stack:
                try:
                    stack.enter_context(lock_folder(path))
                except StoreError:  # another process has it
                    continue
                self.path, self._lock = path, stack.pop_all()
                return

    def release(self) -> None:
        """Unlock the folder."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _candidates(self) -> Iterator[Path]:
        """Yield the folders to try: first those in which something may have been left."""
        yield self._data
        hosts = self._data / HOSTS_FOLDER
        make_private_folder(hosts)
        yield from sorted(
            (path for path in hosts.iterdir() if has_leftovers(path)), key=lambda path: path.name
        )
        for number in count(FIRST_NUMBER):
            make_private_folder(path := hosts / str(number))
            yield path


def has_leftovers(folder: Path) -> bool:
    """Return whether a folder has files that the database has not accepted yet."""
    return any(path.is_file() for pattern in LEFTOVERS for path in folder.glob(pattern))


def find_leftovers(data: Path, own: Path) -> Sequence[Path]:
    """Return the folders other than `own` with files that the database has not accepted yet."""
    hosts = data / HOSTS_FOLDER
    folders = (data, *(sorted(hosts.iterdir()) if hosts.is_dir() else ()))
    return [folder for folder in folders if folder != own and has_leftovers(folder)]
