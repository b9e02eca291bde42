"""Hosts that share a database: who is there, who is dead, and who is not."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dragoman.errors import HostFenced
from dragoman.store.postgres import membership
from dragoman.store.postgres.connection import RawConnection
from dragoman.store.postgres.membership import Membership
from dragoman.store.store import DatabaseSettings, Store
from tests.databases import connect
from tests.hosts import member_process
from tests.hosts.conftest import HostCluster, abandon, host_id
from tests.postgres_server import shared_server
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_ticks")
MANY_TICKS = 30

Reports: TypeAlias = list[tuple[str, str]]


class Members:
    """Stores that are hosts of one database; `reports` has who was told of whose loss."""

    def __init__(self, folder: Path, url: str, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.url = url
        self.stores: list[Store] = []
        self.reports: Reports = []
        self._stack = stack

    async def join(self, number: int = 1, *, folder: Path | None = None) -> list[Membership]:
        """Open more stores."""
        joined = []
        for _ in range(number):
            data = folder or self.folder / f"host-{len(self.stores)}"
            store = await Store.open(data, database=DatabaseSettings(self.url), tolerate_outages=True)
            self.stores.append(await self._stack.enter_async_context(store))
            assert store.membership is not None
            store.membership.on_host_lost = partial(self._report, store.membership.id)
            joined.append(store.membership)
        return joined

    def _report(self, by: str, lost: str) -> None:
        self.reports.append((by, lost))

    def fenced(self) -> list[str]:
        """The ids of the hosts that are fenced, whose own connections are closed by others."""
        with connect(self.url) as connection:
            rows = connection.execute("SELECT id FROM hosts WHERE fenced_at IS NOT NULL")
            return [id for (id,) in rows.fetchall()]


@pytest.fixture
async def members(schema_url: str, tmp_path: Path) -> AsyncIterator[Members]:
    async with AsyncExitStack() as stack:
        yield Members(tmp_path, schema_url, stack)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Membership], int]:
    """How many ticks of a host have been answered."""
    counts: dict[str, int] = {}
    tick = Membership._tick

    def counted(self: Membership) -> None:
        tick(self)
        counts[self.id] = counts.get(self.id, 0) + 1

    monkeypatch.setattr(Membership, "_tick", counted)
    return lambda member: counts.get(member.id, 0)


@contextmanager
def process(members: Members) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A host in a process of its own, and its id."""
    command = [sys.executable, str(member_process.__file__), str(members.folder / "process"), members.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


async def test_hosts_share_a_database_and_each_leaves_it_clean(hosts: HostCluster) -> None:
    first, second = await hosts.open(2)
    await first.chat("hello")
    assert [message["role"] for message in await second.messages()] == ["user", "assistant"]
    assert {host.id for host in await first.hub.store.hosts.list()} == {host_id(first), host_id(second)}
    assert hosts.execute("SELECT host, epoch FROM runs") == [(host_id(first), 1)]
    await hosts.close(first)
    assert hosts.execute("SELECT id FROM hosts") == [(host_id(second),)]
    await second.chat("hello", session="t")


async def test_a_lost_host_is_reported_to_one_of_the_others_until_its_row_is_gone(members: Members) -> None:
    lost, *others = await members.join(3)
    abandon(lost)
    await until(lambda: len(members.reports) >= 3)
    assert len(set(members.reports)) == 1
    assert members.reports[0][1] == lost.id
    await members.stores[1].hosts.remove(lost.id)
    assert {host.id for host in await members.stores[1].hosts.list()} == {member.id for member in others}


async def test_a_host_takes_over_from_a_lost_one(hosts: HostCluster) -> None:
    lost, other = await hosts.open(2)
    hosts.lose(lost)
    await until(lambda: hosts.execute("SELECT id FROM hosts") == [(host_id(other),)])
    with pytest.raises(HostFenced):
        await lost.hub.store.session_deletion.delete("s")


async def test_a_killed_process_is_dead_at_once_on_its_own_machine(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "GRACE", 3_600.0)
    await members.join()
    with process(members) as (killed, id):
        killed.kill()
        killed.wait()
        await until(lambda: members.reports)
        assert members.reports[0][1] == id


async def test_an_earlier_process_with_the_number_of_this_one_is_dead_at_once(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "GRACE", 3_600.0)
    [first] = await members.join()
    with connect(members.url) as connection:
        insert = "INSERT INTO hosts (id, name, version, started_at) VALUES (%s, 'container', '1', 1.0)"
        connection.execute(insert, (membership.new_host_id(),))
    [second] = await members.join()
    assert {host.id for host in await members.stores[1].hosts.list()} == {first.id, second.id}


async def test_a_host_of_another_container_with_the_name_of_this_machine_is_not_dead_at_once(
    members: Members, monkeypatch: pytest.MonkeyPatch, ticks: Callable[[Membership], int]
) -> None:
    monkeypatch.setattr(membership, "GRACE", 3_600.0)
    machine = membership.machine_name()[: membership.MAX_MACHINE]
    others = [
        f"{machine}-{number}-{end}" for number in (1, 4_194_305) for end in ("5eed5e1dfeed42", "1dfeed42")
    ]
    await members.join()
    with connect(members.url) as connection:
        insert = "INSERT INTO hosts (id, name, version, started_at) VALUES (%s, 'container', '1', 1.0)"
        for id in others:
            connection.execute(insert, (id,))
    _, last = await members.join(2)
    await until(lambda: ticks(last) > MANY_TICKS)
    assert members.fenced() == []


async def test_a_stopped_process_is_dead_although_it_has_its_lock(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(members) as (stopped, id):
        stopped.send_signal(signal.SIGSTOP)
        await members.join()
        monkeypatch.setattr(membership, "FROZEN", 0.3)
        await until(lambda: members.reports)
        assert members.reports[0][1] == id
        stopped.send_signal(signal.SIGCONT)


async def test_a_process_whose_event_loop_does_not_answer_is_dead(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "STALL", 0.5)
    monkeypatch.setattr(membership, "FROZEN", 1.0)
    entered, may_end = threading.Event(), threading.Event()
    ids: list[str] = []

    async def block() -> None:
        async with await Store.open(members.folder / "b", database=DatabaseSettings(members.url)) as store:
            ids.append(store.host_id or "")
            entered.set()
            may_end.wait(timeout=60.0)

    blocked = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(block())))
    await until(entered.is_set)
    await members.join()
    await until(lambda: members.reports)
    assert members.reports[0][1] == ids[0]
    may_end.set()
    await blocked


