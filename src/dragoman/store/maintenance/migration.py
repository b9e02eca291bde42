"""The revision of a database, and its migration by hand. A hub that starts migrates by itself."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import text

from dragoman.store.connection import Backend
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.transactions import snapshot
from dragoman.store.schema import HEAD
from dragoman.store.store import postgres_backend

GET_REVISION = text("SELECT version_num FROM alembic_version")


class MigrationReport(NamedTuple):
    """The revisions before and after; `before` is None where there were no tables."""

    before: str | None
    after: str


def read_revision(backend: Backend) -> str | None:
    """Return the revision of a database that has tables."""
    with snapshot(backend) as connection:
        row = connection.fetch_one(backend.compile(GET_REVISION), {})
        return str(row[0]) if row else None


def postgres_revision(url: str) -> str | None:
    """Return the revision of a database of Postgres; None when it has no tables."""
    return postgres_backend(url).inspect().revision


def migrate(location: DatabaseLocation) -> MigrationReport:
    """Migrate a database to this program's revision; create the tables in an empty one of Postgres.

    Raises NotFound; StoreError when a hub uses it, or for a newer revision.
    """
    location.require()
    backend = location.backend(exclusive=False)
    before = read_revision(backend) if location.url is None else postgres_revision(location.url)
    try:
        backend.prepare()
    finally:
        backend.release()
    return MigrationReport(before, HEAD)
