"""The files of a data folder that belong to its database: its key, and what waits in its spools.

The key encrypts rows of one database, and the spools hold rows for it. So a backup has these files, and so
has a copy between two data folders; the files that a folder had for another database are moved aside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import Conflict, StoreError
from dragoman.store.hosts.host_folder import ANSWERS_FOLDER, HOSTS_FOLDER, USAGE_SPOOL
from dragoman.store.maintenance.drafts import draft_folder, sync_folder, unwritable, write_draft
from dragoman.store.private_files import FOLDER_MODE
from dragoman.store.sqlite import lock_folder
from dragoman.store.store import FOLDER_KEY_FILE

FILE_PATTERNS = (FOLDER_KEY_FILE, f"{USAGE_SPOOL}*", f"{ANSWERS_FOLDER}/*.json")
SPOOL_PATTERNS = (f"{USAGE_SPOOL}*", f"{ANSWERS_FOLDER}/*")
CACHE_FILE = "keys.cache"


def read_files(folder: Path | None, *, with_key: bool) -> Mapping[str, bytes]:
    """Return the files that a restored hub needs: its key, and what its spools hold.

    What the spools of other hosts of the same data folder hold is in the files of the first one.
    """
    if folder is None:
        return {}
    bodies = dict(find_files(folder, FILE_PATTERNS if with_key else FILE_PATTERNS[1:]))
    hosts = folder / HOSTS_FOLDER
    for host in sorted(hosts.iterdir()) if hosts.is_dir() else ():
        for name, body in find_files(host, FILE_PATTERNS[1:]):
            if name.startswith(USAGE_SPOOL):
                bodies[USAGE_SPOOL] = b"\n".join([*filter(None, [bodies.get(USAGE_SPOOL)]), body])
            else:
                bodies[name.replace("/", f"/{host.name}-")] = body
    return bodies


def find_files(folder: Path, patterns: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the contents of the files that match."""
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        with suppress(FileNotFoundError):  # replayed in the meantime, so the database has it
            yield path.relative_to(folder).as_posix(), path.read_bytes()


class ReplacedFiles(NamedTuple):
    """Where a data folder's former files are: its key, if that was another, and the folder of its spools."""

    key: Path | None = None
    spools: Path | None = None


class FileDrafts:
    """Files for a data folder, all complete on its disk before the first one gets its name.

    So a full disk changes nothing. The caller of `publish` keeps hubs from the folder until that is done.
    """

    def __init__(self, folder: Path, bodies: Mapping[str, bytes], *, place: Path) -> None:
        """Write the drafts into a new folder `place` on the disk of `folder`. StoreError."""
        self.replaced = ReplacedFiles()
        self._folder = folder
        self._bodies = bodies
        self._drafts: dict[Path, Path] = {}
        try:
            place.mkdir(mode=FOLDER_MODE)
            for number, (name, body) in enumerate(bodies.items()):
                write_draft(draft := place / str(number), body)
                self._drafts[draft] = folder / name
        except OSError as error:
            raise unwritable(folder, error) from error

    def publish(self) -> ReplacedFiles:
        """Give the files their names, and move aside what the folder had instead. StoreError."""
        try:
            self.replaced = ReplacedFiles(self._keep_former_key(), self._move_spools())
            (self._folder / CACHE_FILE).unlink(missing_ok=True)
            for draft, path in self._drafts.items():
                path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
                draft.replace(path)
            for folder in {self._folder, *(path.parent for path in self._drafts.values())}:
                sync_folder(folder)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        return self.replaced

    def _keep_former_key(self) -> Path | None:
        """Give the folder's former key another name if the key is replaced; return its path."""
        key = self._folder / FOLDER_KEY_FILE
        if FOLDER_KEY_FILE not in self._bodies or not key.exists() or self._has(key):
            return None
        replaced = unused_path(self._folder / f"{FOLDER_KEY_FILE}.replaced-{time_stamp()}")
        try:
            os.link(key, replaced)
        except OSError:  # a file system without hard links
            key.replace(replaced)
        return replaced

    def _move_spools(self) -> Path | None:
        """Move spools of the former database to a new folder; return that, None if there are none."""
        place = unused_path(self._folder / f"spools.replaced-{time_stamp()}")
        with ExitStack() as locks:
            for path in [path for path in find_spools(self._folder, locks) if not self._has(path)]:
                moved = place / path.relative_to(self._folder)
                make_folders(moved.parent, top=self._folder)
                path.replace(moved)
        if not place.exists():
            return None
        sync_folder(place)
        return place

    def _has(self, path: Path) -> bool:
        """Return whether a path has its new content already: an earlier process has published it."""
        body = self._bodies.get(path.relative_to(self._folder).as_posix())
        return body is not None and path.read_bytes() == body


def write_files(folder: Path, bodies: Mapping[str, bytes]) -> ReplacedFiles:
    """Write files into a data folder, which no hub uses meanwhile. StoreError."""
    with draft_folder(folder / "copy") as draft:
        return FileDrafts(folder, bodies, place=draft / "files").publish()


def find_spools(folder: Path, locks: ExitStack) -> Iterator[Path]:
    """Yield the files in the spools of a data folder and of its hosts.

    `locks` has the locks of the hosts' parts; a part in use is that of a hub with another database.
    """
    hosts = folder / HOSTS_FOLDER
    places = [folder]
    for host in sorted(hosts.iterdir()) if hosts.is_dir() else ():
        with suppress(StoreError, NotADirectoryError):
            locks.enter_context(lock_folder(host))
            places.append(host)
    for place in places:
        yield from (
            path for pattern in SPOOL_PATTERNS for path in sorted(place.glob(pattern)) if path.is_file()
        )


def make_folders(folder: Path, *, top: Path) -> None:
    """Create a private folder below `top`, with those above it."""
    if folder != top and not folder.is_dir():
        make_folders(folder.parent, top=top)
        folder.mkdir(mode=FOLDER_MODE)


def unused_path(path: Path) -> Path:
    """Return a path that does not exist: this one, or with a number."""
    names = (path.name, *(f"{path.name}-{number}" for number in range(2, 1_000)))
    return next(each for name in names if not os.path.lexists(each := path.with_name(name)))


def time_stamp() -> str:
    return time.strftime("%Y%m%dT%H%M%S")


def check_names(names: Iterable[str]) -> None:
    """Raise StoreError for a file that no backup has, such as one outside of the data folder."""
    for name in names:
        patterns = [pattern for pattern in FILE_PATTERNS if pattern.count("/") == name.count("/")]
        if ".." in name or not any(fnmatchcase(name, pattern) for pattern in patterns):
            raise StoreError(f"the backup holds a file {name!r}, which no backup of this program has")


def require_key(folder: Path, bodies: Mapping[str, bytes], *, source: Path) -> None:
    """Raise Conflict when a folder has another key than the files of the folder `source`."""
    key = folder / FOLDER_KEY_FILE
    if key.exists() and FOLDER_KEY_FILE in bodies and key.read_bytes() != bodies[FOLDER_KEY_FILE]:
        raise Conflict(
            f"{str(key)!r} is another key than that of {str(source)!r}",
            hint="move it away: it encrypts what is stored in the database beside it",
        )
