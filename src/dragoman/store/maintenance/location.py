"""Addresses of databases, as commands take them: `sqlite:PATH`, or the URL of Postgres."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from dragoman.errors import BadRequest, NotFound
from dragoman.store.connection import Backend
from dragoman.store.sqlite import SQLiteBackend
from dragoman.store.store import DATABASE_FILE

SQLITE_SCHEME = "sqlite:"
URL_HINT = "write sqlite:PATH, with the data folder or its database file, or postgresql://user@host/name"


class DatabaseLocation(NamedTuple):
    """A database: the file of SQLite, or the URL of Postgres. `folder` is the data folder, if any."""

    path: Path | None
    url: str | None
    folder: Path | None

    @classmethod
    def parse(cls, text: str, *, folder: Path | None = None) -> DatabaseLocation:
        """Return the database at an address. BadRequest, which does not show it."""
        if text.startswith(SQLITE_SCHEME):
            path = Path(unquote(sqlite_path(text)))
            file = path / DATABASE_FILE if path.is_dir() or not path.suffix else path
            return cls(file.absolute(), None, file.absolute().parent)
        if text.startswith(("postgresql://", "postgres://")):
            return cls(None, text, folder)
        raise BadRequest("the address of a database begins with sqlite: or postgresql://", hint=URL_HINT)

    @classmethod
    def of_folder(cls, folder: Path) -> DatabaseLocation:
        """Return the database of SQLite in a data folder."""
        return cls((folder / DATABASE_FILE).absolute(), None, folder)

    def backend(self, *, exclusive: bool) -> Backend:
        """Return the backend. With `exclusive`, its `prepare` locks the database against hubs."""
        if self.path is None:
            raise BadRequest("Postgres is not supported yet", hint=URL_HINT)
        return SQLiteBackend(self.path, exclusive=exclusive)

    def require(self) -> None:
        """Raise NotFound unless there is a database file, or it is Postgres."""
        if self.path is not None and not self.path.is_file():
            raise NotFound(f"there is no database {str(self.path)!r}", hint=URL_HINT)

    @property
    def name(self) -> str:
        """The address without a password."""
        return f"sqlite:{self.path}"


def sqlite_path(text: str) -> str:
    """Return the path in `sqlite:PATH` or `sqlite:////PATH`.

    `sqlite:///PATH` is relative if that exists, as SQLAlchemy reads it, else absolute.
    """
    path = text.removeprefix(SQLITE_SCHEME)
    if not path.startswith("///"):
        return path.removeprefix("//")
    relative = path.removeprefix("///")
    absolute = f"/{relative.removeprefix('/')}"
    return relative if Path(relative).exists() and not Path(absolute).exists() else absolute
