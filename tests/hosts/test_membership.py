"""Hosts that share a database: who is there, who is dead, and who is not."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from dragoman.errors import HostFenced
from dragoman.store.postgres.membership import Membership
from dragoman.store.store import DatabaseSettings, Store
from tests.hosts.conftest import HostCluster, abandon, host_id, until

pytestmark = pytest.mark.usefixtures("quick_ticks")


def membership_of(store: Store) -> Membership:
    assert store.membership is not None
    return store.membership


def report(reports: list[tuple[str, str]], by: str, lost: str) -> None:
    reports.append((by, lost))


async def test_hosts_share_a_database_and_each_leaves_it_clean(hosts: HostCluster) -> None:
    first, second = await hosts.open(2)
    await first.chat("hello")
    assert [message["role"] for message in await second.messages()] == ["user", "assistant"]
    assert {host.id for host in await first.hub.store.hosts.list()} == {host_id(first), host_id(second)}
    assert hosts.execute("SELECT host, epoch FROM runs") == [(host_id(first), 1)]
    await hosts.close(first)
    assert hosts.execute("SELECT id FROM hosts") == [(host_id(second),)]
    await second.chat("hello", session="t")


async def test_a_lost_host_is_reported_to_one_of_the_others_until_its_row_is_gone(
    schema_url: str, tmp_path: Path
) -> None:
    reports: list[tuple[str, str]] = []
    async with AsyncExitStack() as stack:
        stores = []
        for number in range(3):
            opened = await Store.open(tmp_path / str(number), database=DatabaseSettings(schema_url))
            stores.append(await stack.enter_async_context(opened))
        lost, *others = (membership_of(store) for store in stores)
        for member in others:
            member.on_host_lost = partial(report, reports, member.id)
        abandon(lost)
        await until(lambda: len(reports) >= 3)
        assert {id for _, id in reports} == {lost.id}
        assert len({name for name, _ in reports}) == 1
        await stores[1].hosts.remove(lost.id)
        assert {host.id for host in await stores[1].hosts.list()} == {member.id for member in others}


async def test_a_host_takes_over_from_a_lost_one(hosts: HostCluster) -> None:
    lost, other = await hosts.open(2)
    hosts.lose(lost)
    await until(lambda: hosts.execute("SELECT id FROM hosts") == [(host_id(other),)])
    with pytest.raises(HostFenced):
        await lost.hub.store.sessions.delete("s")
