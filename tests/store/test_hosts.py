"""Hosts that share a database, and which of them executes a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dragoman.errors import Conflict
from dragoman.messages import Message
from dragoman.store.hosts.hosts import HostRecord
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from tests.store.places import Place


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    """A store of a process beside the hosts."""
    async with await place.open(exclusive=False) as opened:
        yield opened


def host(id: str) -> HostRecord:
    return HostRecord(id=id, name="alpha", url="http://127.0.0.1:1", token="t", version="1", started_at=1.0)


async def begin_run(store: Store, id: str = "run_1") -> RunRecord:
    run = RunRecord(id=id, session_id="s", message_id="m", owner="o", started_at=1.0)
    session = Session(id="s", owner="o", created_at=1.0, updated_at=1.0)
    await store.runs.create(run, assistant=Message("m", "assistant"), session=session)
    found = await store.runs.get(id)
    assert found is not None
    return found


async def test_a_host_is_listed_until_it_is_fenced(store: Store) -> None:
    await store.hosts.add(host("a"))
    assert [each.id for each in await store.hosts.list()] == ["a"]
    with pytest.raises(Conflict):
        await store.hosts.add(host("a"))
    assert await store.hosts.fence("a", 2.0)
    assert await store.hosts.list() == []
    record = await store.hosts.get("a")
    assert record is not None
    assert record.fenced_at == 2.0
    await store.hosts.remove("a")
    assert await store.hosts.get("a") is None


async def test_one_of_many_fences_a_host(store: Store) -> None:
    await store.hosts.add(host("a"))
    assert sorted(await asyncio.gather(*(store.hosts.fence("a", 2.0) for _ in range(8)))) == [False] * 7 + [
        True
    ]
    assert not await store.hosts.drain("a", 3.0)


async def test_a_run_moves_to_one_host_and_counts_its_epochs(store: Store) -> None:
    run = await begin_run(store)
    assert (run.host, run.epoch) == (None, 1)
    moved = await asyncio.gather(*(store.runs.move(run, to=name) for name in ("a", "b", "c")))
    winners = [each for each in moved if each is not None]
    assert len(winners) == 1
    assert winners[0].epoch == 2
    assert await store.runs.get(run.id) == winners[0]
    assert await store.runs.list_running(host=winners[0].host or "") == winners
    assert await store.hosts.count_runs() == {winners[0].host: 1}


def test_a_token_of_a_host_is_not_shown() -> None:
    assert "token" not in repr(host("a"))
