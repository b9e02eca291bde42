"""The schema's revision: create the tables or migrate them, so that they are what this code expects."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sqlalchemy import Dialect, StaticPool, create_engine
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from dragoman.errors import StoreError
from dragoman.store.tables import metadata

HEAD = "0005"
MIGRATIONS = Path(__file__).parent / "migrations"
VERSIONS = "alembic_version"
CREATE_VERSIONS = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""


def bring_up(raw: sqlite3.Connection, dialect: Dialect) -> None:
    """Bring the schema to HEAD, in one transaction. StoreError when this code cannot."""
    if revision(raw) == HEAD:
        return
    raw.execute("BEGIN IMMEDIATE")
    try:
        found = revision(raw)  # another process may have been faster
        if found is None:
            create(raw, dialect)
        elif found != HEAD:
            migrate(raw)
        raw.commit()
    except BaseException:
        raw.rollback()
        raise


def revision(raw: sqlite3.Connection) -> str | None:
    """The revision that the database is at; None when it is empty. StoreError when it is not ours."""
    names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names:
        return None
    row = raw.execute("SELECT version_num FROM alembic_version").fetchone() if VERSIONS in names else None
    if row is None:
        raise StoreError(f"{place(raw)!r} holds another program's tables", hint="choose a folder with --data")
    return str(row[0])


def is_old(raw: sqlite3.Connection) -> bool:
    """Whether there is a database, and it is not at HEAD."""
    return revision(raw) not in (None, HEAD)


def place(raw: sqlite3.Connection) -> str:
    """The path of the database's file."""
    return str(raw.execute("PRAGMA database_list").fetchone()[2])


def create(raw: sqlite3.Connection, dialect: Dialect) -> None:
    """All tables in an empty database; as the revisions make them, without Alembic's 0.2 s of imports."""
    for sql in definitions(dialect):
        raw.execute(sql)
    raw.execute(CREATE_VERSIONS)
    raw.execute("INSERT INTO alembic_version VALUES (?)", (HEAD,))


@cache
def definitions(dialect: Dialect) -> Sequence[str]:
    """CREATE TABLE and CREATE INDEX of all tables, compiled once for a dialect."""
    elements: list[ExecutableDDLElement] = []
    for table in metadata.sorted_tables:
        elements.append(CreateTable(table))
        elements += map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))
    return [str(element.compile(dialect=dialect)) for element in elements]


def migrate(raw: sqlite3.Connection) -> None:
    """Run the revisions between the database's and HEAD."""
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
                f"{place(raw)!r} is of revision {revision(raw)!r}, and this version knows up to {HEAD!r}",
                hint="a newer dragoman has written it: upgrade this one, or restore an older copy",
            ) from error
        connection.commit()
