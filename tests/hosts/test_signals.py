"""Signals: what one host sends reaches the others of its schema, and after a gap all look."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from dragoman.store.hosts.signals import SignalName
from dragoman.store.postgres import signal_connection
from dragoman.store.store import DatabaseSettings, Store
from tests.hosts.conftest import HostCluster
from tests.postgres_server import shared_server
from tests.serving import Served, ask, text_of
from tests.waiting import until

NAMES: tuple[SignalName, ...] = ("queue", "grants", "begun")


def listen(store: Store) -> dict[str, list[str | None]]:
    """Note what a store hears."""
    heard: dict[str, list[str | None]] = defaultdict(list)
    for name in NAMES:
        store.signals.subscribe(name, heard[name].append)
    return heard


async def until_heard(sender: Store, heard: dict[str, list[str | None]]) -> None:
    """Wait until what a store sends is heard."""

    def is_heard() -> bool:
        sender.signals.send("begun", "ready")
        return "ready" in heard["begun"]

    await until(is_heard)
    for noted in heard.values():
        noted.clear()


async def test_a_signal_reaches_every_other_host_of_its_schema_and_not_its_sender(
    tmp_path: Path, schema_url: str
) -> None:
    settings = DatabaseSettings(schema_url)
    with shared_server().schema() as elsewhere:
        other = DatabaseSettings(shared_server().url(elsewhere))
        async with (
            await Store.open(tmp_path / "a", database=settings) as first,
            await Store.open(tmp_path / "b", database=settings) as second,
            await Store.open(tmp_path / "c", database=other) as stranger,
        ):
            heard = [listen(store) for store in (first, second, stranger)]
            await until_heard(first, heard[1])
            await until_heard(second, heard[0])
            for id in ("s'1", "ö"):
                first.signals.send("queue", id)
            first.signals.send("grants", "x" * 10_000)  # too long for one: subscribers look
            second.signals.send("grants", "mine")
            await until(lambda: heard[1]["grants"] and heard[0]["grants"])
            assert (heard[0]["queue"], heard[0]["grants"]) == ([], ["mine"])
            assert (heard[1]["queue"], heard[1]["grants"]) == (["s'1", "ö"], [None])
            assert {*heard[2]["queue"], *heard[2]["grants"]} <= {None}


async def test_a_host_whose_connections_were_cut_looks_and_hears_again(
    tmp_path: Path, schema_url: str
) -> None:
    settings = DatabaseSettings(schema_url)
    async with (
        await Store.open(tmp_path / "a", database=settings) as first,
        await Store.open(tmp_path / "b", database=settings) as second,
    ):
        heard = listen(second)
        await until_heard(first, heard)
        shared_server().cut_connections()
        await until(lambda: None in heard["queue"])
        await until_heard(first, heard)


FILL = """
CREATE TABLE queue_of_server (is_full bool);
INSERT INTO queue_of_server VALUES (true);
CREATE FUNCTION notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT is_full FROM queue_of_server) THEN
        RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
    END IF;
    PERFORM pg_notify($1, $2);
END $$
"""


async def test_signals_wait_while_the_queue_of_the_server_is_full_and_turns_go_on(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a session that listens stays in a transaction: the server refuses to commit notifications."""
    first, second = await hosts.open(2)
    heard = listen(second.hub.store)
    await until_heard(first.hub.store, heard)
    hosts.execute(FILL)
    monkeypatch.setattr(
        signal_connection, "NOTIFY", signal_connection.NOTIFY.replace("pg_notify(", "notify(")
    )
    first.hub.store.signals.send("grants", "kept")
    await until(lambda: "idle in a transaction" in caplog.text)
    assert text_of(await first.chat("go")) == text_of(await second.chat("more")) == "Good day."
    sent = await first.http.post("/api/chat", json=ask("later", background=True))
    assert sent.status_code == 202, sent.text
    await until(lambda: has_messages(second, 6))
    first.hub.store.signals.send("grants", "later")
    assert heard["grants"] == []
    hosts.execute("UPDATE queue_of_server SET is_full = false")
    await until(lambda: heard["grants"] == ["kept", "later"])
    assert caplog.text.count("idle in a transaction") <= 2, "each host says it once"


async def has_messages(host: Served, count: int) -> bool:
    return len(await host.messages()) == count


async def test_one_process_alone_sends_nothing(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "a") as store:
        heard = listen(store)
        store.signals.send("queue", "s")
        assert store.signals.post is None
        assert heard["queue"] == []
