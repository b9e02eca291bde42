"""The SQLite backend: connections, SQL, error translation, and the lock on the data folder."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sqlalchemy import ClauseElement, Table
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite.pysqlite import dialect

from dragoman.errors import Conflict, DragomanError, NotFound, StoreError
from dragoman.store.connection import OutageScope, Params, Row
from dragoman.store.private_files import FILE_MODE, FOLDER_MODE, make_database_folder, make_private
from dragoman.store.schema import needs_migration, upgrade_schema

# The lock on a data folder: two hubs never share one.

LOCK_FILE = "hub.lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder. The operating system releases the lock when the process ends, however it ends.

    Raises StoreError with the id of the process that has the lock.
    """
    file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        _acquire(file, folder)
        yield
    finally:
        os.close(file)


def _acquire(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 20, 0).decode("ascii", "replace").strip()
        raise StoreError(
            f"the data folder {str(folder)!r} is in use by process {holder or 'unknown'}",
            hint="stop that hub first, or give this one a folder of its own with --data",
        ) from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)


Synchronous: TypeAlias = Literal["normal", "full"]

BUSY_SECONDS = 5.0
RETRY_SECONDS = 0.01  # between two attempts to enable WAL
CACHED_STATEMENTS = 256
MAX_JOURNAL_BYTES = 64 * 1024 * 1024

WRITE_ERRORS = ("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_READONLY")
OUTAGE_ERRORS = (
    "SQLITE_CANTOPEN",
    "SQLITE_CORRUPT",
    "SQLITE_IOERR",
    "SQLITE_NOTADB",
    "SQLITE_PERM",
    "SQLITE_PROTOCOL",
)

DIALECT = dialect(paramstyle="named")
POSITIONAL_DIALECT = dialect(paramstyle="qmark")
EMPTY = "EMPTY"
MISSING = "MISSING"
HINTS = {
    MISSING: "bring it back, or restart the hub to start with a new database",
    EMPTY: "restore it from a backup, or delete it to start with a new database",
    "SQLITE_BUSY": "another process has locked the database; try again",
    "SQLITE_CANTOPEN": "check that the folder exists and that this user may write to it",
    "SQLITE_CORRUPT": "the file is damaged; restore it from a backup",
    "SQLITE_FULL": "free some space on the disk",
    "SQLITE_NOTADB": "the file is not a database; move it away, or choose another folder with --data",
    "SQLITE_READONLY": "give this user write permission on the folder and its files",
    "no such module": "search needs a Python whose SQLite has FTS5; everything else works without it",
}

# Adapters that change nothing. Without them sqlite3 searches for one for each NULL and bool, which ends in
# two exceptions and takes ten times as long as binding the value.
_NULLS: dict[None, None] = {}
sqlite3.register_adapter(type(None), _NULLS.get)  # returns None, and is a function in C
sqlite3.register_adapter(bool, int)


class EmptyDatabaseFile(OSError):
    """The database's file has no bytes. The hub never leaves one like that: it was truncated or replaced."""

    reason = "the file is empty (0 bytes), so what it held is gone"

    def __init__(self) -> None:
        super().__init__(errno.ENODATA, self.reason)


class MissingDatabaseFile(OSError):
    """The database's file is gone. A hub that has used it creates no new one, as the file may come back."""

    reason = "the file is gone"

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, self.reason)


class SQLiteConnection:
    """A sqlite3 connection with explicit transactions."""

    def __init__(self, raw: sqlite3.Connection, path: Path, *, begin: str) -> None:
        self._raw = raw
        self._path = path
        self._file_identity = file_identity(path)
        self._begin_sql = begin

    def execute(self, sql: str, params: Params) -> int:
        return self._raw.execute(sql, params).rowcount

    def execute_batched(self, sql: str, params: Params) -> None:
        self._raw.execute(sql, params)

    def execute_positional(self, sql: str, values: Sequence[Any]) -> None:
        self._raw.execute(sql, values)

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        self._raw.executemany(sql, rows)

    def fetch_one(self, sql: str, params: Params) -> Row | None:
        row: Row | None = self._raw.execute(sql, params).fetchone()
        return row

    def fetch_all(self, sql: str, params: Params) -> Sequence[Row]:
        return self._raw.execute(sql, params).fetchall()

    def lock(self, name: str) -> None:
        """Do nothing: a writing transaction is the only one."""

    def begin(self, *, is_group: bool = False) -> None:
        """Begin a transaction. Raises OSError when the file was replaced.

        SQLite would continue writing to the file that it opened, which nobody can find any more.
        """
        self.rollback()
        if file_identity(self._path) != self._file_identity:
            raise OSError(errno.ESTALE, "the file was moved or replaced while it was open")
        self._raw.execute(self._begin_sql)

    def commit(self) -> None:
        self._raw.execute("COMMIT")

    def rollback(self) -> None:
        if self._raw.in_transaction:
            self._raw.execute("ROLLBACK")

    def close(self) -> None:
        self._raw.close()


