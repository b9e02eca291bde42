"""What hosts reserve of one budget: never more than there is, and a dead host's part comes back once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from dragoman.store.accounts.budgets import ChargedBudget
from dragoman.store.hosts.hosts import HostRecord
from dragoman.store.store import Store
from tests.effort import rounds
from tests.store.places import Place

KEY = ChargedBudget("key:k", "day:2026-11-22", 1_000)
OWNER = ChargedBudget("owner:ann", "month:2026-11", 1_500)
IDS = ("host_a", "host_b", "host_c")


async def join(place: Place, id: str) -> Store:
    """A store as a host has it, beside others."""
    store = await place.open(exclusive=False)
    await store.hosts.add(HostRecord(id=id, name=id, version="1", started_at=1.0))
    store.budgets.host_id = id
    return store


@pytest.fixture
async def stores(place: Place) -> AsyncIterator[Sequence[Store]]:
    found = [await join(place, id) for id in IDS]
    yield found
    await asyncio.gather(*(store.close() for store in found))


async def parts(store: Store) -> dict[str, int]:
    """What the hosts have reserved of the key's budget."""

    sql = "SELECT host, reserved FROM host_reservations WHERE scope = 'key:k'"
    rows = await store.database.read(lambda connection: connection.fetch_all(sql, {}))
    return {str(host): int(reserved) for host, reserved in rows}


async def test_hosts_that_race_for_a_budget_never_overspend_it(stores: Sequence[Store]) -> None:
    rng = random.Random(7)
    spent = 0

    async def use(store: Store) -> bool:
        nonlocal spent
        amount = rng.randint(1, 20)
        if await store.budgets.reserve([KEY, OWNER], amount) is not None:
            return False
        cost = rng.randint(0, amount)
        spent += cost
        await store.write(store.budgets.settle_job([KEY, OWNER], reserved=amount, spent=cost))
        return True

    for _ in range(rounds(quick=4, thorough=40)):
        await asyncio.gather(*(use(store) for store in stores for _ in range(60)))
        balances = [await store.budgets.get_balance(KEY.scope, KEY.window) for store in stores]
        assert balances == [(spent, 0)] * 3
    assert 0 < spent <= KEY.limit
    assert set((await parts(stores[0])).values()) <= {0}


async def test_a_dead_hosts_part_comes_back_once_and_the_others_keep_theirs(stores: Sequence[Store]) -> None:
    for store, amount in zip(stores, (100, 20, 3), strict=True):
        assert await store.budgets.reserve([KEY, OWNER], amount) is None
        assert await store.budgets.reserve([KEY], amount) is None
    await stores[1].write(stores[1].budgets.settle_job([KEY], reserved=20, spent=7))
    await stores[0].hosts.fence("host_a", 2.0)
    await asyncio.gather(*(store.budgets.release_host("host_a") for store in stores[1:] for _ in range(5)))
    assert await stores[1].budgets.get_balance(KEY.scope, KEY.window) == (7, 20 + 6)
    assert await stores[1].budgets.get_balance(OWNER.scope, OWNER.window) == (0, 20 + 3)
    assert await parts(stores[1]) == {"host_b": 20, "host_c": 6}


async def test_a_refused_reservation_is_nobodys(stores: Sequence[Store]) -> None:
    small = ChargedBudget("owner:ann", "month:2026-11", 10)
    assert await stores[0].budgets.reserve([KEY, small], 11) is not None
    assert await stores[0].budgets.get_balance(KEY.scope, KEY.window) == (0, 0)
    assert await parts(stores[0]) == {}


async def test_a_host_that_starts_clears_only_what_no_living_host_has(
    place: Place, stores: Sequence[Store]
) -> None:
    for store, amount in zip(stores, (100, 20, 3), strict=True):
        assert await store.budgets.reserve([KEY], amount) is None
    stores[2].budgets.host_id = None  # a hub of an earlier version
    assert await stores[2].budgets.reserve([KEY], 400) is None
    await stores[0].hosts.fence("host_a", 2.0)
    late = await join(place, "host_d")
    late.budgets._recovered = False
    assert await late.budgets.reserve([KEY], 1) is None
    assert await late.budgets.get_balance(KEY.scope, KEY.window) == (0, 20 + 3 + 1)
    await late.budgets.release_lost_hosts()
    assert await parts(late) == {"host_b": 20, "host_c": 3, "host_d": 1}
    await late.close()