async def test_hosts_whose_connections_are_cut_lock_again_and_nobody_is_taken_for_dead(
    members: Members, monkeypatch: pytest.MonkeyPatch, ticks: Callable[[Membership], int]
) -> None:
    monkeypatch.setattr(membership, "RETURN_GRACE", 3_600.0)
    joined = await members.join(3)
    for _ in range(3):
        shared_server().cut_connections()
        before = [ticks(member) for member in joined]
        await until(
            lambda before=before: all(  # type: ignore[misc]
                ticks(member) > count + MANY_TICKS for member, count in zip(joined, before, strict=True)
            )
        )
    assert members.fenced() == []
    assert members.reports == []


async def test_a_host_that_comes_back_late_after_all_connections_were_cut_is_not_taken_for_dead(
    members: Members, monkeypatch: pytest.MonkeyPatch, ticks: Callable[[Membership], int]
) -> None:
    monkeypatch.setattr(membership, "RETURN_GRACE", 3_600.0)
    first, late = await members.join(2)
    may_connect = threading.Event()
    connect = late._connect

    def connect_late(name: str) -> RawConnection:
        may_connect.wait()
        return connect(name)

    late._connect = connect_late
    shared_server().cut_connections()
    await until(lambda: late._raw is None)
    before = ticks(first)
    await until(lambda: ticks(first) > before + MANY_TICKS)  # many times the grace
    may_connect.set()
    before = ticks(late)
    await until(lambda: ticks(late) > before + MANY_TICKS)
    assert members.fenced() == []
    assert members.reports == []


