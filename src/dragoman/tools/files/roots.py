"""The shared folders: a single one is the top of the tree, several are its top folders by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import BadRequest, ConfigError, NotFound
from dragoman.tools.files.rooted_folder import RootedFolder, path_parts

FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class Roots:
    """The files of one folder, or of several folders below their names. Raises ConfigError."""

    def __init__(self, root: Path | None = None, folders: Mapping[str, Path] | None = None) -> None:
        self._single: RootedFolder | None = None
        self._by_name = {check_name(name): RootedFolder(path) for name, path in (folders or {}).items()}
        if root is not None and self._by_name:
            name = root.resolve().name
            if check_name(name) in self._by_name:
                raise ConfigError(f"Two shared folders are called {name!r}.", hint="Name them under `files`.")
            self._by_name[name] = RootedFolder(root)
        elif root is not None:
            self._single = RootedFolder(root)

    def top_names(self, path: str) -> list[str] | None:
        """Return the names of the folders if the path is the top of several; else None."""
        return None if self._single or path_parts(path) else sorted(self._by_name)

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """Open a file or folder for reading and yield its descriptor.

        Raises NotFound, Forbidden or BadRequest.
        """
        folder, inner_path = self.resolve(path)
        with folder.open(inner_path, display_path=path) as descriptor:
            yield descriptor

    def top_folder(self, path: str) -> str:
        """Return the name of the top folder that a path is in; `.` where there is only one folder."""
        parts = path_parts(path)
        return parts[0] if parts and not self._single else "."

    def resolve(self, path: str) -> tuple[RootedFolder, str]:
        """Return the folder that a path is in, and the path below it. Raises NotFound, BadRequest."""
        if self._single:
            return self._single, path
        parts = path_parts(path)
        if not parts:
            raise BadRequest(f"{path!r} is a folder.", field="path", hint="List it with files.list.")
        if parts[0] not in self._by_name:
            names = ", ".join(sorted(self._by_name))
            raise NotFound(f"There is no {path!r}.", hint=f"A path starts with one of: {names}.")
        return self._by_name[parts[0]], "/".join(parts[1:]) or "."


def check_name(name: str) -> str:
    if not FOLDER_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid folder name: use 1 to 64 letters, digits, spaces, dots, - or _.",
            hint="Name it under `files`.",
        )
    return name
