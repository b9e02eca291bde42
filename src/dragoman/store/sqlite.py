"""SQLite as a backend: its connections, its SQL, and what its errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal, TypeAlias

from sqlalchemy import ClauseElement, Table
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite.pysqlite import dialect

from dragoman.errors import Conflict, DragomanError, NotFound, StoreError
from dragoman.store.connection import Params, Row
from dragoman.store.lock import locked
from dragoman.store.schema import bring_up, is_old

Synchronous: TypeAlias = Literal["normal", "full"]

BUSY_SECONDS = 5.0
STATEMENTS = 256
JOURNAL_BYTES = 64 * 1024 * 1024

DIALECT = dialect(paramstyle="named")
HINTS = {
    "SQLITE_BUSY": "another process holds the database; try again",
    "SQLITE_CANTOPEN": "check that the folder exists and that this user may write to it",
    "SQLITE_CORRUPT": "the file is damaged; restore it from a copy",
    "SQLITE_FULL": "make room on the disk",
    "SQLITE_NOTADB": "the file is something else; move it away, or choose another folder with --data",
    "SQLITE_READONLY": "let this user write to the folder and its files",
}


class SQLiteConnection:
    """A sqlite3 connection whose transactions are begun and ended by hand."""

    def __init__(self, raw: sqlite3.Connection, begin: str) -> None:
        self._raw = raw
        self._begin = begin

    def run(self, sql: str, params: Params) -> int:
        return self._raw.execute(sql, params).rowcount

    def run_many(self, sql: str, rows: Iterable[Params]) -> None:
        self._raw.executemany(sql, rows)

    def one(self, sql: str, params: Params) -> Row | None:
        row: Row | None = self._raw.execute(sql, params).fetchone()
        return row

    def all(self, sql: str, params: Params) -> Sequence[Row]:
        return self._raw.execute(sql, params).fetchall()

    def begin(self) -> None:
        self.rollback()
        self._raw.execute(self._begin)

    def commit(self) -> None:
        self._raw.execute("COMMIT")

    def rollback(self) -> None:
        if self._raw.in_transaction:
            self._raw.execute("ROLLBACK")

    def close(self) -> None:
        self._raw.close()


class SQLite:
    """One database file in WAL mode."""

    def __init__(self, path: Path, *, synchronous: Synchronous = "normal", exclusive: bool = True) -> None:
        self._path = path
        self._synchronous = synchronous
        self._exclusive = exclusive
        self._held = ExitStack()

    def prepare(self) -> None:
        """Create folder and file, lock the folder if asked, bring up the schema."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._exclusive:
                self._held.enter_context(locked(self._path.parent))
            return self._bring_up()
        except Exception as error:  # noqa: BLE001 - raised below
            failure = self.explain(error)
        self.release()
        raise failure

    def connect(self, *, writing: bool) -> SQLiteConnection:
        try:
            raw = self._open()
            raw.execute(f"PRAGMA synchronous = {self._synchronous}")
            raw.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
            raw.execute("PRAGMA foreign_keys = ON")
            raw.execute(f"PRAGMA query_only = {'OFF' if writing else 'ON'}")
        except sqlite3.Error as error:
            raise self.explain(error) from error
        return SQLiteConnection(raw, "BEGIN IMMEDIATE" if writing else "BEGIN")

    def insert(self, table: Table) -> Insert:
        return Insert(table)

    def compile(self, statement: ClauseElement) -> str:
        return str(statement.compile(dialect=DIALECT))

    def explain(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error | OSError):
            return error
        try:
            raise self._meaning(error) from error
        except DragomanError as meaning:
            return meaning

    def release(self) -> None:
        self._held.close()

    def _meaning(self, error: sqlite3.Error | OSError) -> DragomanError:
        """SQLite's own messages name tables and columns, never values."""
        match error:
            case sqlite3.IntegrityError(sqlite_errorname="SQLITE_CONSTRAINT_FOREIGNKEY"):
                return NotFound("the session or message that this belongs to is gone")
            case sqlite3.IntegrityError():
                return Conflict(f"the database refused a row: {error}")
            case sqlite3.Error():
                return self._refusal(str(error), kind=kind_of(error))
            case OSError():
                return self._refusal(error.strerror or type(error).__name__, kind="SQLITE_CANTOPEN")

    def _refusal(self, why: str, *, kind: str) -> StoreError:
        refusal = StoreError(f"cannot use the database {str(self._path)!r}: {why}", hint=HINTS.get(kind))
        refusal.transient = kind in ("SQLITE_BUSY", "SQLITE_FULL")
        return refusal

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS,
        )

    def _bring_up(self) -> None:
        with closing(self._open()) as raw, ExitStack() as held:
            raw.execute("PRAGMA journal_mode = WAL")
            if not self._exclusive and is_old(raw):
                held.enter_context(locked(self._path.parent))  # nobody migrates under a running hub
            bring_up(raw, DIALECT)


def kind_of(error: sqlite3.Error) -> str:
    """SQLITE_READONLY for SQLITE_READONLY_DIRECTORY, and so on."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
