"""Postgres: lost connections, outages, maintenance, what is refused at the start, what is never shown."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from dragoman.errors import ConfigError, Conflict, HostFenced, NotFound, StoreError, Unavailable
from dragoman.store.connection import DatabaseConnection
from dragoman.store.postgres import backend, locks, membership
from dragoman.store.postgres.backend import PostgresBackend
from dragoman.store.postgres.url import shown_url
from dragoman.store.store import DatabaseSettings, Store
from tests.postgres_server import shared_server
from tests.store.places import Place, empty_place
from tests.store.samples import assistant, run, session, user

DEADLINE = 120.0
PASSWORD = "s3cret-p%40ss"

NAMES = "SELECT name FROM mcp_servers ORDER BY name"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with empty_place("postgres", tmp_path / "data") as found:
        yield found


@pytest.fixture
def new_place(tmp_path: Path) -> Iterator[Place]:
    with empty_place("postgres", tmp_path / "data", new=True) as found:
        yield found


@pytest.fixture
def lock_wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the seconds for which the lock of another hub is waited for.

    A server releases the locks of a connection a moment after the client has closed it.
    """
    return lambda seconds: monkeypatch.setattr(locks, "LOCK_SECONDS", seconds)


def fail_with(state: str) -> str:
    """SQL that fails with a state of the server's."""
    return f"DO $$ BEGIN RAISE EXCEPTION 'something is wrong' USING ERRCODE = '{state}'; END $$"


async def test_what_is_written_and_read_after_all_connections_were_cut_is_as_if_nothing_had_been(
    place: Place,
) -> None:
    async with await place.open(tolerate_outages=True) as store:
        await store.sessions.create(session("a"))
        assert await store.sessions.get("a") == session("a")
        assert shared_server().cut_connections() >= 3
        await store.sessions.create(session("b"))
        assert await store.sessions.get("b") == session("b")
        assert store.database.is_up


async def test_a_job_whose_connection_is_cut_in_the_middle_runs_again_and_is_done_once(place: Place) -> None:
    attempts: list[int] = []

    def job(connection: DatabaseConnection) -> str:
        connection.execute("INSERT INTO mcp_servers VALUES ('x', '', 1)", {})
        attempts.append(1)
        if len(attempts) == 1:
            shared_server().cut_connections()
        connection.execute("INSERT INTO mcp_servers VALUES ('y', '', 1)", {})
        return "done"

    def query(connection: DatabaseConnection) -> int:
        count = len(connection.fetch_all("SELECT * FROM mcp_servers", {}))
        if len(attempts) == 2:
            attempts.append(2)
            shared_server().cut_connections()
        return count + len(connection.fetch_all("SELECT * FROM mcp_servers", {}))

    async with await place.open(tolerate_outages=True) as store:
        assert await store.write(job) == "done"
        assert await store.database.read(query) == 4
        assert store.database.is_up
    assert attempts == [1, 1, 2]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_commit_whose_answer_is_lost_is_looked_up_and_done_once(place: Place, moment: str) -> None:
    """The connection is cut just before the server commits, or after it has and before it says so."""
    async with await place.open() as store:
        connection = await store.write(lambda connection: connection)
        raw = connection._raw  # type: ignore[attr-defined]
        cut: list[str] = []

        def job(connection: DatabaseConnection) -> None:
            connection.execute("INSERT INTO mcp_servers VALUES ('x', '', 1)", {})
            if cut:
                return
            cut.append(moment)
            if moment == "after":
                raw.pgconn.exec_(b"COMMIT")
            shared_server().cut_connections()

        await store.write(job)
        assert await names(store) == ["x"]


async def test_statements_that_the_server_does_not_have_are_prepared_again(place: Place) -> None:
    """The driver may take them for prepared when a pipeline was aborted; its server says 26000 then."""
    forgotten: list[str] = []

    def forget(connection: DatabaseConnection, kind: str) -> None:
        if kind not in forgotten:
            forgotten.append(kind)
            connection._raw.pgconn.exec_(b"DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")  # type: ignore[attr-defined]

    def add(connection: DatabaseConnection, number: int) -> None:
        connection.execute_batched("INSERT INTO mcp_servers VALUES (%(name)s, '', 1)", {"name": f"n{number}"})
        connection.execute_batched("DELETE FROM mcp_servers WHERE name = %(name)s", {"name": "x"})

    def forget_and_add(connection: DatabaseConnection) -> None:
        forget(connection, "writer")
        add(connection, 8)

    def forget_and_list(connection: DatabaseConnection) -> int:
        forget(connection, "reader")
        return len(connection.fetch_all(NAMES, {}))

    async with await place.open() as store:
        for number in range(8):
            await store.write(partial(add, number=number))
            await names(store)
        await store.write(forget_and_add)
        assert await store.database.read(forget_and_list) == 9
    assert forgotten == ["writer", "reader"]


