"""The database file: creation, migration, lock, refusals."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import StaticPool, create_engine

from dragoman.errors import StoreError
from dragoman.events import Usage
from dragoman.store import schema
from dragoman.store.accounts.keys import ApiKey, hash_secret
from dragoman.store.calls import select_calls
from dragoman.store.sessions.message_paths import MessagePathStatements
from dragoman.store.sqlite import DIALECT, SQLiteBackend
from dragoman.store.store import DATABASE_FILE, Store
from dragoman.usage_record import UsageRecord
from tests.store.killed import is_killed
from tests.store.samples import converse, session, text

HOLDER = Path(__file__).with_name("lock_holder.py")
NOBODY = 65_534
LOOKS = (
    "SELECT * FROM pragma_table_xinfo(?)",
    "SELECT * FROM pragma_foreign_key_list(?)",
    "SELECT wr, strict FROM pragma_table_list(?)",
    'SELECT i.name, i."unique", origin, x.* FROM pragma_index_list(?) i, pragma_index_xinfo(i.name) x',
    "SELECT name, sql FROM sqlite_master WHERE sql LIKE '% INDEX %' AND tbl_name = ?",
)


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open."""
    command = [sys.executable, str(HOLDER), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process


@contextmanager
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as raw:
        yield raw


def upgrade(raw: sqlite3.Connection, revision: str) -> None:
    """Bring an empty database to a revision of old."""
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    with create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool).connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()


def tables(raw: sqlite3.Connection) -> dict[str, set[tuple[object, ...]]]:
    """The shape of all tables: not their SQL, in which a column that was added stands elsewhere."""
    found = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name: {row for look in LOOKS for row in raw.execute(look, (name,))} for (name,) in found}


async def test_a_store_is_there_again_when_it_is_opened_again(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "new" / "folder") as store:
        await converse(store, "why?")
        stored = await store.messages.list("s")
    async with await Store.open(tmp_path / "new" / "folder") as store:
        assert await store.messages.list("s") == stored


async def test_the_revisions_make_the_tables_that_the_code_expects() -> None:
    with empty() as migrated, empty() as created:
        schema.migrate(migrated)
        schema.upgrade_schema(created, DIALECT)
        assert tables(migrated) == tables(created)
        assert schema.current_revision(migrated) == schema.current_revision(created) == schema.HEAD


async def test_a_migration_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """What another connection sees is what a process that is killed at that moment leaves."""
    path = tmp_path / DATABASE_FILE
    seen: list[tuple[object, ...]] = []
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as raw,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        raw.execute("PRAGMA journal_mode = WAL")
        upgrade(raw, "0008")

        def look(_: str) -> None:
            [sizes] = other.execute("SELECT count(*), sum(length(sql)) FROM sqlite_master").fetchall()
            state = (schema.current_revision(other), *sizes)
            if state not in seen:
                seen.append(state)

        raw.set_trace_callback(look)
        schema.upgrade_schema(raw, DIALECT)
        raw.set_trace_callback(None)
        look("")
    assert [revision for revision, *_ in seen] == ["0008", schema.HEAD]


async def test_the_revisions_lead_to_the_head_that_the_code_expects_and_back() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD]
    with empty() as raw:
        schema.migrate(raw)
        with create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool).connect() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "base")
            assert set(tables(raw)) == {"alembic_version"}
            command.upgrade(config, "head")
            assert schema.current_revision(raw) == schema.HEAD


