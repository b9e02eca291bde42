"""Creates the tables of an empty database, or migrates them to the revision that this code expects."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Dialect, StaticPool, create_engine
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from dragoman.errors import StoreError
from dragoman.store.tables.core import metadata

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0037"
COPYING = "copying "
"""Precedes the revision of a database into which a copy is not finished, so that no hub uses it."""
MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "alembic_version"
CREATE_VERSION_TABLE = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""


class UnfinishedCopy(StoreError):
    """A database into which a copy is not finished."""

    def __init__(self, name: str, revision: str) -> None:
        super().__init__(
            f"the copy into {name!r} is not finished",
            hint="run the same `dragoman database copy` or `restore` again: it continues",
        )
        self.revision = revision


def upgrade_schema(connection: sqlite3.Connection, dialect: Dialect) -> None:
    """Create or migrate the schema to HEAD, in one transaction. Raises StoreError."""
    if current_revision(connection) == HEAD:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = current_revision(connection)  # another process may have upgraded it in the meantime
        if found is None:
            create_tables(connection, dialect)
        elif found != HEAD:
            migrate(connection)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def current_revision(connection: sqlite3.Connection) -> str | None:
    """Return the database's revision, None when it is empty. Raises StoreError for a foreign database."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names:
        return None
    row = (
        connection.execute("SELECT version_num FROM alembic_version").fetchone()
        if VERSION_TABLE in names
        else None
    )
    if row is None:
        raise StoreError(
            f"{database_path(connection)!r} holds another program's tables",
            hint="choose a folder with --data",
        )
    return str(row[0])


def needs_migration(connection: sqlite3.Connection) -> bool:
    """Return whether the database has tables of another revision than HEAD."""
    return current_revision(connection) not in (None, HEAD)


def database_path(connection: sqlite3.Connection) -> str:
    """Return the path of the database file."""
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


def create_tables(connection: sqlite3.Connection, dialect: Dialect) -> None:
    """Create all tables in an empty database, as the migrations would, without Alembic's 0.2 s of imports."""
    for sql in definitions(dialect):
        connection.execute(sql)
    connection.execute(CREATE_VERSION_TABLE)
    connection.execute("INSERT INTO alembic_version VALUES (?)", (HEAD,))


@cache
def definitions(dialect: Dialect) -> Sequence[str]:
    """CREATE TABLE and CREATE INDEX of all tables, compiled once for a dialect."""
    elements: list[ExecutableDDLElement] = []
    for table in metadata.sorted_tables:
        elements.append(CreateTable(table))
        elements += map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))
    return [str(element.compile(dialect=dialect)) for element in elements]


def migrate(raw: sqlite3.Connection) -> None:
    """Run the migrations between the database's revision and HEAD, in one transaction.

    Raises StoreError for a newer one.
    """
    found = current_revision(raw)
    if found is not None and not is_known_revision(found):
        raise newer_schema(database_path(raw), found)
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    with engine.connect() as connection:
        if not raw.in_transaction:  # SQLAlchemy rolls back what it finds, and begins nothing itself
            raw.execute("BEGIN IMMEDIATE")
        run_migrations(connection)
        connection.commit()


def run_migrations(connection: Connection) -> None:
    """Run the migrations up to HEAD in the connection's transaction."""
    from alembic import command  # late: 0.2 s that only a migration should cost

    config = migration_config()
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def is_known_revision(revision: str) -> bool:
    """Return whether this version can migrate from a revision."""
    from alembic.script import ScriptDirectory  # late: as above

    scripts = ScriptDirectory.from_config(migration_config())
    return revision in {script.revision for script in scripts.walk_revisions()}


def migration_config() -> Config:
    """Return Alembic's configuration."""
    from alembic.config import Config  # late: as above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def newer_schema(name: str, revision: str) -> StoreError:
    """Return the error of a database that a newer version has migrated, or whose copy is not finished."""
    if revision.startswith(COPYING):
        return UnfinishedCopy(name, revision)
    return StoreError(
        f"{name!r} is of revision {revision!r}, and this version knows up to {HEAD!r}",
        hint="a newer dragoman wrote it: upgrade this one, or restore an older copy",
    )
