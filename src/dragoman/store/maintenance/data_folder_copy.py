"""Copies a database with what belongs to it: `DatabaseCopy` between two locations."""

from __future__ import annotations

from dragoman.errors import BadRequest
from dragoman.store.maintenance.backup import copy_files, require_key
from dragoman.store.maintenance.copy import CopyReport, DatabaseCopy
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress


def transfer(
    source: DatabaseLocation, target: DatabaseLocation, *, progress: Progress, replace: bool = False
) -> CopyReport:
    """Copy all rows; between two data folders also the key and the spools.

    Raises BadRequest when both are one; NotFound, Conflict, StoreError.
    """
    source.require()
    if source.identity == target.identity:
        raise BadRequest("the source and the target are the same database")
    if source.path is not None and target.path is not None:
        require_key(source.path.parent, target.path.parent)
    backend = target.backend(exclusive=True)
    try:
        origin = source.backend(exclusive=False)
        copy = DatabaseCopy(origin, backend, source_name=source.identity, progress=progress, replace=replace)
        report = copy.run()
        if source.path is not None and target.path is not None:
            copy_files(source.path.parent, target.path.parent)
        return report
    finally:
        backend.release()