async def test_a_way_back_puts_the_tails_of_long_parts_at_their_ends() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    with empty() as raw:
        schema.migrate(raw)
        raw.execute("PRAGMA foreign_keys = OFF")
        bodies = ['{"type":"text","text":"once "}', '{"type":"tool-x","toolCallId":"c","rawInput":"["}']
        for position, body in enumerate(bodies):
            raw.execute("INSERT INTO parts VALUES ('s', 'a', ?, ?)", (position, body))
        for row in [(0, 6, "Zürich"), (0, 5, "in "), (1, 1, "]")]:
            raw.execute("INSERT INTO part_tails VALUES ('s', 'a', ?, ?, ?)", row)
        with create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool).connect() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0005")
            connection.commit()
        found = [body for (body,) in raw.execute("SELECT body FROM parts ORDER BY position")]
    assert [msgspec.json.decode(body) for body in found] == [
        {"type": "text", "text": "once in Zürich"},
        {"type": "tool-x", "toolCallId": "c", "rawInput": "[]"},
    ]


async def test_what_a_database_of_the_first_revision_holds_is_there_after_it_was_migrated(
    tmp_path: Path,
) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as raw:
        upgrade(raw, "0001")
        raw.execute("INSERT INTO sessions VALUES ('s', 'ann', 'Trip', NULL, NULL, NULL, 1, 1)")
        raw.execute(
            "INSERT INTO keys VALUES ('k', ?, 'dgm_a', 'ann', NULL, '[]', 1, NULL, 5)",
            (hash_secret("dgm_a"),),
        )
        raw.execute("INSERT INTO keys VALUES ('l', 'x', 'dgm_b', 'bob', 'ci', '[\"chat\"]', 2, 3, NULL)")
        columns = "id, owner, estimated, status, started_at, input_tokens, cost"
        raw.execute(f"INSERT INTO usage ({columns}) VALUES ('u', 'ann', 0, 'finished', 10, 7, 0.5)")
    async with await Store.open(tmp_path) as store:
        assert await store.sessions.get("s") == session(title="Trip")
        ann = ApiKey(id="k", prefix="dgm_a", owner="ann", created_at=1.0, last_used_at=5.0)
        scopes = frozenset({"chat"})
        bob = ApiKey(
            id="l", prefix="dgm_b", owner="bob", name="ci", scopes=scopes, created_at=2.0, revoked_at=3.0
        )
        assert await store.keys.list() == [ann, bob]
        assert await store.keys.authenticate("dgm_a") == ann
        used = UsageRecord(id="u", owner="ann", status="finished", started_at=10.0, cost=0.5, tokens=Usage(7))
        assert await store.usage.list() == [used]
        assert await store.budgets.get_balance("owner:ann", "total") == (500_000_000, 0)


async def test_what_was_said_before_there_was_a_search_is_found_once_the_database_was_migrated(
    tmp_path: Path,
) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as raw:
        upgrade(raw, "0003")
        for owner, at in (("ann", "s"), ("bob", "t")):
            raw.execute("INSERT INTO sessions VALUES (?, ?, NULL, NULL, NULL, NULL, 1, 1)", (at, owner))
            raw.execute("INSERT INTO messages VALUES (?, 'm', 0, 'user', NULL, 1)", (at,))
            columns = "id, session_id, message_id, owner, status, started_at, steps"
            values = "?, ?, 'n', ?, 'finished', 1, 1"
            raw.execute(f"INSERT INTO runs ({columns}) VALUES ({values})", (at, at, owner))
            for position, body in enumerate(
                (text(f"Hello {owner}").decode(), '{"type":"step-start"}', "junk")
            ):
                raw.execute("INSERT INTO parts VALUES (?, 'm', ?, ?)", (at, position, body))
    async with await Store.open(tmp_path) as store:
        for owner, at in (("ann", "s"), ("bob", "t")):
            found = (await store.history.search("hello", owner=owner)).passages
            assert [(each.session_id, each.message_id) for each in found] == [(at, "m")]


