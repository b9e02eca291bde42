"""A database that is down: typed refusals, retries, recovery."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from dragoman.errors import StoreError, Unavailable
from dragoman.store import sqlite
from dragoman.store.connection import DatabaseConnection
from dragoman.store.database import Database
from dragoman.store.outage import Outage, OutageMonitor
from dragoman.store.sqlite import SQLiteBackend, SQLiteConnection
from dragoman.store.store import DATABASE_FILE, Store
from tests.moved_database import DIARY, garbage, gone, replaced
from tests.store.samples import session

DEADLINE = 120.0

Trouble: TypeAlias = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' locks are waited for a moment only."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Store]:
    async with await Store.open(folder, tolerate_outages=True) as store:
        yield store


@contextmanager
def empty(folder: Path) -> Iterator[None]:
    """The file has no bytes for a while."""
    folder.mkdir(exist_ok=True)
    (folder / DATABASE_FILE).touch()
    yield
    assert (folder / DATABASE_FILE).read_bytes() == b""
    (folder / DATABASE_FILE).unlink()


@contextmanager
def in_the_way(folder: Path) -> Iterator[None]:
    """There is a file where the folder belongs."""
    folder.write_text(DIARY)
    yield
    assert folder.read_text() == DIARY
    folder.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Another program has the file for itself."""
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None)) as raw:
        raw.execute("PRAGMA user_version = 1")  # so that the file is not empty
        raw.execute("PRAGMA locking_mode = EXCLUSIVE")
        raw.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Another program writes, and does not come to an end."""
    with closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def truncated(folder: Path) -> Iterator[None]:
    """Somebody truncates the file under the hub, and restores it later."""
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = (folder / DATABASE_FILE).read_bytes()
    (folder / DATABASE_FILE).write_bytes(b"")
    yield
    assert (folder / DATABASE_FILE).read_bytes() == b""
    (folder / DATABASE_FILE).write_bytes(whole)


def rising(database: Database) -> asyncio.Event:
    """Is set when the database is up again."""
    up = asyncio.Event()
    database.on_recovery(up.set)
    return up


async def refuses(database: Database, *, reading: bool) -> None:
    """At once, all that is asked of it; or, where it can be read, only what is written."""
    assert not database.is_up
    with pytest.raises(Unavailable, match=r"the database is down: cannot use the database .*hub\.db"):
        database.enqueue(lambda _: None)
    with pytest.raises(Unavailable, match="the database is down"):
        await database.write(lambda _: None)
    if reading:
        with pytest.raises(Unavailable, match="the database is down"):
            await database.read(lambda _: None)
    else:
        await database.read(lambda connection: connection.fetch_all("SELECT * FROM keys", {}))


@pytest.mark.parametrize("trouble", [garbage, empty, in_the_way, locked])
async def test_a_database_that_is_down_at_the_start_comes_up_later(tmp_path: Path, trouble: Trouble) -> None:
    folder = tmp_path / "data"
    with trouble(folder):
        store = await Store.open(folder, tolerate_outages=True)
        up = rising(store.database)
        await refuses(store.database, reading=True)
    async with store:
        await asyncio.wait_for(up.wait(), DEADLINE)
        assert (store.database.is_up, store.database.problem) == (True, None)
        await store.sessions.create(session())
        assert await store.sessions.get("s") == session()


@pytest.mark.parametrize(("trouble", "reading"), [(replaced, True), (truncated, True), (writing, False)])
async def test_a_database_that_goes_down_comes_up_again_with_all_that_it_had(
    tmp_path: Path, trouble: Trouble, *, reading: bool
) -> None:
    folder = tmp_path / "data"
    async with opened(folder) as store:
        await store.sessions.create(session())
        assert await store.sessions.get("s") == session()
        up = rising(store.database)
        with trouble(folder):
            with pytest.raises(StoreError):
                await store.sessions.create(session("t"))
            await refuses(store.database, reading=reading)
        await asyncio.wait_for(up.wait(), DEADLINE)
        await store.sessions.create(session("u"))
        assert {found.id for found in await store.sessions.list("ann")} == {"s", "u"}


async def test_a_reader_notices_too_that_the_file_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with opened(folder) as store:
        await store.sessions.create(session())
        up = rising(store.database)
        with replaced(folder):
            with pytest.raises(StoreError, match=r"moved or replaced|not a database"):
                await store.sessions.get("s")
            await refuses(store.database, reading=True)
        await asyncio.wait_for(up.wait(), DEADLINE)
        assert await store.sessions.get("s") == session()


async def test_a_file_that_is_gone_is_waited_for_and_not_created_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on a disk that comes back, and what is written meanwhile would be hidden under it."""
    folder = tmp_path / "data"
    async with opened(folder) as store:
        await store.sessions.create(session())
        up = rising(store.database)
        retried = asyncio.Event()
        apply = OutageMonitor._apply_retry

        def note_retry(monitor: OutageMonitor, outage: Outage | None) -> None:
            apply(monitor, outage)
            retried.set()

        monkeypatch.setattr(OutageMonitor, "_apply_retry", note_retry)
        with gone(folder):
            for reading in (store.sessions.list("ann"), store.sessions.create(session("t"))):
                with pytest.raises((StoreError, Unavailable), match="the file is gone") as raised:
                    await reading
                assert str(raised.value.hint).startswith("bring it back")
            await asyncio.wait_for(retried.wait(), DEADLINE)
            await refuses(store.database, reading=True)
            assert not (folder / DATABASE_FILE).exists()
        await asyncio.wait_for(up.wait(), DEADLINE)
        assert await store.sessions.get("s") == session()


