"""Gives the space of deleted rows back to the system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import StoreError
from dragoman.store.connection import Backend
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.status import file_size, read_size
from dragoman.store.maintenance.transactions import raising_store_errors, snapshot
from dragoman.store.tables.core import metadata

TMPDIR = "SQLITE_TMPDIR"


class CompactReport(NamedTuple):
    """The size in bytes before and after."""

    before: int
    after: int


def compact(location: DatabaseLocation, *, full: bool = False) -> CompactReport:
    """Compact a database. Raises NotFound; StoreError when a hub uses it and would have to wait.

    SQLite writes the whole file again, during which nobody else may write. Postgres vacuums, which disturbs
    nobody and lets tables reuse their space; `full` writes all tables again.
    """
    location.require()
    backend = location.backend(exclusive=location.path is not None or full)
    try:
        backend.prepare()
        with raising_store_errors(backend):
            if location.path is not None:
                return compact_file(location.path, backend)
            return vacuum(location, backend, full=full)
    finally:
        backend.release()


def compact_file(path: Path, backend: Backend) -> CompactReport:
    """Rewrite a SQLite database file."""
    before = file_size(path)
    free = shutil.disk_usage(path.parent).free
    if free < 2 * before:
        raise StoreError(
            f"compacting {before} bytes needs twice as much free space, and the disk has {free}",
            hint="free some space, or copy the database to another disk with `dragoman database backup`",
        )
    with temporary_files_in(path.parent), closing(backend.connect(writing=True)) as connection:
        connection.execute("VACUUM", {})
        connection.fetch_all("PRAGMA wal_checkpoint(TRUNCATE)", {})
    return CompactReport(before, file_size(path))


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Make SQLite write the new file into a folder whose free space was checked: /tmp may be in memory."""
    former = os.environ.get(TMPDIR)
    os.environ.setdefault(TMPDIR, str(folder))
    try:
        yield
    finally:
        if former is None:
            del os.environ[TMPDIR]


def vacuum(location: DatabaseLocation, backend: Backend, *, full: bool) -> CompactReport:
    """Vacuum the tables of Postgres."""
    before = table_size(location, backend)
    options = "FULL, ANALYZE" if full else "ANALYZE"
    with closing(backend.connect(writing=True)) as connection:
        for table in metadata.sorted_tables:
            connection.execute(f"VACUUM ({options}) {table.name}", {})
    return CompactReport(before, table_size(location, backend))


def table_size(location: DatabaseLocation, backend: Backend) -> int:
    with snapshot(backend) as connection:
        return read_size(location, backend, connection=connection) or 0
