"""Files and folders that no operation writes, by what they are and not by their path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.errors import Forbidden
from dragoman.tools.version_control import REPOSITORY_NAMES, hook_paths, plain_name


class ProtectedFiles:
    """Files that are not written, and folders in which nothing is.

    They are looked up when asked, so that a file that is replaced stays protected. `names`, and those of
    repositories, are protected in every folder, in all spellings that some file system takes for them.
    """

    def __init__(self, paths: Iterable[Path] = (), *, names: Iterable[str] = ()) -> None:
        self._paths = tuple(paths)
        self._names = REPOSITORY_NAMES.union(name.casefold() for name in names)

    def check_names(self, parts: Iterable[str], *, path: str) -> None:
        """Raise Forbidden if a path leads to or through one of the names."""
        found = next((part for part in parts if plain_name(part) in self._names), None)
        if found is not None:
            raise Forbidden(f"{path!r} leads to {found!r}, which is not written by file operations.")

    def check_hooks(self, folder: int, parts: Sequence[str], *, path: str) -> None:
        """Raise Forbidden if a path below an open folder leads to the hooks of the repository in it."""
        plain = [plain_name(part) for part in parts]
        for hooks in hook_paths(folder):
            if plain[: len(hooks)] == [plain_name(part) for part in hooks]:
                raise Forbidden(
                    f"{path!r} leads to hooks of a repository, which file operations do not write."
                )

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
