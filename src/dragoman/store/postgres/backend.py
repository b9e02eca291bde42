"""The Postgres backend: connections, SQL, error translation, and shared or exclusive use of a database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, cast
from weakref import WeakSet

import msgspec
import psycopg
from psycopg import errors
from psycopg.types.numeric import IntLoader
from sqlalchemy import ClauseElement, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.exc import OperationalError

from dragoman.errors import Conflict, DragomanError, NotFound, StoreError
from dragoman.store.connection import CommitUncertain, OutageScope
from dragoman.store.hosts.host_folder import HostFolder
from dragoman.store.hosts.signals import HostSignals
from dragoman.store.postgres import locks
from dragoman.store.postgres.connection import (
    BEGIN_READING,
    BEGIN_WRITING,
    PostgresConnection,
    RawConnection,
    closing_on_error,
    cut,
    is_closed,
    run_command,
)
from dragoman.store.postgres.connection_watch import WatchedConnection
from dragoman.store.postgres.membership import HostConnection, Membership, fence_absent_hosts
from dragoman.store.postgres.schema import (
    DIALECT,
    POSITIONAL_DIALECT,
    current_revision,
    needs_migration,
    upgrade_schema,
)
from dragoman.store.postgres.signal_connection import SignalConnection
from dragoman.store.postgres.url import parse_url, shown_url
from dragoman.store.private_files import make_private_folder
from dragoman.store.schema import HEAD, is_known_revision, newer_schema
from dragoman.store.sqlite import lock_folder

Connected = TypeVar("Connected", bound=RawConnection)
DatabaseUse: TypeAlias = Literal["host", "maintenance", "beside"]
"""A hub is one of the hosts of a database; maintenance uses it alone; a command works "beside" them."""

TRY_LOCK_NAME = "SELECT pg_try_advisory_lock(hashtext(%s), hashtext(current_schema()))"
INSPECT = """
SELECT extract(epoch FROM clock_timestamp())::float8, current_setting('server_version'), current_schema(),
    current_setting('max_connections'), (SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL)
