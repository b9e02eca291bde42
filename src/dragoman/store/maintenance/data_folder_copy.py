"""Copies a database with its files: `DatabaseCopy` between two locations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import text

from dragoman.errors import BadRequest
from dragoman.store.maintenance.copy import CopyReport, DatabaseCopy
from dragoman.store.maintenance.folder_files import ReplacedFiles, read_files, require_key, write_files
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress
from dragoman.store.maintenance.transactions import snapshot

GET_PLACE = text(
    "SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), oid,"
    " current_schema()::regnamespace::oid)"
    " FROM pg_database WHERE datname = current_database() AND current_schema() IS NOT NULL"
)


class TransferReport(NamedTuple):
    """What was copied, and where the files are that the target's data folder had before."""

    copy: CopyReport
    replaced: ReplacedFiles


def transfer(
    source: DatabaseLocation, target: DatabaseLocation, *, progress: Progress, replace: bool = False
) -> TransferReport:
    """Copy all rows; between two data folders also the key and the spools.

    The files are read before the rows, and written before a hub may start on the target: what moves from a
    spool into the source in between is in both, and is stored once when it is replayed.

    Raises BadRequest when both are one; NotFound, Conflict, StoreError.
    """
    source.require()
    if is_same_database(source, target):
        raise BadRequest("the source and the target are the same database")
    backend = target.backend(exclusive=True)
    try:
        origin = source.backend(exclusive=False)
        copy = DatabaseCopy(origin, backend, source_name=source.identity, progress=progress, replace=replace)
        replaced: list[ReplacedFiles] = []
        publish = prepare_files(source, target)
        report = copy.run(before_done=lambda: replaced.append(publish()))
        return TransferReport(report, *replaced)
    finally:
        backend.release()


def is_same_database(source: DatabaseLocation, target: DatabaseLocation) -> bool:
    """Return whether two addresses name one database: with `--replace` it would lose all its rows."""
    if source.identity == target.identity:
        return True
    if source.path is not None and target.path is not None:
        return target.path.exists() and source.path.samefile(target.path)
    if source.path is not None or target.path is not None:
        return False
    places = [read_place(location) for location in (source, target)]
    return None not in places and places[0] == places[1]


def read_place(location: DatabaseLocation) -> str | None:
    """Return what identifies a schema of Postgres at any address; None when the schema does not exist."""
    backend = location.backend(exclusive=False)
    with snapshot(backend) as connection:
        row = connection.fetch_one(backend.compile(GET_PLACE), {})
        return str(row[0]) if row and row[0] is not None else None


def prepare_files(source: DatabaseLocation, target: DatabaseLocation) -> Callable[[], ReplacedFiles]:
    """Read the files of a data folder; return what writes them to another one.

    Raises Conflict when that has another key.
    """
    if (
        source.path is None
        or target.path is None
        or source.path.parent.resolve() == target.path.parent.resolve()
    ):
        return ReplacedFiles
    folder = target.path.parent
    bodies = read_files(source.path.parent, with_key=True)
    require_key(folder, bodies, source=source.path.parent)
    return lambda: write_files(folder, bodies)
