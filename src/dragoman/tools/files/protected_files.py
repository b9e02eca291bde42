"""Files and folders that no operation writes, by what they are and not by their path."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dragoman.errors import Forbidden

GIT_FOLDER = ".git"  # its hooks and configuration name programs that git runs for whoever works there


class ProtectedFiles:
    """Files that are not written, and folders in which nothing is.

    They are looked up when asked, so that a file that is replaced stays protected. `names`, and `.git`, are
    protected in every folder, in any case of their letters.
    """

    def __init__(self, paths: Iterable[Path] = (), *, names: Iterable[str] = ()) -> None:
        self._paths = tuple(paths)
        self._names = frozenset(name.casefold() for name in (GIT_FOLDER, *names))

    def check_names(self, parts: Iterable[str], *, path: str) -> None:
        """Raise Forbidden if a path leads to or through one of the names."""
        found = next((part for part in parts if part.casefold() in self._names), None)
        if found is not None:
            raise Forbidden(f"{path!r} leads to {found!r}, which is not written by file operations.")

    def check(self, status: os.stat_result, *, path: str) -> None:
        """Raise Forbidden if this is the status of a protected file or folder."""
        if (status.st_dev, status.st_ino) in self._identities():
            raise Forbidden(f"{path!r} is the hub's configuration, which only its operator writes.")

    def _identities(self) -> frozenset[tuple[int, int]]:
        found = set()
        for path in self._paths:
            try:
                status = path.stat()
            except OSError:
                continue
            found.add((status.st_dev, status.st_ino))
        return frozenset(found)