async def test_opening_does_not_load_what_only_migrations_need(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, pathlib; from dragoman.store.store import Store\n"
        "store = lambda: Store.open(pathlib.Path(sys.argv[1]))\n"
        "async def main(): await (await store()).close(); await (await store()).close()\n"
        "asyncio.run(main()); print('alembic' in sys.modules)"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


async def test_many_that_open_a_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(Store.open(tmp_path, exclusive=False) for _ in range(8)))
    await asyncio.gather(*(store.sessions.create(session(f"s{at}")) for at, store in enumerate(stores)))
    assert len(await stores[0].sessions.list("ann")) == 8
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_database_that_a_newer_version_wrote_is_refused(tmp_path: Path) -> None:
    await (await Store.open(tmp_path)).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=rf"{tmp_path}/{DATABASE_FILE}.*'9999'") as refused:
        await Store.open(tmp_path)
    assert "newer" in str(refused.value.hint)
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as raw:
        assert schema.current_revision(raw) == "9999"


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as raw:
        raw.execute("CREATE TABLE theirs (id)")
    with pytest.raises(StoreError, match=rf"{tmp_path}/{DATABASE_FILE}.*another program"):
        await Store.open(tmp_path)


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_text("Dear diary, " * 1_000)
    with pytest.raises(StoreError, match=rf"{tmp_path}/{DATABASE_FILE}.*not a database"):
        await Store.open(tmp_path)
    assert (tmp_path / DATABASE_FILE).read_text() == "Dear diary, " * 1_000


async def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        await converse(store, "why?")
    whole = (tmp_path / DATABASE_FILE).read_bytes()
    (tmp_path / DATABASE_FILE).write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(StoreError, match=rf"{tmp_path}/{DATABASE_FILE}.*malformed") as refused:
        await Store.open(tmp_path)
    assert "backup" in str(refused.value.hint)


async def test_an_empty_file_is_refused_and_neither_it_nor_its_journal_is_touched(tmp_path: Path) -> None:
    journal = tmp_path / f"{DATABASE_FILE}-wal"
    (tmp_path / DATABASE_FILE).touch()
    journal.write_bytes(b"what was committed last")
    for exclusive in (True, False):
        with pytest.raises(StoreError, match=rf"{tmp_path}/{DATABASE_FILE}.*empty") as refused:
            await Store.open(tmp_path, exclusive=exclusive)
        assert "backup" in str(refused.value.hint)
    assert (tmp_path / DATABASE_FILE).read_bytes() == b""
    assert journal.read_bytes() == b"what was committed last"


async def test_two_that_make_the_same_database_at_once_share_it(tmp_path: Path) -> None:
    one, two = await asyncio.gather(
        Store.open(tmp_path, exclusive=False), Store.open(tmp_path, exclusive=False)
    )
    async with one, two:
        await one.sessions.create(session())
        assert await two.sessions.get("s") == session()


def test_what_a_killed_process_left_of_a_new_database_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """Also by a command, and also if the database has its name already."""
    for at in count():
        folder = tmp_path / str(at)
        folder.mkdir()
        backend = SQLiteBackend(folder / DATABASE_FILE, exclusive=False)
        was_killed = is_killed(backend.prepare, at=at, below=folder)
        backend.prepare()
        assert {path.name for path in folder.iterdir()} <= {DATABASE_FILE, "hub.db-wal", "hub.db-shm"}
        with closing(sqlite3.connect(folder / DATABASE_FILE)) as raw:
            assert not schema.needs_migration(raw)
        if not was_killed:
            break
    assert at > 5


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A folder that this process may not write to, even if it runs as root."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


@pytest.mark.parametrize("inside", ["", "deeper"])
async def test_a_folder_that_cannot_be_written_to_is_refused(inside: str) -> None:
    with (
        unprivileged() as folder,
        pytest.raises(StoreError, match=rf"{folder / inside / DATABASE_FILE}.*denied"),
    ):
        await Store.open(folder / inside)


async def test_a_place_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=rf"{tmp_path}/file/{DATABASE_FILE}"):
        await Store.open(tmp_path / "file")


async def test_two_hubs_do_not_share_a_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as other, pytest.raises(StoreError, match=rf"in use by process {other.pid}$"):
        await Store.open(tmp_path)
    await (await Store.open(tmp_path)).close()