async def names(store: Store) -> list[str]:
    """The names of the MCP servers in the store."""
    rows = await store.database.read(lambda connection: connection.fetch_all(NAMES, {}))
    return [name for (name,) in rows]


def rising(store: Store) -> asyncio.Event:
    """Is set when the database is up again."""
    up = asyncio.Event()
    store.database.on_recovery(up.set)
    return up


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_server_that_is_restarted_is_an_outage_that_ends_by_itself(
    place: Place, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.store.postgres.connection.DOUBT_SECONDS", 0.0)
    async with await place.open(tolerate_outages=True) as store:
        await store.sessions.create(session("a"))
        up = rising(store)
        await asyncio.to_thread(shared_server().stop, how)
        try:
            with pytest.raises(StoreError, match="cannot use the database 'postgresql://dragoman@"):
                await store.sessions.create(session("b"))
            for refused in (store.sessions.create(session("c")), store.sessions.get("a")):
                with pytest.raises(Unavailable, match="the database is down"):
                    await refused
        finally:
            await asyncio.to_thread(shared_server().start)
        await asyncio.wait_for(up.wait(), DEADLINE)
        await store.sessions.create(session("d"))
        assert {found.id for found in await store.sessions.list("ann")} == {"a", "d"}


async def test_a_hub_that_starts_before_its_database_waits_for_it(place: Place) -> None:
    await asyncio.to_thread(shared_server().stop)
    try:
        store = await place.open(tolerate_outages=True)
        up = rising(store)
        assert not store.database.is_up
    finally:
        await asyncio.to_thread(shared_server().start)
    async with store:
        await asyncio.wait_for(up.wait(), DEADLINE)
        await store.sessions.create(session())
        assert await store.sessions.get("s") == session()


@pytest.mark.parametrize(
    ("state", "scope", "transient"),
    [
        ("53100", "writing", True),  # the disk is full
        ("25006", "writing", False),  # a standby
        ("53300", "all", True),  # too many connections
        ("58030", "all", False),  # the disk is broken
        ("55P03", None, True),  # a lock
        ("22003", None, False),  # a number out of range
        ("42P01", None, False),  # no such table
    ],
)
async def test_what_fails_is_told_as_what_it_is(
    place: Place, state: str, scope: str | None, *, transient: bool
) -> None:
    backend = PostgresBackend(str(place.url))
    with psycopg.connect(str(place.url)) as raw, pytest.raises(psycopg.Error) as raised:
        raw.execute(fail_with(state))
    meaning = backend.translate_error(raised.value)
    assert isinstance(meaning, StoreError)
    assert (meaning.transient, backend.outage_scope(meaning)) == (transient, scope)
    assert meaning.message.endswith(": something is wrong")


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_what_is_rolled_back_for_the_sake_of_others_runs_again(place: Place, state: str) -> None:
    attempts: list[int] = []

    def job(connection: DatabaseConnection) -> int:
        attempts.append(len(attempts))
        connection.execute(f"INSERT INTO mcp_servers VALUES ('{attempts[-1]}', '', 1)", {})
        if len(attempts) < 3:
            connection.execute(fail_with(state), {})
        return attempts[-1]

    async with await place.open() as store:
        assert await store.write(job) == 2
        assert await names(store) == ["2"]


async def test_a_job_that_is_always_rolled_back_fails_with_the_reason(place: Place) -> None:
    async with await place.open() as store:
        with pytest.raises(StoreError, match="something is wrong") as refused:
            await store.write(lambda connection: connection.execute(fail_with("40P01"), {}))
        assert refused.value.transient


async def test_refused_rows_are_told_without_their_values(place: Place) -> None:
    async with await place.open() as store:
        row = "INSERT INTO mcp_servers VALUES ('secret-name', 'secret-body', 1)"
        await store.write(lambda connection: connection.execute(row, {}))
        with pytest.raises(Conflict, match="unique constraint") as refused:
            await store.write(lambda connection: connection.execute(row, {}))
        orphan = "INSERT INTO indexed_sessions VALUES ('secret-session', 1)"
        with pytest.raises(NotFound, match="was deleted") as missing:
            await store.write(lambda connection: connection.execute(orphan, {}))
    assert "secret" not in f"{refused.value} {missing.value}"


async def test_a_zero_character_in_a_text_is_stored_as_a_replacement(place: Place) -> None:
    async with await place.open() as store:
        await store.sessions.create(session(title="a\0b"))
        stored = await store.sessions.get("s")
        assert stored is not None
        assert stored.title == "a\ufffdb"


async def test_maintenance_is_refused_beside_a_hub_and_a_hub_beside_maintenance(
    place: Place, lock_wait: Callable[[float], None]
) -> None:
    maintenance = PostgresBackend(str(place.url), use="maintenance")
    async with await place.open() as hub:
        lock_wait(0)
        with pytest.raises(StoreError, match=f"in use by 'dragoman host {hub.host_id}' at this machine"):
            maintenance.prepare()
        async with await place.open(exclusive=False) as command:
            await command.sessions.create(session())
        assert await hub.sessions.get("s") == session()
    lock_wait(DEADLINE)
    maintenance.prepare()
    lock_wait(0)
    with pytest.raises(StoreError, match="is in use by 'dragoman' at this machine") as refused:
        await place.open(tolerate_outages=True)
    assert "wait until its maintenance ends" in str(refused.value.hint)
    maintenance.release()
    lock_wait(DEADLINE)
    await (await place.open()).close()


async def test_maintenance_that_began_while_a_hub_was_cut_off_fences_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, lock_wait: Callable[[float], None]
) -> None:
    lock_wait(DEADLINE)
    monkeypatch.setattr(membership, "INTERVAL", 0.01)
    fenced = asyncio.Event()
    async with await place.open(tolerate_outages=True) as hub:
        await hub.sessions.create(session("a"))
        assert hub.membership is not None
        hub.membership.on_fenced = fenced.set
        maintenance = PostgresBackend(str(place.url), use="maintenance")
        with monkeypatch.context() as cut_off:
            with hub.membership._guard:  # no tick is under way, which might connect again
                cut_off.setattr(membership.Membership, "_tick", lambda _: None)
            shared_server().cut_connections()
            maintenance.prepare()
        with pytest.raises(HostFenced):
            await hub.sessions.create(session("b"))
        await asyncio.wait_for(fenced.wait(), DEADLINE)
        assert await hub.sessions.get("b") is None
        maintenance.release()


