"""Roots: the folders that are shown, one as it is, several as the top folders of one tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import BadRequest, ConfigError, NotFound
from dragoman.tools.files.folder import Folder, steps

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class Roots:
    """Files of one folder, or of several below their names."""

    def __init__(self, root: Path | None = None, named: Mapping[str, Path] | None = None) -> None:
        self._only: Folder | None = None
        self._named = {check_name(name): Folder(path) for name, path in (named or {}).items()}
        if root is not None and self._named:
            name = root.resolve().name
            if check_name(name) in self._named:
                raise ConfigError(f"two folders to show are called {name!r}", hint="name them under `files`")
            self._named[name] = Folder(root)
        elif root is not None:
            self._only = Folder(root)

    def tops(self, path: str) -> list[str] | None:
        """The names of the folders, if they are what is at the path."""
        return None if self._only or steps(path) else sorted(self._named)

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """A descriptor of the file or folder, for reading. NotFound, Forbidden or BadRequest if not."""
        folder, inner = self._find(path)
        with folder.open(inner, shown=path) as descriptor:
            yield descriptor

    def _find(self, path: str) -> tuple[Folder, str]:
        if self._only:
            return self._only, path
        parts = steps(path)
        if not parts:
            raise BadRequest(f"{path!r} is a folder", field="path", hint="files.list lists it")
        if parts[0] not in self._named:
            names = ", ".join(sorted(self._named))
            raise NotFound(f"there is no {path!r}", hint=f"a path begins with one of: {names}")
        return self._named[parts[0]], "/".join(parts[1:]) or "."


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a folder of files: 1 to 64 letters, digits, spaces, dots, - or _",
            hint="name it under `files`",
        )
    return name
