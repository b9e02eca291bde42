"""Creates the tables of an empty database, or migrates them to the revision that this code expects."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sqlalchemy import Dialect, StaticPool, create_engine
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from dragoman.errors import StoreError
from dragoman.store.tables import metadata

HEAD = "0007"
MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "alembic_version"
CREATE_VERSION_TABLE = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""


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
    """Whether the database has tables of another revision than HEAD."""
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
    """Run the migrations between the database's revision and HEAD."""
    from alembic import command  # late: 0.2 s that only a migration should cost
    from alembic.config import Config  # late: as above
    from alembic.util import CommandError  # late: as above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, HEAD)
        except CommandError as error:
            raise StoreError(
                f"{database_path(raw)!r} is of revision {current_revision(raw)!r}, "
                f"and this version knows up to {HEAD!r}",
                hint="a newer dragoman wrote it: upgrade this one, or restore an older copy",
            ) from error
        connection.commit()
