"""Hosts whose connections to Postgres break in the middle of a turn, or do not break and carry nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import httpx2
import psycopg
import pytest

from dragoman.store.postgres import connection_watch, membership
from dragoman.store.postgres.connection import BEGIN_WRITING, PostgresConnection
from tests.effort import rounds
from tests.hosts import gate
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.postgres_proxy import CommitFault, ConnectionUse, PostgresProxy, refusal
from tests.hosts.test_remote_runs import OPERATIONS
from tests.postgres_server import shared_server
from tests.serving import Served, ask, frames_in, text_of
from tests.waiting import poll, until

pytestmark = pytest.mark.usefixtures("quick_ticks")
STEPS: list[dict[str, Any]] = [
    {"tools": [{"name": "lab_note", "input": {"name": "it"}}]},
    {"text": ["one ", "two"]},
]
OPTIONS: Any = {"steps": STEPS, "operations": [str(OPERATIONS)], "pinned": ["lab.note"]}


@pytest.fixture
async def answering(hosts: HostCluster, proxy: PostgresProxy) -> Served:
    """A host behind the proxy that has answered once; its next commit is the first."""
    gate.MADE.clear()
    [host] = await hosts.open(1, **{**OPTIONS, "database": proxy.url})
    assert text_of(await host.chat("hello", session="first")) == "one two"
    await until_rows(hosts, "usage", 2)
    await host.hub.store.flush()
    gate.MADE.clear()
    proxy.commits = 0
    return host


def count_rows(hosts: HostCluster) -> dict[str, int]:
    tables = ("sessions", "messages", "runs", "calls", "usage", "parts")
    return {name: hosts.execute(f"SELECT count(*) FROM {name}")[0][0] for name in tables}


async def until_rows(hosts: HostCluster, table: str, count: int) -> None:
    """Wait until a table has so many rows: usage is written last."""
    await until(lambda: hosts.execute(f"SELECT count(*) FROM {table}") == [(count,)])


@pytest.mark.parametrize("fault", ["unsent", "unanswered"])
async def test_a_turn_is_stored_once_whichever_of_its_commits_is_cut_off(
    hosts: HostCluster, proxy: PostgresProxy, answering: Served, fault: CommitFault
) -> None:
    before = count_rows(hosts)
    faults: dict[int, CommitFault] = {}
    proxy.on_commit = faults.get
    total, done = 8, 0
    for number in range(1, total + 1):
        proxy.commits = 0
        faults[number] = fault
        gate.MADE.clear()
        frames = await answering.chat("go", session=f"s{number}")
        assert text_of(frames) == "one two", (number, frames)
        assert frames[-1]["finishReason"] == "stop"
        assert gate.MADE == ["note it"], number
        await answering.hub.store.flush()
        done += proxy.commits >= number
        faults.clear()
        await until_rows(hosts, "usage", before["usage"] * (number + 1))
        assert count_rows(hosts) == {name: count * (number + 1) for name, count in before.items()}
    assert done >= 3


async def ended(host: Served, session: str) -> dict[str, Any] | None:
    """The last message of a session once it has no active run, and no question about a call."""
    for approval in (await host.http.get("/api/approvals?status=pending")).json()["approvals"]:
        await host.http.post(f"/api/approvals/{approval['id']}", json={"answer": "done"})
    runs = await host.runs(session)
    if any(run.status == "running" for run in runs) or (runs and runs[-1].finish_reason == "tool-calls"):
        return None
    messages = await host.messages(session)
    return messages[-1] if messages else {"parts": []}


@pytest.mark.parametrize("number", range(1, 1 + rounds(quick=3, thorough=6)))
async def test_a_host_that_is_cut_off_at_a_commit_writes_nothing_once_others_have_its_run(
    hosts: HostCluster, proxy: PostgresProxy, answering: Served, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    [other] = await hosts.open(1, **OPTIONS)
    reached: list[int] = []

    def freeze(at: int) -> CommitFault | None:
        reached.append(at)
        return "frozen" if at == number else None

    proxy.on_commit = freeze
    posted = asyncio.create_task(answering.http.post("/api/chat", json=ask("go")))
    await until(lambda: number in reached or posted.done())
    if posted.done():  # the turn has fewer commits
        proxy.flows.clear()
    monkeypatch.setattr(membership, "FROZEN", 0.5)  # not before: the other one may be slow for a moment
    lost = host_id(answering)
    living = f"SELECT id FROM hosts WHERE id = '{lost}' AND fenced_at IS NULL"
    await until(lambda: not hosts.execute(living))
    last = await poll(lambda: ended(other, "s"))
    texts = [part["text"] for part in last["parts"] if "text" in part]
    made = list(gate.MADE)
    proxy.flows.set()
    await until(lambda: answering.hub.fence.is_closed and not answering.hub.runs.active_count)
    with suppress(httpx2.HTTPError):
        await posted
    assert (await answering.http.get("/api/sessions")).status_code == 503
    assert made == gate.MADE
    assert made.count("note it") <= 1
    assert await ended(other, "s") == last
    # Another commit of the host may have come before those of the turn.
    has_begun = hosts.execute("SELECT count(*) FROM runs")[0][0] > 1
    assert texts == (["one two"] if has_begun else []), last
    assert has_begun or number < 3
    assert text_of(await other.chat("more")) == "one two"


async def test_a_server_that_takes_no_further_connection_is_used_by_those_there_are(
    hosts: HostCluster, proxy: PostgresProxy, answering: Served
) -> None:
    assert (await answering.http.get("/api/sessions")).status_code == 200
    proxy.refusal = refusal("53300", "sorry, too many clients already")
    reads = await asyncio.gather(*(answering.http.get("/api/sessions") for _ in range(20)))
    assert {each.status_code for each in reads} == {200}
    assert text_of(await answering.chat("go")) == "one two"
    assert answering.hub.store.database.is_up
    proxy.cut()
    refused = await answering.http.post("/api/chat", json=ask("more"))
    assert refused.status_code == 503, refused.text
    proxy.refusal = None
    await until(lambda: answering.hub.store.database.is_up)
    assert text_of(await answering.chat("again")) == "one two"
    assert hosts.execute("SELECT count(*) FROM hosts WHERE fenced_at IS NULL") == [(1,)]


@contextmanager
def standby() -> Iterator[None]:
    """A block in which the server accepts no writes, as after a failover."""
    server = shared_server()
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    server.execute("SELECT pg_reload_conf()")
    until_read_only("on")
    try:
        yield
    finally:
        server.execute("SET default_transaction_read_only = off")
        server.execute("ALTER SYSTEM RESET default_transaction_read_only")
        server.execute("SELECT pg_reload_conf()")
        until_read_only("off")


def until_read_only(setting: str) -> None:
    """Wait until the server has read its configuration again, as its next connections show."""
    shown = None
    while shown != (setting,):
        with psycopg.connect(shared_server().url(), autocommit=True) as raw:
            shown = raw.execute("SHOW default_transaction_read_only").fetchone()


async def test_a_server_that_has_become_a_standby_refuses_writes_until_there_is_a_primary(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RETURN_GRACE", 3_600.0)  # one may be back seconds before the other
    gate.MADE.clear()
    first, second = await hosts.open(2, **OPTIONS)
    await first.chat("hello")

    async def names_the_cause(host: Served) -> bool:
        refused = await host.http.post("/api/chat", json=ask("more", session="t"))
        assert refused.status_code == 503, refused.text
        return "primary" in refused.text

    with standby():
        for host in (first, second, first):
            await until(partial(names_the_cause, host))  # at first it may name a connection that was cut
            assert len(await host.messages()) == 2
            shared_server().cut_connections()
    await until(lambda: first.hub.store.database.is_up and second.hub.store.database.is_up)
    assert hosts.execute("SELECT count(*) FROM hosts WHERE fenced_at IS NULL") == [(2,)]
    assert text_of(await second.chat("more", session="t")) == "one two"
    assert gate.MADE == ["note it"] * 2


RAISE = """
CREATE SEQUENCE failures;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'as injected' USING ERRCODE = '{state}'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER injected BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION fail();
"""
LET_BE = "DROP FUNCTION fail CASCADE; DROP SEQUENCE failures"


@pytest.mark.parametrize("state", ["40001", "40P01"], ids=["serialization failure", "deadlock"])
async def test_a_transaction_that_postgres_rolls_back_is_repeated_wherever_in_a_turn(
    hosts: HostCluster, state: str
) -> None:
    [host] = await hosts.open(1, **OPTIONS)
    for number, table in enumerate(("sessions", "runs", "messages", "parts", "calls", "usage"), start=1):
        gate.MADE.clear()
        hosts.execute(RAISE.format(table=table, state=state, times=3))
        try:
            assert text_of(await host.chat("go", session=table)) == "one two"
        finally:
            await host.hub.store.flush()
            hosts.execute(LET_BE)
        assert gate.MADE == ["note it"]
        assert [run.status for run in await host.runs(table)] == ["finished"]
        await until_rows(hosts, "usage", 2 * number)
        assert len(await host.messages(table)) == 2


async def test_a_statement_that_takes_too_long_fails_typed_and_its_session_goes_on(
    hosts: HostCluster,
) -> None:
    """As with a `statement_timeout` of the server or of the role."""
    [host] = await hosts.open(1, **OPTIONS)
    for table in ("sessions", "runs", "messages", "parts", "calls"):
        hosts.execute(RAISE.format(table=table, state="57014", times=1_000))
        try:
            response = await host.http.post("/api/chat", json=ask("go", session=table))
            if response.status_code == 200:
                assert frames_in(response.text)[-1]["type"] == "finish"
            else:
                assert (response.status_code, response.json()["error"]["code"]) == (503, "store"), (
                    response.text
                )
        finally:
            hosts.execute(LET_BE)
        assert host.hub.runs.active_count == 0
        await until(lambda: not hosts.execute("SELECT 1 FROM runs WHERE status = 'running'"))
        assert text_of(await host.chat("more", session=table)) == "one two", table


@pytest.mark.usefixtures("hosts")
async def test_a_connection_that_carries_nothing_any_more_is_replaced_while_others_work(
    proxy: PostgresProxy, answering: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a firewall, or a pooler, that has forgotten it."""
    monkeypatch.setattr(connection_watch, "SILENT", 1.0)
    uses: Sequence[ConnectionUse] = ("writer", "reader")
    for number, use in enumerate(uses):
        assert proxy.stall(use)
        assert text_of(await answering.chat("go", session=f"s{number}")) == "one two"
        assert len(await answering.messages(f"s{number}")) == 2
        assert "carried nothing" in caplog.text
        caplog.clear()
    assert answering.hub.store.database.is_up
    assert gate.MADE == ["note it"] * 2


async def test_a_statement_that_the_server_executes_is_let_be(
    schema_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_watch, "SILENT", 0.0)
    watch = connection_watch.ConnectionWatch()
    with psycopg.connect(schema_url, autocommit=True) as raw:
        raw.execute("SELECT pg_advisory_lock(1)")
        slow = PostgresConnection(lambda: psycopg.connect(schema_url, autocommit=True), begin=BEGIN_WRITING)
        watch.add(slow)
        waiting = asyncio.create_task(asyncio.to_thread(slow.fetch_one, "SELECT 1, pg_advisory_lock(1)", {}))
        state = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        await until(lambda: raw.execute(state, (slow.server_process,)).fetchone() == (1,))
        watch.check(raw)
        raw.execute("SELECT pg_advisory_unlock(1)")
        row = await waiting
        assert row is not None
        assert row[0] == 1
        slow.close()
