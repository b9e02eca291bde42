"""Hosts whose Postgres is away, or has a full disk: they go on, and nobody is taken for dead."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from dragoman.store.postgres import membership
from tests.effort import PROFILE
from tests.hosts.conftest import HostCluster, host_id
from tests.postgres_server import shared_server
from tests.serving import Served, ask, text_of
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_ticks")
AWAY = 30.0 if PROFILE == "thorough" else 0.0  # seconds for which Postgres stays away once all have noticed
WORDS = [f"word{number} " for number in range(20)]
DISK_FULL = """
CREATE FUNCTION fail_full() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON sessions EXECUTE FUNCTION fail_full();
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON alembic_version EXECUTE FUNCTION fail_full()
"""
DISK_FREE = "DROP FUNCTION fail_full CASCADE"


async def test_an_answer_goes_on_while_postgres_is_away_and_stays_with_its_host(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RETURN_GRACE", 3_600.0)  # one may be back seconds before the other
    first, second = await hosts.open(2, steps=[{"text": WORDS, "delay": 0.05}])
    answering = asyncio.create_task(first.chat("hello"))
    await until(lambda: hosts.execute("SELECT 1 FROM runs"))
    await asyncio.to_thread(shared_server().stop)
    try:
        await until(lambda: not first.hub.store.database.is_up)
        await until(lambda: not second.hub.store.database.is_up)
        assert (await second.http.get("/readyz")).status_code == 503
        assert (await second.http.get("/healthz")).status_code == 200
        assert text_of(await answering) == "".join(WORDS)
        await asyncio.sleep(AWAY)
        assert (await first.http.get("/healthz")).status_code == 200
    finally:
        await asyncio.to_thread(shared_server().start)
    await until(lambda: first.hub.store.database.is_up and second.hub.store.database.is_up)
    await until(
        lambda: hosts.execute("SELECT status, host, epoch FROM runs") == [("finished", host_id(first), 1)]
    )
    assert hosts.execute("SELECT count(*) FROM hosts WHERE fenced_at IS NULL") == [(2,)]
    assert text_of(await second.chat("more", session="t")) == "".join(WORDS)


async def test_a_postgres_that_does_not_answer_is_down_until_it_does(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "MUTE", 0.5)
    monkeypatch.setattr(membership, "RETURN_GRACE", 3_600.0)
    monkeypatch.setattr(membership, "FROZEN", 3_600.0)  # one may be back seconds before the other
    first, second = await hosts.open(2)
    await asyncio.gather(*(host.messages() for host in (first, second) for _ in range(20)))  # connects all
    with shared_server().frozen():
        waiting = asyncio.create_task(first.http.get("/api/sessions"))
        await until(lambda: not (first.hub.store.database.is_up or second.hub.store.database.is_up))
        assert (await second.http.get("/api/sessions")).status_code == 503
        assert (await waiting).status_code == 503
    await until(lambda: first.hub.store.database.is_up and second.hub.store.database.is_up)
    assert hosts.execute("SELECT count(*) FROM hosts WHERE fenced_at IS NULL") == [(2,)]
    assert text_of(await second.chat("more", session="t")) == "Good day."


async def test_a_full_disk_of_postgres_refuses_writes_and_kills_no_host(hosts: HostCluster) -> None:
    first, second = await hosts.open(2)
    await first.chat("hello")
    hosts.execute(DISK_FULL)
    await check_refusals(first, second)
    hosts.execute(DISK_FREE)
    await check_recovery(hosts)


async def check_refusals(first: Served, second: Served) -> None:
    """A full disk refuses what has to be written, at both hosts; what is there is read."""
    for host in (first, second):
        body = ask("more", session="t")
        body["messages"][0]["parts"][0]["text"] = secrets.token_hex(50_000)  # nothing that compresses
        refused = await host.http.post("/api/chat", json=body)
        assert (refused.status_code, "free some space" in refused.text) == (503, True)
        assert not host.hub.store.database.is_up
        assert len(await host.messages()) == 2


async def check_recovery(hosts: HostCluster) -> None:
    """Both hosts go on by themselves once there is space."""
    first, second = hosts.hosts
    await until(lambda: first.hub.store.database.is_up and second.hub.store.database.is_up)
    assert hosts.execute("SELECT count(*) FROM hosts WHERE fenced_at IS NULL") == [(2,)]
    assert text_of(await second.chat("more", session="t")) == "Good day."