async def test_the_lock_of_a_killed_hub_does_not_outlive_it(
    place: Place, lock_wait: Callable[[float], None]
) -> None:
    lock_wait(DEADLINE)
    store = await place.open()
    shared_server().cut_connections()  # as the server does with a process that is gone
    store.database._backend.release()
    async with await place.open() as again:
        await again.sessions.create(session())
    await store.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist'),
        ({"user": "nobody"}, 'role "nobody" does not exist'),
        ({"options": "-csearch_path=nowhere"}, "its search_path names no schema"),
    ],
)
async def test_a_hub_with_a_wrong_url_does_not_start(
    tmp_path: Path, change: dict[str, str], expected: str
) -> None:
    options = {"host": str(shared_server().folder), "user": "dragoman", "dbname": "postgres", **change}
    database = DatabaseSettings(f"postgresql://?{urlencode(options)}")
    with pytest.raises(StoreError, match=expected) as refused:
        await Store.open(tmp_path, database=database, tolerate_outages=True)
    assert refused.value.hint


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/hub",
        f"postgres://127.0.0.1:1/hub?user=ann&password={PASSWORD}",
        f"postgresql://ann:{PASSWORD}%zz@127.0.0.1:1/hub",
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/hub?nonsense=1",
        f"mysql://ann:{PASSWORD}@127.0.0.1/hub",
        f"postgresql://ann:{PASSWORD}@[::1/hub",
        "postgresql://ann:some@s3cret@127.0.0.1:1/hub",  # libpq reads the rest as a host, a port or a user
        "postgresql://ann:s3cret/p@ss@127.0.0.1:1/hub",
        "postgresql://127.0.0.1?user=ann&password=s3cret@127.0.0.1",
    ],
)
async def test_a_password_is_never_shown(tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = DatabaseSettings(url)
    shown = [repr(settings)]
    with pytest.raises((StoreError, ConfigError)) as refused:
        await Store.open(tmp_path, database=settings)
    shown += [str(refused.value), repr(refused.value), str(refused.value.hint)]
    try:
        async with await Store.open(tmp_path, database=settings, tolerate_outages=True) as store:
            shown += [str(store.database.problem), repr(store.database._backend)]
    except ConfigError as error:
        shown.append(str(error))
    assert not [text for text in (*shown, caplog.text) if "s3cret" in text or "p@ss" in text]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            f"postgres://ann:{PASSWORD}@db.example:5433/hub?sslmode=require",
            "postgresql://ann@db.example:5433/hub",
        ),
        (f"postgresql://ann:{PASSWORD}@a:1,b:2/hub", "postgresql://ann@a:1,b:2/hub"),
        ("postgresql://a%40n@[::1]:5433/hub", "postgresql://a%40n@[::1]:5433/hub"),
        ("postgresql:///hub?host=/run/pg&user=ann&port=1", "postgresql://ann@:1/hub?host=/run/pg"),
        ("postgresql://%2Frun%2Fpg/hub", "postgresql:///hub?host=/run/pg"),
        (f"postgresql://?host=db&dbname=hub&password={PASSWORD}", "postgresql://db/hub"),
        ("postgresql://ann:s3cret/p@ss@db/hub", "postgresql://…"),
        ("postgresql://ann:s3cret#p@ss@db/hub", "postgresql://…"),
        ("postgresql://ann:s3cret?p@ss@db/hub", "postgresql://…"),
        ("postgresql://ann:s3cret@[::1/hub", "postgresql://…"),
    ],
)
def test_a_url_is_shown_with_its_user_hosts_and_name(url: str, shown: str) -> None:
    assert shown_url(url) == shown


