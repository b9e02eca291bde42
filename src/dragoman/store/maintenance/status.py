"""The state of a database: versions, sizes, rows, and what retention would delete."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Select, Table, bindparam, func, literal_column, select, text

from dragoman.store.connection import Backend, DatabaseConnection
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.migration import GET_REVISION
from dragoman.store.maintenance.transactions import snapshot
from dragoman.store.retention import RetentionPeriods, retention_rules
from dragoman.store.schema import HEAD
from dragoman.store.sqlite import LOCK_FILE
from dragoman.store.store import postgres_backend
from dragoman.store.tables.core import metadata

SERVER_VERSION = {
    "sqlite": "SELECT 'SQLite ' || sqlite_version()",
    "postgresql": "SELECT 'PostgreSQL ' || current_setting('server_version')",
}
TABLES_SIZE = text(
    "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
    " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
)
TIMES = ("started_at", "created_at", "updated_at", "approved_at")


class TableStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One table. `oldest` is in unix seconds; `kept_for` in seconds, None for ever or without a rule.

    `expired` counts what retention would delete.
    """

    name: str
    rows: int
    oldest: float | None = None
    kept_for: float | None = None
    expired: int = 0


class DatabaseStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A database. `size` is in bytes; `used_by` names the hub that uses it, None without one.

    `tables` is empty unless its revision is the program's.
    """

    database: str
    kind: str
    server: str
    revision: str | None
    program_revision: str
    size: int | None
    used_by: str | None
    tables: list[TableStatus]


def read_status(
    location: DatabaseLocation, periods: RetentionPeriods, *, clock: Callable[[], float] = time.time
) -> DatabaseStatus:
    """Read the state of a database, beside a hub or without one. NotFound, StoreError."""
    location.require()
    backend = location.backend(exclusive=False)
    with snapshot(backend) as connection:
        found = connection.fetch_one(backend.compile(GET_REVISION), {})
        revision = str(found[0]) if found else None
        server = connection.fetch_one(SERVER_VERSION[backend.name], {})
        is_current = revision == HEAD
        return DatabaseStatus(
            database=location.name,
            kind=backend.name,
            server=str(server[0]) if server else "",
            revision=revision,
            program_revision=HEAD,
            size=read_size(location, backend, connection=connection),
            used_by=find_hub(location),
            tables=read_tables(backend, connection, periods=periods, now=clock()) if is_current else [],
        )


def read_tables(
    backend: Backend, connection: DatabaseConnection, *, periods: RetentionPeriods, now: float
) -> list[TableStatus]:
    """Return the state of each table."""
    expired = count_expired(backend, connection, periods=periods, now=now)
    tables: list[TableStatus] = []
    for table in metadata.sorted_tables:
        row = connection.fetch_one(backend.compile(summary(table)), {})
        rows, oldest = row or (0, None)
        tables.append(
            TableStatus(str(table.name), rows, oldest, periods.get(table.name), expired.get(table.name, 0))
        )
    return tables


def summary(table: Table) -> Select[Any]:
    """Return the query for a table's rows and the time of the oldest one."""
    name = next((name for name in TIMES if name in table.c), None)
    oldest = literal_column("NULL") if name is None else func.min(table.c[name])
    return select(func.count(), oldest).select_from(table)


def count_expired(
    backend: Backend, connection: DatabaseConnection, *, periods: RetentionPeriods, now: float
) -> Mapping[str, int]:
    """Return how many rows of each table retention would delete."""
    counts = {}
    for name, rule in retention_rules().items():
        if (period := periods.get(name)) is not None:
            query = select(func.count()).select_from(rule.table)
            query = query.where(rule.time < bindparam("cutoff"), rule.is_expired)
            row = connection.fetch_one(backend.compile(query), {"cutoff": now - period, "now": now})
            counts[name] = row[0] if row else 0
    return counts


def read_size(location: DatabaseLocation, backend: Backend, *, connection: DatabaseConnection) -> int | None:
    """Return the bytes of the file and its journal, or of the tables and indexes in the schema."""
    if location.path is None:
        row = connection.fetch_one(backend.compile(TABLES_SIZE), {})
        return None if row is None or row[0] is None else int(row[0])
    return file_size(location.path)


def file_size(path: Path) -> int:
    """Return the bytes of a database file and its journal."""
    total = 0
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            total += path.with_name(path.name + suffix).stat().st_size
    return total


def find_hub(location: DatabaseLocation) -> str | None:
    """Return the hub that uses the database, in words; None without one."""
    if location.path is None:
        return postgres_backend(location.url or "").find_users()
    try:
        file = os.open(location.path.parent / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 20, 0).decode("ascii", "replace").strip()
        return f"process {holder or 'unknown'}"
    finally:
        os.close(file)
    return None