async def test_a_full_disk_can_be_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.sessions.create(session())
        up = rising(store.database)
        await store.write(lambda connection: connection.fetch_one("PRAGMA max_page_count = 1", {}))
        with pytest.raises(StoreError, match="full"):
            await store.sessions.create(session("t", title="x" * 100_000))
        await refuses(store.database, reading=False)
        assert await store.sessions.get("s") == session()
        await asyncio.wait_for(up.wait(), DEADLINE)
        await store.sessions.create(session("t", title="x" * 100_000))


async def test_a_job_that_the_database_refuses_for_its_own_sake_is_no_outage(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(StoreError):
            await store.write(lambda connection: connection.execute("SELECT nonsense", {}))
        with pytest.raises(StoreError, match="readonly"):
            await store.database.read(lambda connection: connection.execute("DELETE FROM keys", {}))
        assert store.database.is_up


async def test_jobs_that_wait_when_the_database_goes_down_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    heard: list[Exception] = []
    async with opened(folder) as store:
        with writing(folder):
            for _ in range(300):
                store.enqueue(lambda _: None, on_failure=heard.append)
            with pytest.raises(StoreError):
                await store.flush()
            assert [type(error) for error in heard] == [StoreError] * 300


async def test_the_folder_stays_locked_while_its_database_is_down(tmp_path: Path) -> None:
    with garbage(tmp_path):
        async with opened(tmp_path):
            with pytest.raises(StoreError, match="is in use by process"):
                await Store.open(tmp_path, tolerate_outages=True)


@pytest.mark.parametrize("sql", ["CREATE TABLE theirs (id)", "UPDATE alembic_version SET version_num = '9'"])
async def test_waiting_does_not_help_against_another_programs_or_a_newer_database(
    tmp_path: Path, sql: str
) -> None:
    if "UPDATE" in sql:
        await (await Store.open(tmp_path)).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as raw:
        raw.execute(sql)
    with pytest.raises(StoreError, match=r"another program|is of revision"):
        await Store.open(tmp_path, tolerate_outages=True)
    with pytest.raises(StoreError, match=r"another program|is of revision"):
        await Store.open(tmp_path)  # the lock was given back


class Broken(SQLiteConnection):
    """Takes jobs, and can neither commit nor roll back."""

    begun = False

    def begin(self, *, is_group: bool = False) -> None:
        super().begin(is_group=is_group)
        self.begun = True

    def commit(self) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    def rollback(self) -> None:
        if self.begun:
            raise sqlite3.OperationalError("disk I/O error")


class Breaking(SQLiteBackend):
    """Gives two broken connections to write to, and then whole ones."""

    broken = 2

    def connect(self, *, writing: bool) -> SQLiteConnection:
        if not writing or not self.broken:
            return super().connect(writing=writing)
        self.broken -= 1
        raw = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        return Broken(raw, self._path, begin="BEGIN IMMEDIATE")


async def test_the_writer_outlives_a_transaction_that_cannot_even_be_rolled_back(tmp_path: Path) -> None:
    backend = Breaking(tmp_path / DATABASE_FILE)
    await asyncio.to_thread(backend.prepare)
    database = Database(backend)
    heard: list[Exception] = []

    def put(connection: DatabaseConnection) -> None:
        sql = "INSERT INTO keys (id, hash, prefix, owner, scopes, created_at) VALUES ('a', '', '', '', '', 0)"
        connection.execute(sql, {})

    database.enqueue(put, on_failure=heard.append)
    await database.flush()
    assert [str(error) for error in heard] == [
        f"cannot use the database '{tmp_path / DATABASE_FILE}': disk I/O error"
    ]
    await database.write(put)
    await database.close()
