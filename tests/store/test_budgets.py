"""Budgets are never overspent under concurrency."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.store.accounts.budgets import (
    NANOS_PER_DOLLAR,
    BudgetRefusal,
    ChargedBudget,
    budget_window,
    window_bounds,
)
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.store.conftest import Clock
from tests.store.places import Place

DAY = "day:2026-11-22"
NOON = 1_795_348_800.0  # 2026-11-22T12:00Z
KEY = ChargedBudget("key:k", DAY, 100)
OWNER = ChargedBudget("owner:ann", "month:2026-11", 150)


def used(id: str, *, at: float = NOON, cost: float | None = 0.25, key: str = "k") -> UsageRecord:
    return UsageRecord(id=id, owner="ann", key_id=key, status="finished", started_at=at, cost=cost)


async def test_of_500_at_once_exactly_100_pass_where_there_is_room_for_100(store: Store) -> None:
    answers = await asyncio.gather(*(store.budgets.reserve([KEY], 1) for _ in range(500)))
    assert answers.count(None) == 100
    assert [answer for answer in answers if answer] == [BudgetRefusal(KEY, 0, 100)] * 400
    assert await store.budgets.get_balance("key:k", DAY) == (0, 100)


async def test_of_500_at_once_through_several_processes_exactly_100_pass(place: Place) -> None:
    stores = [await place.open(exclusive=False) for _ in range(5)]
    reservations = [store.budgets.reserve([KEY, OWNER], 1) for store in stores for _ in range(100)]
    answers = await asyncio.gather(*reservations)
    assert answers.count(None) == 100
    assert await stores[0].budgets.get_balance("owner:ann", "month:2026-11") == (0, 100)
    await asyncio.gather(*(store.close() for store in stores))


async def test_one_budget_without_room_leaves_nothing_reserved_in_the_others(store: Store) -> None:
    assert await store.budgets.reserve([KEY], 60) is None
    assert await store.budgets.reserve([OWNER, KEY], 60) == BudgetRefusal(KEY, 0, 60)
    assert await store.budgets.get_balance("owner:ann", "month:2026-11") == (0, 0)
    assert await store.budgets.reserve([OWNER], 150) is None
    assert await store.budgets.reserve([KEY, OWNER], 1) == BudgetRefusal(OWNER, 0, 150)
    assert await store.budgets.get_balance("key:k", DAY) == (0, 60)


async def test_what_is_settled_is_spent_and_gives_the_rest_back(store: Store) -> None:
    await store.budgets.reserve([KEY, OWNER], 80)
    await store.write(store.budgets.settle_job([KEY, OWNER], reserved=80, spent=30))
    assert await store.budgets.get_balance("key:k", DAY) == (30, 0)
    assert await store.budgets.get_balance("owner:ann", "month:2026-11") == (30, 0)
    assert await store.budgets.reserve([KEY], 71) == BudgetRefusal(KEY, 30, 0)
    assert await store.budgets.reserve([KEY], 70) is None


async def test_a_request_may_cost_more_than_was_reserved_and_then_the_next_is_refused(store: Store) -> None:
    await store.budgets.reserve([KEY], 1)
    await store.write(store.budgets.settle_job([KEY], reserved=1, spent=130))
    assert await store.budgets.reserve([KEY], 1) == BudgetRefusal(KEY, 130, 0)


async def test_a_window_begins_with_what_its_usage_has_cost(store: Store) -> None:
    yesterday = used("u0", at=NOON - 86_400)
    mine = [yesterday, used("u1"), used("u2", cost=None), used("u3", cost=0.1)]
    await store.write(store.usage.insert_missing_job([*mine, used("u4", key="other")]))
    assert await store.budgets.get_balance("key:k", DAY) == (350_000_000, 0)
    assert await store.budgets.get_balance("key:k", "total") == (600_000_000, 0)
    assert await store.budgets.get_balance("owner:ann", "month:2026-11") == (850_000_000, 0)
    charge = ChargedBudget("key:k", DAY, NANOS_PER_DOLLAR)
    assert await store.budgets.reserve([charge], 650_000_001) == BudgetRefusal(charge, 350_000_000, 0)
    assert await store.budgets.reserve([charge], 650_000_000) is None


async def test_usage_written_with_its_settlement_counts_once(store: Store) -> None:
    charge = ChargedBudget("key:k", DAY, NANOS_PER_DOLLAR)
    await store.budgets.reserve([charge], 500_000_000)
    store.enqueue(store.usage.insert_job(used("u1")))
    store.enqueue(store.budgets.settle_job([charge], reserved=500_000_000, spent=250_000_000))
    await store.flush()
    assert await store.budgets.get_balance("key:k", DAY) == (250_000_000, 0)


async def test_settling_where_nobody_has_reserved_leaves_it_to_the_usage_records(store: Store) -> None:
    await store.write(store.budgets.settle_job([KEY], reserved=5, spent=5))
    assert await store.budgets.get_balance("key:k", DAY) == (0, 0)


async def test_what_a_crash_left_reserved_is_free_again_and_what_was_spent_stays(place: Place) -> None:
    async with await place.open() as store:
        await store.budgets.reserve([KEY], 60)
        await store.write(store.budgets.settle_job([KEY], reserved=20, spent=15))
    async with await place.open(exclusive=False) as beside:
        assert await beside.budgets.get_balance("key:k", DAY) == (15, 40)
    async with await place.open() as store:
        assert await store.budgets.get_balance("key:k", DAY) == (15, 0)
        await store.write(store.budgets.settle_job([KEY], reserved=40, spent=1))  # a spool's, from before
        assert await store.budgets.get_balance("key:k", DAY) == (16, 0)


async def test_days_long_past_are_forgotten_and_months_are_not(place: Place, clock: Clock) -> None:
    clock.now = NOON
    async with await place.open(clock=clock) as store:
        await store.budgets.reserve([KEY, OWNER], 1)
        await store.write(store.budgets.settle_job([KEY, OWNER], reserved=1, spent=1))
    clock.now += 100 * 86_400
    async with await place.open(clock=clock) as store:
        assert await store.budgets.get_balance("key:k", DAY) == (0, 0)
        assert await store.budgets.get_balance("owner:ann", "month:2026-11") == (1, 0)


def test_windows_are_days_and_months_in_utc() -> None:
    assert [budget_window(span, NOON) for span in ("day", "month", "total")] == [
        DAY,
        "month:2026-11",
        "total",
    ]
    assert window_bounds(DAY) == (NOON - 43_200, NOON + 43_200)
    assert window_bounds("month:2026-12") == (
        window_bounds("day:2026-12-01")[0],
        window_bounds("day:2027-01-01")[0],
    )
    for wrong in ("week:2026-1", "total:1", "day:", "month:2026-13", ""):
        with pytest.raises(ValueError, match=r"."):
            window_bounds(wrong)


STEPS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.booleans()), max_size=30)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_whatever_is_asked_reservations_never_pass_the_limit(
    store: Store, steps: list[tuple[int, int, bool]]
) -> None:
    start = sum(await store.budgets.get_balance("key:any", "total"))
    charge = ChargedBudget("key:any", "total", start + 100)
    open_ = 0
    for amount, spent, settle in steps:
        before = sum(await store.budgets.get_balance("key:any", "total"))
        refusal = await store.budgets.reserve([charge], amount)
        assert (refusal is None) == (before + amount <= charge.limit)
        if refusal is None and settle:
            await store.write(store.budgets.settle_job([charge], reserved=amount, spent=spent))
        elif refusal is None:
            open_ += amount
    await store.write(store.budgets.settle_job([charge], reserved=open_, spent=0))
    assert (await store.budgets.get_balance("key:any", "total"))[1] == 0