async def test_nobody_is_taken_for_dead_when_postgres_was_away_or_restarted(
    members: Members, monkeypatch: pytest.MonkeyPatch, ticks: Callable[[Membership], int]
) -> None:
    monkeypatch.setattr(membership, "RETURN_GRACE", 3_600.0)
    joined = await members.join(3)
    await asyncio.to_thread(shared_server().stop)
    try:
        await until(lambda: all(member._raw is None for member in joined))
    finally:
        await asyncio.to_thread(shared_server().start)
    before = [ticks(member) for member in joined]
    await until(
        lambda: all(ticks(member) > count + MANY_TICKS for member, count in zip(joined, before, strict=True))
    )
    await until(lambda: all(store.database.is_up for store in members.stores))
    assert members.fenced() == []
    assert members.reports == []


async def test_a_host_that_starts_before_its_database_joins_when_it_is_up(members: Members) -> None:
    await asyncio.to_thread(shared_server().stop)
    try:
        (member,) = await members.join()
    finally:
        await asyncio.to_thread(shared_server().start)
    await until(lambda: members.stores[0].database.is_up)
    assert [host.id for host in await members.stores[0].hosts.list()] == [member.id]


async def test_another_host_goes_on_when_the_fencer_dies(members: Members) -> None:
    lost, *others = await members.join(4)
    for member in others[:2]:
        member.on_host_lost = lambda _, member=member: abandon(member)
    abandon(lost)
    abandon(others[0])
    last = others[2].id
    await until(lambda: (last, lost.id) in members.reports)
    await until(lambda: (last, others[0].id) in members.reports)


async def test_clocks_that_are_wrong_or_jump_kill_nobody(
    members: Members, monkeypatch: pytest.MonkeyPatch, ticks: Callable[[Membership], int]
) -> None:
    now = iter(range(0, 10**9, 10_000))
    monkeypatch.setattr("dragoman.store.postgres.membership.time.time", lambda: float(next(now)))
    joined = await members.join(2)
    await until(lambda: all(ticks(member) > MANY_TICKS for member in joined))
    monkeypatch.undo()
    assert members.fenced() == []


async def test_of_two_hosts_that_take_each_other_for_dead_one_lives(
    members: Members, monkeypatch: pytest.MonkeyPatch, ticks: Callable[[Membership], int]
) -> None:
    joined = await members.join(2)
    find_dead, both = Membership._find_dead, threading.Barrier(2)

    def find_dead_at_once(self: Membership, *arguments: Any) -> Any:
        found = find_dead(self, *arguments)
        with suppress(threading.BrokenBarrierError):  # the other one is fenced
            both.wait(timeout=1.0)
        return found

    monkeypatch.setattr(Membership, "_find_dead", find_dead_at_once)
    monkeypatch.setattr(membership, "GRACE", 0.0)
    monkeypatch.setattr(membership, "FROZEN", 0.0)
    await until(members.fenced)
    before = {member.id: ticks(member) for member in joined}
    await until(lambda: any(ticks(member) > before[member.id] + 2 for member in joined))
    assert len(members.fenced()) == 1


async def test_hosts_of_one_data_folder_have_parts_of_it_and_replay_what_a_killed_one_left(
    members: Members,
) -> None:
    shared = members.folder / "shared"
    await members.join(2, folder=shared)
    first, second = (store.host_folder for store in members.stores)
    assert (first, second) == (shared, shared / "hosts" / "2")
    left = shared / "hosts" / "7"
    left.mkdir()
    (left / "usage.spool").write_text("{}")
    await members.join(1, folder=shared)
    assert members.stores[2].host_folder == left
