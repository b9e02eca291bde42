"""Which database hubs and stores of tests use: SQLite in their data folder, or a schema of Postgres for it.

`pytest --database postgres` lets all tests use Postgres; `@pytest.mark.parametrize("database", BACKENDS,
indirect=True)` lets one test use both. A test names data folders only, and need not know which it is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import pytest

from dragoman.store import store
from dragoman.store.connection import Backend
from dragoman.store.store import DATABASE_FILE, DatabaseSettings, choose_backend

if TYPE_CHECKING:
    import psycopg

BackendName: TypeAlias = Literal["sqlite", "postgres"]
BACKENDS: tuple[BackendName, ...] = ("sqlite", "postgres")
VARIABLE = "DRAGOMAN_DATABASE"


class FolderSchemas:
    """A schema of the shared server for each data folder, without rows until a store is opened in it.

    A folder that holds a copy of `copy_database` gets the rows of the copy.
    """

    def __init__(self) -> None:
        self._schemas: dict[Path, ExitStack] = {}
        self._urls: dict[Path, str] = {}

    def url(self, folder: Path) -> str:
        """Return the URL of the database of a data folder."""
        from tests.postgres_server import shared_server  # late: most tests need no driver

        folder = folder.resolve()
        if folder not in self._urls:
            self._schemas[folder] = stack = ExitStack()
            self._urls[folder] = url = shared_server().url(stack.enter_context(shared_server().schema()))
            if (copy := folder / DATABASE_FILE).exists():
                load_rows(url, copy)
        return self._urls[folder]

    def release(self, parent: Path | None = None) -> None:
        """Give back the schemas of the folders in `parent`, or of all."""
        for folder in [each for each in self._urls if parent is None or parent.resolve() in each.parents]:
            del self._urls[folder]
            self._schemas.pop(folder).close()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let stores that are opened without the URL of a database use the schema of their folder."""

        def choose(folder: Path, database: DatabaseSettings, *, exclusive: bool = True) -> Backend:
            if self not in _installed:
                return choose_backend(folder, database, exclusive=exclusive)
            found = msgspec.structs.replace(database, url=database.url or self.url(folder))
            return choose_backend(folder, found, exclusive=exclusive)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "choose_backend", choose)
            _installed.append(self)
            try:
                yield
            finally:
                _installed.remove(self)
                self.release()


_installed: list[FolderSchemas] = []


@contextmanager
def databases_as_named() -> Iterator[None]:
    """Let stores use the database that they name, whatever the tests before use."""
    installed = _installed[:]
    _installed.clear()
    try:
        yield
    finally:
        _installed[:] = installed


def database_url(folder: Path) -> str | None:
    """Return the URL of the Postgres database of a data folder; None for SQLite."""
    return _installed[-1].url(folder) if _installed else None


def use_database(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run in this process find the database of a data folder."""
    url = database_url(folder)
    if url is not None:
        monkeypatch.setenv(VARIABLE, url)


def process_environment(folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a hub in a process of its own, whose data folder this is."""
    return {**environ, **database_variables(folder)}


def database_variables(folder: Path) -> dict[str, str]:
    """Return the variables that lead a process to the database of a data folder."""
    url = database_url(folder)
    return {} if url is None else {VARIABLE: url}


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Run SQL on the database of a data folder, beside the hub; return its rows."""
    url = database_url(folder)
    if url is None:
        with closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None)) as raw:
            return raw.execute(sql).fetchall()
    with connect(url) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def copy_database(folder: Path, target: Path) -> None:
    """Copy the database of a data folder into another folder, as a `kill -9` at this moment leaves it."""
    url = database_url(folder)
    if url is None:
        with (
            closing(sqlite3.connect(folder / DATABASE_FILE)) as source,
            closing(sqlite3.connect(target / DATABASE_FILE)) as copy,
        ):
            source.backup(copy)
        return
    with connect(url) as connection:
        rows = {table: read_rows(connection, table) for table in tables(connection)}
    rows = {table: data for table, data in rows.items() if data}  # the search's are made at its first use
    (target / DATABASE_FILE).write_bytes(msgspec.msgpack.encode(rows))


def read_rows(connection: psycopg.Connection[Any], table: str) -> bytes:
    with connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as copy:
        return b"".join(bytes(block) for block in copy)


def load_rows(url: str, copy: Path) -> None:
    """Create the tables of a schema and fill them from a copy."""
    choose_backend(copy.parent, DatabaseSettings(url), exclusive=False).prepare()
    rows = msgspec.msgpack.decode(copy.read_bytes(), type=dict[str, bytes])
    with connect(url) as connection:
        connection.execute("SET session_replication_role = replica")  # in any order, with no trigger
        for table, data in rows.items():
            with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as into:
                into.write(data)
        for table, column in connection.execute(SERIAL_COLUMNS).fetchall():
            sequence = f"pg_get_serial_sequence('{table}', '{column}')"
            connection.execute(f"SELECT setval({sequence}, max({column})) FROM {table}".encode())


SERIAL_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND pg_get_serial_sequence(table_name, column_name) IS NOT NULL
"""
TABLES = """
SELECT relname FROM pg_class
WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND relname != 'alembic_version'
"""


def tables(connection: psycopg.Connection[Any]) -> list[str]:
    return [name for (name,) in connection.execute(TABLES).fetchall()]


def connect(url: str) -> psycopg.Connection[Any]:
    import psycopg

    return psycopg.connect(url, autocommit=True)
