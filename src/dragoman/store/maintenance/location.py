"""Addresses of databases, as commands take them: `sqlite:PATH`, or the URL of Postgres."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from dragoman.errors import BadRequest, NotFound
from dragoman.store.connection import Backend
from dragoman.store.postgres.url import parse_url, shown_url
from dragoman.store.sqlite import SQLiteBackend
from dragoman.store.store import DATABASE_FILE, DatabaseSettings, choose_backend, postgres_backend

SQLITE_SCHEME = "sqlite:"
URL_HINT = "write sqlite:PATH, with the data folder or its database file, or postgresql://user@host/name"


class DatabaseLocation(NamedTuple):
    """A database: the file of SQLite, or the URL of Postgres. `folder` is the data folder, if any."""

    path: Path | None
    url: str | None
    folder: Path | None

    @classmethod
    def parse(cls, text: str, *, folder: Path | None = None) -> DatabaseLocation:
        """Return the database at an address. Raises BadRequest or ConfigError, which do not show it."""
        if text.startswith(SQLITE_SCHEME):
            path = Path(unquote(sqlite_path(text)))
            file = path / DATABASE_FILE if path.is_dir() or not path.suffix else path
            return cls(file.absolute(), None, file.absolute().parent)
        if text.startswith(("postgresql://", "postgres://")):
            choose_backend(Path(), DatabaseSettings(text))  # raises ConfigError for what cannot be used
            return cls(None, text, folder)
        raise BadRequest("the address of a database begins with sqlite: or postgresql://", hint=URL_HINT)

    @classmethod
    def of_folder(cls, folder: Path) -> DatabaseLocation:
        """Return the database of SQLite in a data folder."""
        return cls((folder / DATABASE_FILE).absolute(), None, folder)

    def backend(self, *, exclusive: bool) -> Backend:
        """Return the backend. With `exclusive`, its `prepare` locks database and folder against hubs.

        Raises ConfigError for a URL that cannot be read, or without the driver of Postgres.
        """
        if self.path is not None:
            return SQLiteBackend(self.path, exclusive=exclusive)
        if exclusive:
            return postgres_backend(self.url or "", folder=self.folder, use="maintenance")
        return postgres_backend(self.url or "")

    def require(self) -> None:
        """Raise NotFound unless there is a database file, or it is Postgres."""
        if self.path is not None and not self.path.is_file():
            raise NotFound(f"there is no database {str(self.path)!r}", hint=URL_HINT)

    @property
    def name(self) -> str:
        """The address without a password. ConfigError."""
        return f"sqlite:{self.path}" if self.path is not None else shown_url(self.url or "")

    @property
    def identity(self) -> str:
        """What identifies the database: its address, and a hash of the parameters that are not shown."""
        if self.path is not None:
            return f"sqlite:{self.path.resolve()}"
        everything = parse_url(self.url or "")
        params = {name: str(value) for name, value in everything.items() if "password" not in name}
        return f"{self.name}#{hashlib.sha256(msgspec.json.encode(params, order='sorted')).hexdigest()[:16]}"


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