async def test_the_statements_of_jobs_for_other_sessions_are_sent_together(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    executemany = psycopg.Cursor.executemany

    def counted(cursor: psycopg.Cursor[Any], query: Any, rows: Any, **options: Any) -> None:
        sent.append(len(rows))
        executemany(cursor, query, rows, **options)

    async with await place.open(exclusive=False) as store:
        await store.flush()
        monkeypatch.setattr(psycopg.Cursor, "executemany", counted)
        await asyncio.gather(
            *(
                store.runs.create(
                    run(f"r{id}", session_id=id, message_id=f"a{id}"),
                    session=session(id),
                    user=user(f"u{id}", "hi"),
                    assistant=assistant(f"a{id}"),
                )
                for id in "stvwx"
            )
        )
        assert sent == [10, 5, 10]  # the messages, their parts, events; new sessions have their times
        found = await store.messages.list("x")
        assert [(each.id, each.role) for each in found] == [("ux", "user"), ("ax", "assistant")]


@pytest.mark.parametrize("refused", ["settings", "membership", "lock"])
async def test_a_connection_whose_first_statements_fail_is_closed(
    refused: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of a server that shuts down in that moment."""
    opened: list[psycopg.Connection[Any]] = []
    connect = vars(psycopg.Connection)["connect"].__func__

    def connect_and_note(kind: type[psycopg.Connection[Any]], /, **params: Any) -> psycopg.Connection[Any]:
        opened.append(connect(kind, **params))
        return opened[-1]

    monkeypatch.setattr(psycopg.Connection, "connect", classmethod(connect_and_note))
    places = {"settings": (backend, "SETTINGS"), "membership": (membership, "SETTINGS")}
    module, name = places.get(refused, (backend, "TRY_LOCK_NAME"))
    value = "SELECT 1 / 0 + length(%s)" if refused == "lock" else b"SELECT 1 / 0"
    monkeypatch.setattr(module, name, value)
    with empty_place("postgres", tmp_path) as place:
        host = PostgresBackend(str(place.url), folder=tmp_path, use="host")
        before = len(opened)
        with pytest.raises(StoreError, match="division by zero"):
            host.try_lock("name") if refused == "lock" else host.prepare()
        assert [raw.closed for raw in opened[before:]] == [True]
        host.release()


@pytest.mark.parametrize("kind", [psycopg.OperationalError, partial(OperationalError, "SELECT 1", None)])
def test_a_library_s_log_of_an_outage_has_no_traceback_that_names_the_database(
    kind: Callable[[Any], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("tests.library")
    logger.addFilter(backend.without_database_traceback)
    logger.error("It failed:", exc_info=kind(psycopg.OperationalError("/run/the-database")))
    assert caplog.messages == ["It failed: OperationalError"]
    assert "the-database" not in caplog.text
    logger.error("It failed:", exc_info=ValueError("a bug"))
    assert "ValueError: a bug" in caplog.text
