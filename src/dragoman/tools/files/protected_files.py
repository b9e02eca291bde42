"""Files and folders that no operation writes to, recognised by device and inode instead of the path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.errors import Forbidden
from dragoman.tools.version_control import REPOSITORY_NAMES, hook_paths, plain_name


class ProtectedFiles:
    """Files that are not written, and folders in which nothing is written.

    Their identities are read at each check, so that a file that is replaced stays protected. `names` and the
    names of repositories are protected in every folder, in each spelling that some file system treats as the
    same name.
    """

    def __init__(self, paths: Iterable[Path] = (), *, names: Iterable[str] = ()) -> None:
        self._paths = tuple(paths)
        self._names = REPOSITORY_NAMES.union(name.casefold() for name in names)

    def check_names(self, parts: Iterable[str], *, path: str) -> None:
        """Raise Forbidden if a path leads to or through one of the names."""
        protected = next((part for part in parts if plain_name(part) in self._names), None)
        if protected is not None:
            raise Forbidden(f"{path!r} leads to {protected!r}, which file operations do not write.")

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
        identities = set()
        for path in self._paths:
            try:
                status = path.stat()
            except OSError:
                continue
            identities.add((status.st_dev, status.st_ino))
        return frozenset(identities)
