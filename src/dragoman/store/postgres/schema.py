"""Creates or migrates the tables in a schema of Postgres; processes that start together do it once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import StaticPool, create_engine
from sqlalchemy.dialects.postgresql.psycopg import dialect

from dragoman.errors import StoreError
from dragoman.store.postgres.connection import RawConnection
from dragoman.store.schema import (
    CREATE_VERSION_TABLE,
    HEAD,
    VERSION_TABLE,
    definitions,
    is_known_revision,
    newer_schema,
    run_migrations,
)
from dragoman.store.tables.core import metadata

DIALECT = dialect()  # type: ignore[no-untyped-call]
POSITIONAL_DIALECT = dialect(paramstyle="format")  # type: ignore[no-untyped-call]
LOCK = "SELECT pg_advisory_xact_lock(hashtext('dragoman schema'), hashtext(current_schema()))"
# Another process may take longer to create or migrate the tables than the timeout of row locks. One that is
# frozen meanwhile is disconnected by the server.
BE_PATIENT = "SELECT set_config('lock_timeout', '10min', true)"
BE_IMPATIENT = "SELECT set_config('lock_timeout', '10s', true)"
LIST_TABLES = """
SELECT class.relname FROM pg_class class JOIN pg_namespace schema ON schema.oid = class.relnamespace
WHERE schema.nspname = current_schema() AND class.relkind IN ('r', 'p')
"""


def upgrade_schema(raw: RawConnection, name: str, *, accept_newer: bool = False) -> None:
    """Create or migrate the tables to HEAD, in one transaction.

    Raises StoreError for another program's tables, and for a newer schema unless `accept_newer`.
    """
    if current_revision(raw, name) == HEAD:
        return
    with raw.transaction():
        raw.execute(BE_PATIENT)
        raw.execute(LOCK)  # another process may be migrating: then there is nothing left to do
        raw.execute(BE_IMPATIENT)
        found = current_revision(raw, name)
        if found is None:
            create_tables(raw)
    if found in (None, HEAD) or (accept_newer and not is_known_revision(found)):
        return
    migrate(raw, name)


def current_revision(raw: RawConnection, name: str) -> str | None:
    """Return the schema's revision, None when it is empty. Raises StoreError for another program's tables."""
    tables = {table for (table,) in raw.execute(LIST_TABLES).fetchall()}
    if not tables:
        return None
    row = (
        raw.execute("SELECT version_num FROM alembic_version").fetchone() if VERSION_TABLE in tables else None
    )
    if row is None:
        raise StoreError(
            f"{name!r} holds another program's tables",
            hint="name another database, or a schema of its own with ?options=-csearch_path%3DNAME",
        )
    return str(row[0])


def needs_migration(raw: RawConnection, name: str) -> bool:
    """Return whether there are tables of another revision than HEAD."""
    return current_revision(raw, name) not in (None, HEAD)


def copy_index_conditions() -> None:
    """Give partial indexes on Postgres the conditions that the tables give them on SQLite.

    Were these named there, SQLAlchemy would import the dialect of Postgres in each hub, which takes 50 ms.
    """
    for index in (each for table in metadata.tables.values() for each in table.indexes):
        index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]


def create_tables(raw: RawConnection) -> None:
    """Create all tables in an empty schema, as the migrations would, in one round trip."""
    copy_index_conditions()
    statements: list[Any] = [*definitions(DIALECT), CREATE_VERSION_TABLE]
    statements.append(f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')")  # noqa: S608 - constants
    raw.execute(";\n".join(statements))


def migrate(raw: RawConnection, name: str) -> None:
    """Run the migrations between the schema's revision and HEAD. Raises StoreError for a newer one."""
    if not is_known_revision(found := str(current_revision(raw, name))):
        raise newer_schema(name, found)
    raw.autocommit = False
    engine = create_engine("postgresql+psycopg://", creator=lambda: raw, poolclass=StaticPool)
    try:
        with engine.connect() as connection:
            for sql in (BE_PATIENT, LOCK, BE_IMPATIENT):
                connection.exec_driver_sql(sql)
            run_migrations(connection)
            connection.commit()
    finally:
        raw.rollback()
        raw.autocommit = True
