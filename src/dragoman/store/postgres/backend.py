"""The Postgres backend: connections, SQL, error translation, and the lock of the hub that uses a database."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import psycopg
from psycopg import errors
from psycopg.types.numeric import IntLoader
from sqlalchemy import ClauseElement, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.sqlite import Insert

from dragoman.errors import Conflict, DragomanError, NotFound, StoreError
from dragoman.store.connection import CommitUncertain, OutageScope
from dragoman.store.postgres.connection import (
    BEGIN_READING,
    BEGIN_WRITING,
    PostgresConnection,
    RawConnection,
    is_closed,
    run_command,
)
from dragoman.store.postgres.schema import (
    DIALECT,
    POSITIONAL_DIALECT,
    current_revision,
    needs_migration,
    upgrade_schema,
)
from dragoman.store.postgres.url import describe_url, parse_url
from dragoman.store.private_files import make_private_folder
from dragoman.store.schema import HEAD, is_known_revision, newer_schema
from dragoman.store.sqlite import lock_folder

HUB_LOCK = 0x64726167  # the class of advisory locks that hubs hold; the key is the schema
LOCK_SECONDS = 2.0  # for which the lock of a hub that was killed a moment ago is waited for
LOCK_INTERVAL = 0.05
TAKE_LOCK = "SELECT pg_try_advisory_lock(%s, hashtext(current_schema()))"
FIND_HOLDER = """
SELECT activity.pid, coalesce(host(activity.client_addr), 'this machine'), activity.application_name
FROM pg_locks locks JOIN pg_stat_activity activity USING (pid)
WHERE locks.locktype = 'advisory' AND locks.classid = %s AND locks.granted
    AND locks.objid = (hashtext(current_schema())::bigint & 4294967295)::oid
    AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
INSPECT = """
SELECT extract(epoch FROM clock_timestamp())::float8, current_setting('server_version'), current_schema(),
    current_setting('max_connections'), (SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL)
"""
# A lock is waited for as long as SQLite waits for its one; a frozen process does not keep its locks for ever.
# Statements are short, and compiling them to machine code takes longer than running them.
SETTINGS = b"SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'; SET jit = off"
PREPARE_THRESHOLD = 2  # runs of a statement until the server prepares it
MAX_PREPARED = 400

CONNECTION_STATES = ("08", "57P", "58")  # connection exceptions, shutdown and start, system errors
TEMPORARY_REFUSALS = ("starting up", "shutting down", "recovery", "too many", "reserved", "terminating")
HINTS = {
    "42501": "let the user own the schema, or grant it CREATE and USAGE on it",
    "42P01": "a hub makes its tables when it starts; check that the URL names the right database and schema",
    "3F000": "create the schema that the URL's search_path names",
    "53100": "free some space on the disk of the database server",
    "53300": "raise max_connections of the server, or close other connections to it",
    "55P03": "another connection holds a lock on the same rows; try again",
    "25006": "the server accepts no writes: is it a standby? name the primary, e.g. "
    "with target_session_attrs=read-write",
}
CONNECT_HINT = "check that the server runs and that the URL names its host, port, database and user"


class DatabaseReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a database is: its version, the revision of its tables (None without any), the connections to it.

    `clock_skew` is by how many seconds the server's clock is ahead of this machine's; `used_by` is the hub
    that has it.
    """

    url: str
    version: str
    schema: str
    revision: str | None
    program_revision: str = HEAD
    clock_skew: float
    max_connections: int
    connections: int
    used_by: str | None


class PostgresBackend:
    """A schema of a Postgres database."""

    name: Literal["postgresql"] = "postgresql"

    def __init__(self, url: str, *, folder: Path | None = None, exclusive: bool = True) -> None:
        """`folder` is the data folder, locked too if `exclusive`. Raises ConfigError for an invalid URL."""
        self._params = parse_url(url)
        self._shown_url = describe_url(self._params)
        self._folder = folder
        self._exclusive = exclusive
        self._folder_lock = ExitStack()
        self._is_folder_locked = False
        self._lock_connection: RawConnection | None = None
        self._lock_guard = threading.Lock()
        self._was_prepared = False

    def __repr__(self) -> str:
        return f"PostgresBackend({self._shown_url!r})"

    def prepare(self) -> None:
        """Lock the folder and the schema if `exclusive`, create or migrate the tables.

        A schema that a newer version has migrated in the meantime, in a rolling upgrade, is left as it is.
        """
        try:
            self._take_folder()
            self._check_lock()
            self._upgrade_schema()
        except Exception as error:  # noqa: BLE001 - raised below
            failure = self.translate_error(error)
        else:
            return
        raise failure

    def check(self) -> None:
        """Write a row of one value, unchanged."""
        try:
            with closing(self._open()) as raw:
                raw.execute("UPDATE alembic_version SET version_num = version_num")
        except Exception as error:  # noqa: BLE001 - raised below
            failure = self.translate_error(error)
        else:
            return
        raise failure

    def inspect(self) -> DatabaseReport:
        """Look at the database without changing it. Raises StoreError when it cannot be used."""
        try:
            with closing(self._open()) as raw:
                if fetch_value(raw, "SELECT current_schema()") is None:
                    raise self._missing_schema()
                revision = current_revision(raw, self._shown_url)
                if revision is not None and not is_known_revision(revision):
                    raise newer_schema(self._shown_url, revision)
                before = time.time()
                row = raw.execute(INSPECT).fetchone()
                skew = float(row[0]) - (before + time.time()) / 2 if row else 0.0
                values = [str(value) for value in row[1:]] if row else ["", "", "0", "0"]
                hub = find_hub(raw)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = self.translate_error(error)
        else:
            return DatabaseReport(
                url=self._shown_url,
                version=values[0],
                schema=values[1],
                revision=revision,
                clock_skew=skew,
                max_connections=int(values[2]),
                connections=int(values[3]),
                used_by=hub,
            )
        raise failure

    def find_hub(self) -> str | None:
        """Return the hub that uses the database, in words; None without one. Raises StoreError."""
        try:
            with closing(self._open()) as raw:
                return find_hub(raw)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = self.translate_error(error)
        raise failure

    def connect(self, *, writing: bool) -> PostgresConnection:
        try:
            if not writing:
                return PostgresConnection(self._open, begin=BEGIN_READING)
            check_lock = self._check_lock if self._exclusive else None
            return PostgresConnection(self._open, begin=BEGIN_WRITING, check_lock=check_lock)
        except psycopg.Error as error:
            raise self.translate_error(error) from error

    def insert(self, table: Table) -> Insert:
        return cast(Insert, postgresql.insert(table))  # the methods that are used are the same

    def compile(self, statement: ClauseElement) -> str:
        return str(statement.compile(dialect=DIALECT))

    def compile_positional(self, statement: ClauseElement) -> str:
        return str(statement.compile(dialect=POSITIONAL_DIALECT))

    def translate_error(self, error: Exception) -> Exception:
        if not isinstance(error, psycopg.Error | CommitUncertain | OSError):
            return error
        try:
            raise self._to_dragoman_error(error) from error
        except DragomanError as meaning:
            return meaning

    def outage_scope(self, error: Exception) -> OutageScope | None:
        cause = error.__cause__ if isinstance(error, DragomanError) else error
        if isinstance(cause, CommitUncertain | OSError):
            return "all"
        if not isinstance(cause, psycopg.Error):
            return None
        state = cause.sqlstate or ""
        if state.startswith(("53100", "25006")):
            return "writing"
        if state.startswith(("53300", *CONNECTION_STATES)):
            return "all"
        return (
            "all" if isinstance(cause, psycopg.OperationalError) and not state and is_outage(cause) else None
        )

    def release(self) -> None:
        self._unlock()
        self._folder_lock.close()
        self._is_folder_locked = False

    def _open(self) -> RawConnection:
        """Open a connection in autocommit mode."""
        raw: RawConnection = psycopg.connect(**self._params, autocommit=True)
        raw.prepare_threshold = PREPARE_THRESHOLD
        raw.prepared_max = MAX_PREPARED
        raw.adapters.register_loader("numeric", IntLoader)  # sums of whole numbers are the only ones
        run_command(raw, SETTINGS)
        return raw

    def _upgrade_schema(self) -> None:
        with ExitStack() as stack:
            raw = self._lock_connection or stack.enter_context(closing(self._open()))
            if not self._exclusive and needs_migration(raw, self._shown_url):
                stack.callback(self._unlock)
                self._take_lock()  # never migrate while a hub is running
            upgrade_schema(raw, self._shown_url, accept_newer=self._was_prepared)
        self._was_prepared = True

    def _take_folder(self) -> None:
        if self._folder is None:
            return
        make_private_folder(self._folder)
        if self._exclusive and not self._is_folder_locked:
            self._folder_lock.enter_context(lock_folder(self._folder))
            self._is_folder_locked = True

    def _check_lock(self) -> None:
        """Take the lock again if its connection was lost. Raises StoreError when another hub has it."""
        if self._exclusive and (self._lock_connection is None or is_closed(self._lock_connection)):
            self._take_lock()

    def _take_lock(self) -> None:
        with self._lock_guard:
            self._unlock()
            raw = self._open()
            try:
                self._wait_for_lock(raw)
            except BaseException:
                raw.close()
                raise
            self._lock_connection = raw

    def _wait_for_lock(self, raw: RawConnection) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while not (is_taken := fetch_value(raw, TAKE_LOCK, HUB_LOCK)):
            if is_taken is None:
                raise self._missing_schema()
            if time.monotonic() > deadline:
                hub = find_hub(raw) or "unknown"
                raise StoreError(
                    f"the database {self._shown_url!r} is in use by another hub: {hub}",
                    hint="several hubs cannot share one database yet: stop that one first, "
                    "or give this one a database of its own",
                )
            time.sleep(LOCK_INTERVAL)

    def _missing_schema(self) -> StoreError:
        return self._store_error("its search_path names no schema", state="3F000")

    def _unlock(self) -> None:
        raw, self._lock_connection = self._lock_connection, None
        if raw is not None:
            with suppress(psycopg.Error):
                raw.close()

    def _to_dragoman_error(self, error: psycopg.Error | CommitUncertain | OSError) -> DragomanError:
        """Translate a driver's error. Its primary message names tables and columns; details quote values."""
        if isinstance(error, errors.ForeignKeyViolation):
            return NotFound("the session or message that this belongs to was deleted")
        if isinstance(error, errors.IntegrityError):
            return Conflict(f"the database refused a row: {error.diag.message_primary}")
        if isinstance(error, CommitUncertain):
            why = "the connection was lost during a commit, and whether it took place is not known"
            return self._store_error(why, state="08")
        if isinstance(error, OSError):
            return self._store_error(error.strerror or type(error).__name__, state="58")
        if isinstance(error, errors.UndefinedTable):
            why = f"it does not hold the tables of a hub: {primary_message(error)}"
            return self._store_error(why, state="42P01")
        return self._store_error(primary_message(error), state=error.sqlstate or "")

    def _store_error(self, why: str, *, state: str) -> StoreError:
        hint = HINTS.get(state) or (
            CONNECT_HINT if not state or state.startswith(CONNECTION_STATES) else None
        )
        refusal = StoreError(f"cannot use the database {self._shown_url!r}: {why}", hint=hint)
        refusal.transient = state[:2] in ("40", "53", "55", "08") or state.startswith("57P")
        return refusal


def fetch_value(raw: RawConnection, sql: str, *values: Any) -> Any:
    """Return the first value of the first row."""
    row = raw.execute(sql, values).fetchone()
    return row[0] if row else None


def find_hub(raw: RawConnection) -> str | None:
    """Return the hub that has the schema, in words; None without one."""
    holder = raw.execute(FIND_HOLDER, (HUB_LOCK,)).fetchone()
    return "{2!r} at {1} (server process {0})".format(*holder) if holder else None


def primary_message(error: psycopg.Error) -> str:
    """Return what a driver's error says on one line, without its details."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(text.split())


def is_outage(error: psycopg.OperationalError) -> bool:
    """Whether an error without a state is one of the network or of a server that starts or stops.

    A server that answers "FATAL" otherwise has a wrong user, password or database name in front of it, which
    waiting does not cure.
    """
    text = str(error)
    return "FATAL" not in text or any(words in text for words in TEMPORARY_REFUSALS)