async def test_the_lock_of_a_killed_hub_does_not_outlive_it(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        other.kill()
        other.wait()
        await (await Store.open(tmp_path)).close()


async def test_a_refused_hub_leaves_nothing_locked(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_text("Dear diary, " * 1_000)
    with pytest.raises(StoreError):
        await Store.open(tmp_path)
    (tmp_path / DATABASE_FILE).unlink()
    await (await Store.open(tmp_path)).close()


async def test_a_command_reads_and_writes_beside_a_running_hub(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as hub, await Store.open(tmp_path, exclusive=False) as beside:
        key, secret = await beside.keys.create("ann")
        assert await hub.keys.authenticate(secret) == key
        await hub.sessions.create(session())
        assert await beside.sessions.get("s") == session()


async def test_a_command_does_not_migrate_a_database_that_a_hub_is_using(tmp_path: Path) -> None:
    async with await Store.open(tmp_path):
        with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as raw:
            raw.execute("UPDATE alembic_version SET version_num = '0000'")
        with pytest.raises(StoreError, match=rf"in use by process {os.getpid()}"):
            await Store.open(tmp_path, exclusive=False)


async def test_a_full_disk_is_said_and_got_over(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        await store.write(lambda connection: connection.fetch_one("PRAGMA max_page_count = 1", {}))
        with pytest.raises(StoreError, match=rf"{DATABASE_FILE}.*full") as refused:
            await store.sessions.create(session(title="x" * 100_000))
        assert refused.value.transient
        assert refused.value.hint == "free some space on the disk"
        await store.write(lambda connection: connection.fetch_one("PRAGMA max_page_count = 1000000", {}))
        await store.sessions.create(session(title="x" * 100_000))
        assert await store.sessions.get("s") == session(title="x" * 100_000)


async def test_parts_move_to_an_ordinary_table_and_back_with_all_that_refers_to_them(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        await converse(store, "why?", "how?")
        found = await store.history.search("why", owner="ann")
        assert found.passages
        stored = await store.messages.list("s")
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    sizes = (
        "SELECT (SELECT count(*) FROM parts), (SELECT count(*) FROM passages), (SELECT count(*) FROM calls)"
    )
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as raw:
        before = raw.execute(sizes).fetchone()
        with create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool).connect() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0011")
            assert raw.execute("SELECT wr FROM pragma_table_list('parts')").fetchone() == (1,)
            assert raw.execute(sizes).fetchone() == before
    async with await Store.open(tmp_path) as store:  # which migrates
        assert await store.messages.list("s") == stored
        assert await store.history.search("why", owner="ann") == found
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as raw:
        assert raw.execute("SELECT wr FROM pragma_table_list('parts')").fetchone() == (0,)
        assert raw.execute(sizes).fetchone() == before
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_the_calls_of_all_owners_are_listed_through_an_index(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        sql = store.database.query_sql(select_calls, frozenset())
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as raw:
        plan = raw.execute(f"EXPLAIN QUERY PLAN {sql}", {"limit": 50}).fetchall()
    assert "SCAN calls USING INDEX ix_calls_started_at_id" in [row[-1] for row in plan]


async def test_a_message_is_found_by_its_id_through_an_index(tmp_path: Path) -> None:
    """Not by its position, of which a long session has tens of thousands."""
    async with await Store.open(tmp_path) as store:
        sql = store.database.statements(MessagePathStatements)
    params = {"session_id": "s", "id": "m", "start": 0, "until": 9}
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as raw:
        plans = [
            raw.execute(f"EXPLAIN QUERY PLAN {each}", params).fetchall()
            for each in (sql.by_client_id, sql.by_id)
        ]
    assert [
        "(session_id=? AND client_id=?)" in str(plans[0]),
        "(session_id=? AND id=?)" in str(plans[1]),
    ] == [
        True,
        True,
    ]
