"""The tables on Postgres: made once by processes that start together, migrated, refused if foreign."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, StaticPool, create_engine

from dragoman.errors import StoreError
from dragoman.store import schema
from dragoman.store.postgres import membership
from dragoman.store.postgres.schema import LOCK, upgrade_schema
from dragoman.store.tables.core import metadata
from tests.postgres_server import shared_server
from tests.store.places import Place, empty_place
from tests.store.samples import session
from tests.waiting import until

COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull, collname, pg_get_expr(adbin, adrelid)
FROM pg_attribute LEFT JOIN pg_collation ON pg_collation.oid = attcollation
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = '{}'::regclass AND attnum > 0
"""
CONSTRAINTS = "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '{}'::regclass"
INDEXES = """
SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() AND tablename = '{}'
"""
LOOKS = (COLUMNS, CONSTRAINTS, INDEXES)
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"

WAITING = """
SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND objid = (hashtext(current_schema())::bigint & 4294967295)::oid
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with empty_place("postgres", tmp_path / "data", new=True) as found:
        yield found


@contextmanager
def connected(place: Place) -> Iterator[Connection]:
    """A connection as Alembic has it."""
    with psycopg.connect(str(place.url)) as raw:
        engine = create_engine("postgresql+psycopg://", creator=lambda: raw, poolclass=StaticPool)
        with engine.connect() as connection:
            yield connection
            connection.commit()


def migrate(place: Place, revision: str) -> None:
    """Bring a database to a revision, up or down."""
    config = schema.migration_config()
    with connected(place) as connection:
        config.attributes["connection"] = connection
        (command.downgrade if revision == "base" else command.upgrade)(config, revision)


def tables(place: Place) -> dict[str, set[tuple[object, ...]]]:
    """The shape of all tables, whatever the name of their schema."""
    own_schema = place.query("SELECT current_schema()")[0][0]
    found: dict[str, set[tuple[object, ...]]] = {}
    for (name,) in place.query(TABLES):
        rows = [row for look in LOOKS for row in place.query(look.format(name))]
        found[name] = {tuple(str(value).replace(f"{own_schema}.", "") for value in row) for row in rows}
    return found


async def test_the_revisions_make_the_tables_that_the_code_expects_and_lead_back(
    place: Place, tmp_path: Path
) -> None:
    migrate(place, "head")
    with empty_place("postgres", tmp_path / "created", new=True) as created:
        with psycopg.connect(str(created.url), autocommit=True) as raw:
            upgrade_schema(raw, "new")
        assert tables(place) == tables(created)
    with connected(place) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    migrate(place, "base")
    assert place.query(TABLES) == [("alembic_version",)]
    migrate(place, "head")


@pytest.mark.parametrize("revision", [None, "0001"])
async def test_a_host_that_starts_while_another_process_makes_the_tables_waits_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    monkeypatch.setattr(membership, "SETTINGS", membership.SETTINGS.replace("'1s'", "'1ms'"))
    if revision is not None:
        migrate(place, revision)
    with psycopg.connect(str(place.url)) as busy:
        busy.execute(LOCK)
        opening = asyncio.ensure_future(place.open())

        def waits() -> bool:
            return opening.done() or bool(place.query(WAITING))

        await until(waits)
        assert not opening.done(), opening.exception()
    async with await opening as store:
        await store.sessions.create(session())


async def test_processes_that_start_together_make_or_migrate_the_tables_once(place: Place) -> None:
    for revision in (None, "0001"):
        if revision is not None:
            place.query(f"DROP SCHEMA {(name := place.query('SELECT current_schema()')[0][0])} CASCADE")
            shared_server().execute(f"CREATE SCHEMA {name}")
            migrate(place, revision)
        stores = await asyncio.gather(
            *(place.open(exclusive=False) for _ in range(4)), return_exceptions=True
        )
        opened = [store for store in stores if not isinstance(store, BaseException)]
        assert opened
        assert all("in use" in str(error) for error in stores if isinstance(error, BaseException))
        await opened[0].sessions.create(session())
        assert await opened[-1].sessions.get("s") == session()
        await asyncio.gather(*(store.close() for store in opened))
        assert place.query("SELECT version_num FROM alembic_version") == [(schema.HEAD,)]


async def test_what_a_database_of_the_first_revision_holds_is_there_after_it_was_migrated(
    place: Place,
) -> None:
    migrate(place, "0001")
    place.query("INSERT INTO sessions VALUES ('s', 'ann', 'Trip', NULL, NULL, NULL, 1, 1)")
    async with await place.open() as store:
        assert await store.sessions.get("s") == session(title="Trip")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "is of revision '9999', and this version knows"),
        ("DROP TABLE alembic_version", "holds another program's tables"),
        ("DELETE FROM alembic_version", "holds another program's tables"),
    ],
)
async def test_a_database_of_a_newer_version_or_another_program_is_refused(
    place: Place, sql: str, expected: str
) -> None:
    await (await place.open()).close()
    place.query(sql)
    for tolerate_outages in (False, True):
        with pytest.raises(StoreError, match=expected) as refused:
            await place.open(tolerate_outages=tolerate_outages)
        assert refused.value.hint


async def test_a_hub_goes_on_after_an_outage_in_which_a_newer_version_migrated_its_database(
    place: Place,
) -> None:
    async with await place.open(tolerate_outages=True) as store:
        await store.sessions.create(session())
        place.query("UPDATE alembic_version SET version_num = '9999'")
        await asyncio.to_thread(store.database._backend.prepare)
        assert await store.sessions.get("s") == session()


async def test_a_command_does_not_migrate_a_database_that_a_hub_is_using(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.store.postgres.locks.LOCK_SECONDS", 0.0)
    async with await place.open():
        place.query("UPDATE alembic_version SET version_num = '0001'")
        with pytest.raises(StoreError, match="is in use by 'dragoman host"):
            await place.open(exclusive=False)
