"""Roots: the folders that are shown, one as it is, several as the top folders of one tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import BadRequest, ConfigError, NotFound
from dragoman.tools.files.rooted_folder import RootedFolder, path_parts

FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class Roots:
    """Files of one folder, or of several below their names."""

    def __init__(self, root: Path | None = None, folders: Mapping[str, Path] | None = None) -> None:
        self._single: RootedFolder | None = None
        self._by_name = {check_name(name): RootedFolder(path) for name, path in (folders or {}).items()}
        if root is not None and self._by_name:
            name = root.resolve().name
            if check_name(name) in self._by_name:
                raise ConfigError(f"two folders to show are called {name!r}", hint="name them under `files`")
            self._by_name[name] = RootedFolder(root)
        elif root is not None:
            self._single = RootedFolder(root)

    def top_names(self, path: str) -> list[str] | None:
        """The names of the folders, if they are what is at the path."""
        return None if self._single or path_parts(path) else sorted(self._by_name)

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """A descriptor of the file or folder, for reading. NotFound, Forbidden or BadRequest if not."""
        folder, inner = self._resolve(path)
        with folder.open(inner, display_path=path) as descriptor:
            yield descriptor

    def _resolve(self, path: str) -> tuple[RootedFolder, str]:
        if self._single:
            return self._single, path
        parts = path_parts(path)
        if not parts:
            raise BadRequest(f"{path!r} is a folder", field="path", hint="files.list lists it")
        if parts[0] not in self._by_name:
            names = ", ".join(sorted(self._by_name))
            raise NotFound(f"there is no {path!r}", hint=f"a path begins with one of: {names}")
        return self._by_name[parts[0]], "/".join(parts[1:]) or "."


def check_name(name: str) -> str:
    if not FOLDER_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a folder of files: 1 to 64 letters, digits, spaces, dots, - or _",
            hint="name it under `files`",
        )
    return name