class SQLiteBackend:
    """A database file in WAL mode."""

    name: Literal["sqlite"] = "sqlite"

    def __init__(self, path: Path, *, synchronous: Synchronous = "normal", exclusive: bool = True) -> None:
        self._path = path
        self._synchronous = synchronous
        self._exclusive = exclusive
        self._lock = ExitStack()
        self._is_locked = False
        self._was_prepared = False

    def prepare(self) -> None:
        """Create the folder and the file, lock the folder if `exclusive`, create or migrate the schema.

        The file is created once: one that disappears later may be on a disk that comes back. The lock stays
        when the rest fails, so that no other hub takes the folder while this one retries.
        """
        try:
            make_database_folder(self._path)
            if self._exclusive and not self._is_locked:
                self._lock.enter_context(lock_folder(self._path.parent))
                self._is_locked = True
            self._upgrade_schema()
            self._was_prepared = True
            return
        except Exception as error:  # noqa: BLE001 - raised below
            failure = self.translate_error(error)
        raise failure

    def check(self) -> None:
        """Write the page of the file header, unchanged.

        On a full disk, checkpoint the journal first and try again: it may be what fills the disk.
        """
        connection = self.connect(writing=True)
        try:
            try:
                write_unchanged(connection)
            except sqlite3.OperationalError as error:
                if error_kind(error) != "SQLITE_FULL":
                    raise
                connection.rollback()
                connection.fetch_all("PRAGMA wal_checkpoint(TRUNCATE)", {})
                write_unchanged(connection)
        except (sqlite3.Error, OSError) as error:
            failure = self.translate_error(error)
        else:
            return
        finally:
            with suppress(sqlite3.Error):
                connection.close()
        raise failure

    def connect(self, *, writing: bool) -> SQLiteConnection:
        try:
            raw = self._open()
            raw.execute(f"PRAGMA synchronous = {self._synchronous}")
            raw.execute(f"PRAGMA journal_size_limit = {MAX_JOURNAL_BYTES}")
            raw.execute("PRAGMA foreign_keys = ON")
            raw.execute(f"PRAGMA query_only = {'OFF' if writing else 'ON'}")
            return SQLiteConnection(raw, self._path, begin="BEGIN IMMEDIATE" if writing else "BEGIN")
        except (sqlite3.Error, OSError) as error:
            raise self.translate_error(error) from error

    def insert(self, table: Table) -> Insert:
        return Insert(table)

    def compile(self, statement: ClauseElement) -> str:
        return str(statement.compile(dialect=DIALECT))

    def compile_positional(self, statement: ClauseElement) -> str:
        return str(statement.compile(dialect=POSITIONAL_DIALECT))

    def translate_error(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error | OSError):
            return error
        try:
            raise self._to_dragoman_error(error) from error
        except DragomanError as meaning:
            return meaning

    def outage_scope(self, error: Exception) -> OutageScope | None:
        cause = error.__cause__ if isinstance(error, DragomanError) else error
        match cause:
            case OSError():
                return "all"
            case sqlite3.Error() if error_kind(cause) in WRITE_ERRORS:
                return "writing"
            case sqlite3.Error() if error_kind(cause) in OUTAGE_ERRORS:
                return "all"
            case _:
                return None

    def try_lock(self, name: str) -> AbstractContextManager[object]:
        """Lock nothing: one hub has the file."""
        return nullcontext()

    def release(self) -> None:
        self._lock.close()
        self._is_locked = False

    def _to_dragoman_error(self, error: sqlite3.Error | OSError) -> DragomanError:
        """Translate a driver's error. SQLite's messages name tables and columns, never values."""
        match error:
            case sqlite3.IntegrityError(sqlite_errorname="SQLITE_CONSTRAINT_FOREIGNKEY"):
                return NotFound("the session or message that this belongs to was deleted")
            case sqlite3.IntegrityError():
                return Conflict(f"the database refused a row: {error}")
            case sqlite3.Error():
                return self._store_error(str(error), kind=error_kind(error))
            case MissingDatabaseFile():
                return self._store_error(error.reason, kind=MISSING)
            case EmptyDatabaseFile():
                return self._store_error(error.reason, kind=EMPTY)
            case OSError():
                kind = "SQLITE_FULL" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "SQLITE_CANTOPEN"
                return self._store_error(error.strerror or type(error).__name__, kind=kind)

    def _store_error(self, why: str, *, kind: str) -> StoreError:
        hint = HINTS.get(kind) or HINTS.get(why.partition(":")[0])
        refusal = StoreError(f"cannot use the database {str(self._path)!r}: {why}", hint=hint)
        refusal.transient = kind in ("SQLITE_BUSY", "SQLITE_FULL")
        return refusal

    def _create_file(self) -> None:
        """Create the file with its tables if there never was one. It is never empty: that means data loss.

        Raises EmptyDatabaseFile and MissingDatabaseFile. SQLite would take an empty file for a new database,
        and delete its journal.
        """
        folder = self._path.with_name(f"{self._path.name}.new")
        if not self._was_prepared and (not self._path.exists() or folder.exists()):
            with creating(folder):
                if not self._path.exists():
                    write_empty_database(folder / self._path.name)
                    publish_file(folder / self._path.name, self._path)
        file_identity(self._path)

    def _open(self) -> sqlite3.Connection:
        """Open the file; sqlite3 would create one that is empty if there is none."""
        file_identity(self._path)
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
        )

    def _upgrade_schema(self) -> None:
        self._create_file()
        with closing(self._open()) as raw, ExitStack() as locks:
            enable_wal(raw)
            if not self._exclusive and needs_migration(raw):
                locks.enter_context(lock_folder(self._path.parent))  # never migrate while a hub is running
            upgrade_schema(raw, DIALECT)
            for suffix in ("", "-wal", "-shm"):  # SQLite gives later ones the permissions of the database
                make_private(self._path.with_name(self._path.name + suffix))


