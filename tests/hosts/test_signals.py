"""Signals: what one host sends reaches the others of its schema, and after a gap all look."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from dragoman.store.hosts.signals import SignalName
from dragoman.store.store import DatabaseSettings, Store
from tests.postgres_server import shared_server
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


async def test_one_process_alone_sends_nothing(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "a") as store:
        heard = listen(store)
        store.signals.send("queue", "s")
        assert store.signals.post is None
        assert heard["queue"] == []