"""
# `lock_timeout` is as long as SQLite's; a frozen process does not keep its locks for ever.
# Statements are short, and compiling them to machine code takes longer than running them.
SETTINGS = b"SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'; SET jit = off"
PREPARE_THRESHOLD = 2  # runs of a statement until the server prepares it
MAX_PREPARED = 400

CONNECTION_STATES = ("08", "57P", "58")  # connection exceptions, shutdown and start, system errors
TEMPORARY_REFUSALS = ("starting up", "shutting down", "recovery", "too many", "reserved", "terminating")
HINTS = {
    "42501": "let the user own the schema, or grant it CREATE and USAGE on it",
    "42P01": "check that the URL names the right database and schema; a hub that starts creates the tables, "
    "and so does `dragoman database migrate`",
    "3F000": "create the schema that the URL's search_path names",
    "53100": "free some space on the disk of the database server",
    "53300": "raise max_connections of the server, or close other connections to it",
    "55P03": "another connection holds a lock on the same rows; try again",
    "25006": "the server accepts no writes: is it a standby? name the primary, e.g. "
    "with target_session_attrs=read-write",
}
CA_HINT = (
    "name the certificate of the CA that has signed the server's with sslrootcert=FILE, or sslrootcert=system"
)
CLIENT_HINT = "the server refuses the certificate that sslcert names: its CA, its dates or its revocation"
# Texts of libpq's errors after which retrying does not help, and the hint for each.
REFUSALS: Mapping[str, str] = {
    "certificate verify failed": CA_HINT,
    "root certificate file": CA_HINT,
    "does not match host name": "name the host in the URL as the server's certificate does",
    "does not support SSL": "turn TLS on in the server (ssl = on); the URL's sslmode demands it",
    "no encryption": "the server takes only connections with TLS: say sslmode=verify-full in the URL",
    "could not load": "check the files that sslcert and sslkey name, and sslpassword for an encrypted key",
    "valid client certificate": "name the user's certificate with sslcert=FILE, and its key with sslkey=FILE",
    "certificate authentication failed": "the certificate that sslcert names is not one of the URL's user",
    "alert unknown ca": CLIENT_HINT,
    "alert certificate": CLIENT_HINT,
    "alert bad certificate": CLIENT_HINT,
    "certificate file": "check the file that sslcert names",
    "private key file": "check the file that sslkey names, and that nobody else can read it",
    "no password supplied": "put the password into the URL, or into the file that passfile names",
    "password authentication failed": "check the user and the password in the URL",
    "connection is bad: invalid": "check the parameters of the URL; they are those of libpq",
}
CONNECT_HINT = "check that the server runs and that the URL names its host, port, database and user"


class DatabaseReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A database: its version, the revision of its tables (None without any), the connections to it.

    `clock_skew` is by how many seconds the server's clock is ahead of this machine's; `used_by` are the hosts
    that share it, or the maintenance that uses it.
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

    def __init__(self, url: str, *, folder: Path | None = None, use: DatabaseUse = "beside") -> None:
        """`folder` is the data folder: a host takes a part of it, maintenance locks it.

        Raises ConfigError for an invalid URL.
        """
        self._params = parse_url(url)
        self._shown_url = shown_url(url)
        self._use = use
        self._folder = folder
        self._folder_lock = ExitStack()
        self._is_folder_locked = False
        self._lock_connection: RawConnection | None = None
        self._lock_guard = threading.Lock()
        self._was_prepared = False
        self._opened: WeakSet[RawConnection] = WeakSet()
        self._opened_guard = threading.Lock()
        self.membership: Membership | None = None
        if use == "host" and folder is not None:
            self.membership = Membership(self._open_as, database=self._shown_url, folder=HostFolder(folder))

    def __repr__(self) -> str:
        return f"PostgresBackend({self._shown_url!r})"

    def prepare(self) -> None:
        """Create or migrate the tables, and join the hosts of the database, or lock it for maintenance.

        A schema that a newer version has migrated in the meantime, in a rolling upgrade, is left as it is.
        """
        try:
            if self.membership is not None:
                self.membership.join(self._upgrade_schema)
            elif self._use == "maintenance":
                self._take_folder()
                self._check_lock()
                with closing(self._open()) as raw:
                    self._upgrade_schema(raw)
            else:
                self._prepare_beside()
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
        """Read the state of the database without changing it. Raises StoreError when it cannot be used."""
        try:
            with closing(self._open()) as raw:
                if locks.fetch_value(raw, "SELECT current_schema()") is None:
                    raise locks.missing_schema(self._shown_url)
                revision = current_revision(raw, self._shown_url)
                if revision is not None and not is_known_revision(revision):
                    raise newer_schema(self._shown_url, revision)
                before = time.time()
                row = raw.execute(INSPECT).fetchone()
                skew = float(row[0]) - (before + time.time()) / 2 if row else 0.0
                values = [str(value) for value in row[1:]] if row else ["", "", "0", "0"]
                users = locks.find_users(raw)
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
                used_by=users,
            )
        raise failure

    def find_users(self) -> str | None:
        """Return the hosts that share the database, as text; None without any. Raises StoreError."""
        try:
            with closing(self._open()) as raw:
                return locks.find_users(raw)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = self.translate_error(error)
        raise failure

    def connect(self, *, writing: bool) -> PostgresConnection:
        try:
            if self.membership is None:
                begin = BEGIN_WRITING if writing else BEGIN_READING
                check_lock = self._check_lock if writing and self._use == "maintenance" else None
                return PostgresConnection(self._open, begin=begin, check_lock=check_lock)
            connection = (
                HostConnection(self._open, self.membership)
                if writing
                else PostgresConnection(self._open, begin=BEGIN_READING)
            )
            self.membership.connections.add(connection)
        except psycopg.Error as error:
            raise self.translate_error(error) from error
        return connection

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

    def try_lock(self, name: str) -> AbstractContextManager[object] | None:
        """Lock a name in the schema, on a connection of its own; None when another process has it."""
        try:
            with closing_on_error(self._open()) as raw:
                if locks.fetch_value(raw, TRY_LOCK_NAME, name):
                    return unlocking(raw)
            raw.close()
        except psycopg.Error as error:
            raise self.translate_error(error) from error
        return None

    def connect_signals(self, signals: HostSignals) -> SignalConnection:
        """Return a connection, not opened yet, that exchanges signals with the other hosts."""
        return SignalConnection(signals, self.open_watched)

    def open_watched(self, *, autocommit: bool = True) -> WatchedConnection:
        """Open a separate connection, which `ConnectionWatch` cuts when it carries nothing."""
        name = None if self.membership is None else self.membership.pool_name
        raw = self._connect_as(name, WatchedConnection, autocommit=autocommit)
        if self.membership is not None:
            self.membership.connections.add(raw)
        with closing_on_error(raw):
            raw.find_server_process()
        return raw

    def release(self) -> None:
        if self.membership is not None:
            self.membership.leave()
        self._unlock()
        self._folder_lock.close()
        self._is_folder_locked = False

    def _open(self) -> RawConnection:
        """Open a connection in autocommit mode."""
        return self._open_as(None if self.membership is None else self.membership.pool_name)

    def cut_connections(self) -> StoreError:
        """Cut all connections, because the server does not answer; return the outage.

        Running statements end as if the server had closed the connections.
        """
        with self._opened_guard:
            opened = list(self._opened)
        for raw in opened:
            cut(raw)
        return self._store_error("the server does not answer", state="08")

    def _open_as(self, name: str | None) -> RawConnection:
        """Open a connection; `name` is how it is shown to others who use the server."""
        with closing_on_error(self._connect_as(name, psycopg.Connection, autocommit=True)) as raw:
            raw.prepare_threshold = PREPARE_THRESHOLD
            raw.prepared_max = MAX_PREPARED
            raw.adapters.register_loader("numeric", IntLoader)  # sums of whole numbers are the only ones
            run_command(raw, SETTINGS)
        return raw

    def _connect_as(self, name: str | None, kind: type[Connected], *, autocommit: bool) -> Connected:
        params = self._params if name is None else {**self._params, "application_name": name}
        raw = kind.connect(**params, autocommit=autocommit)
        with self._opened_guard:
            self._opened.add(raw)
        return raw

    def _upgrade_schema(self, raw: RawConnection) -> None:
        upgrade_schema(raw, self._shown_url, accept_newer=self._was_prepared)
        self._was_prepared = True

    def _prepare_beside(self) -> None:
        """Create the tables; migrate them only while no hub uses them."""
        with closing(self._open()) as raw, ExitStack() as stack:
            if self._folder is not None:
                make_private_folder(self._folder)
            if needs_migration(raw, self._shown_url):
                stack.callback(self._unlock)
                self._take_lock()
            self._upgrade_schema(raw)

    def _take_folder(self) -> None:
        if self._folder is None or self._is_folder_locked:
            return
        make_private_folder(self._folder)
        self._folder_lock.enter_context(lock_folder(self._folder))
        self._is_folder_locked = True

    def _check_lock(self) -> None:
        """Take the lock again if its connection was lost. Raises StoreError when others use the database."""
        if self._lock_connection is None or is_closed(self._lock_connection):
            self._take_lock()

    def _take_lock(self) -> None:
        with self._lock_guard:
            self._unlock()
            with closing_on_error(self._open()) as raw:
                locks.take_schema(raw, self._shown_url, is_shared=False, seconds=locks.LOCK_SECONDS)
                fence_absent_hosts(raw)
            self._lock_connection = raw

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
        hint = HINTS.get(state)
        if hint is None and (not state or state.startswith(CONNECTION_STATES)):
            hint = next((fix for words, fix in REFUSALS.items() if words in why), CONNECT_HINT)
        refusal = StoreError(f"cannot use the database {self._shown_url!r}: {why}", hint=hint)
        refusal.transient = state[:2] in ("40", "53", "55", "08") or state.startswith("57P")
        return refusal


@contextmanager
def unlocking(raw: RawConnection) -> Iterator[None]:
    """Give back the locks of a connection at the end, and close it.

    Closing alone releases them later, once the server has noticed, and until then others find them locked.
    """
    with closing(raw):
        yield
        with suppress(psycopg.Error):
            raw.execute("SELECT pg_advisory_unlock_all()")


def primary_message(error: psycopg.Error) -> str:
    """Return what a driver's error says on one line, without its details."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(text.split())


def is_outage(error: psycopg.OperationalError) -> bool:
    """Return whether an error without a state is one of the network, or of a server that starts or stops.

    Waiting does not help with others: TLS, parameters, and what a server answers with "FATAL", such as a
    wrong user, password or database name.
    """
    text = str(error)
    if any(words in text for words in REFUSALS):
        return False
    return "FATAL" not in text or any(words in text for words in TEMPORARY_REFUSALS)


def without_database_traceback(record: logging.LogRecord) -> bool:
    """Filter a library's log records: replace an outage's traceback, which names the database, by its type.

    The hub logs an outage itself, once.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, OperationalError | psycopg.OperationalError):
        record.msg, record.args = f"{record.getMessage()} {type(error).__name__}", None
        record.exc_info = record.exc_text = None
    return True