@contextmanager
def creating(folder: Path) -> Iterator[None]:
    """Create a folder in which one process at a time works; the others wait. It is removed at the end.

    One that a killed process left is emptied. Its lock is a file of its own: if the new database were locked,
    closing that would end the locks that other threads have on it through SQLite.
    """
    while (lock := try_creating(folder)) is None:
        pass
    try:
        for path in folder.iterdir():
            if path.name != LOCK_FILE:
                path.unlink()
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def try_creating(folder: Path) -> int | None:
    """Return the lock of a folder, which is created; None if who had it has removed the folder meanwhile."""
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    file: int | None = None
    with suppress(FileNotFoundError):
        file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(file), (folder / LOCK_FILE).stat()):
            return file
    if file is not None:
        os.close(file)
    return None


def write_empty_database(path: Path) -> None:
    """Write a new file with all tables and no rows and sync it: a copy of the first one of this process.

    Nobody else has the file yet, so a journal would protect nothing, and doubles the time.
    """
    if _empty_database:
        path.write_bytes(zlib.decompress(_empty_database[0]))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("PRAGMA journal_mode = OFF")
            raw.execute("PRAGMA synchronous = OFF")
            upgrade_schema(raw, DIALECT)
        _empty_database.append(zlib.compress(path.read_bytes(), level=1))
    with path.open("rb+") as file:
        os.fsync(file.fileno())


_empty_database: list[bytes] = []


def publish_file(draft: Path, path: Path) -> None:
    """Give a finished file its name, unless another process was faster."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            draft.rename(path)


def enable_wal(raw: sqlite3.Connection) -> None:
    """Enable write-ahead logging. SQLite's busy timeout does not apply when another process does the same."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error_kind(error) != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


def write_unchanged(connection: SQLiteConnection) -> None:
    """Write to the database without changing it."""
    connection.begin()
    version = connection.fetch_one("PRAGMA user_version", {})
    connection.execute(f"PRAGMA user_version = {int(version[0]) if version else 0}", {})
    connection.commit()


def file_identity(path: Path) -> tuple[int, int]:
    """Return the device and inode of the file at `path`. Raises EmptyDatabaseFile, MissingDatabaseFile."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise MissingDatabaseFile from None
    if status.st_size == 0:
        raise EmptyDatabaseFile
    return status.st_dev, status.st_ino


def error_kind(error: sqlite3.Error) -> str:
    """Return the primary error name: SQLITE_READONLY for SQLITE_READONLY_DIRECTORY."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
