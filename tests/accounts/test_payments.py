"""Payments of model calls: admission, cost and the usage record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from dragoman.accounts.limit_table import LimitTable
from dragoman.accounts.meter import Admission, Meter
from dragoman.accounts.price import Price, TokenRates
from dragoman.accounts.price_lookup import PriceList
from dragoman.accounts.request_size import AnswerBounds
from dragoman.accounts.spool import Spool
from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, LimitReached
from dragoman.events import Usage
from dragoman.identity import Identity
from dragoman.store.store import Store
from dragoman.usage_limits import Limits
from dragoman.usage_record import UsageRecord
from tests.accounts.conftest import NOON, Clock

ANN = Identity(owner="ann", key_id="k")
CENT = Price(name="test/cent", rates=(TokenRates(input=0, output=10_000_000_000),))  # one token, one cent
RECORD = UsageRecord(id="u", owner="ann", key_id="k", status="finished", started_at=NOON)
DAY, TOTAL = "day:2026-11-22", "total"


@pytest.fixture
async def meter(store: Store, tmp_path: Path, clock: Clock) -> AsyncIterator[Meter]:
    spool = Spool(tmp_path / "usage.spool")
    async with Meter(store, PriceList(), spool=spool, clock=clock, monotonic=clock) as made:
        yield made


def limited(meter: Meter, limits: Limits, **others: Limits) -> None:
    meter.reconfigure(LimitTable(default_key=limits, by_owner=others), meter.prices)


async def ask(meter: Meter, *, price: Price | None = CENT, tokens: int = 1) -> Admission:
    return await meter.admit(ANN, price=price, input_tokens=tokens, answer=AnswerBounds(1))


def answer(number: int = 0, *, output: int | None = 1, status: str = "finished") -> UsageRecord:
    return replace(RECORD, id=f"u{number}", status=status, tokens=Usage(output_tokens=output))


async def test_every_request_is_written_down_with_its_cost(meter: Meter, store: Store) -> None:
    price = Price(name="openai/gpt-4o", rates=(TokenRates(input=2_500_000, output=10_000_000),))
    admission = await ask(meter, price=price)
    tokens = Usage(input_tokens=1_000, output_tokens=200, estimated=True)
    settled = admission.settle(replace(RECORD, tokens=tokens))
    assert settled == replace(RECORD, tokens=tokens, cost=0.0045, price_model="openai/gpt-4o")
    await meter.ledger.close()
    assert await store.usage.list() == [settled]


async def test_a_cost_that_nobody_knows_stays_unknown(meter: Meter) -> None:
    for price in (None, CENT):
        admission = await ask(meter, price=price)
        assert admission.settle(RECORD) == RECORD


async def test_a_request_is_settled_once(meter: Meter, store: Store) -> None:
    heard: list[UsageRecord] = []
    meter.observers.append(heard.append)
    admission = await ask(meter)
    first = admission.settle(answer(output=2))
    assert admission.settle(answer(output=9)) is first
    admission.release()
    await meter.ledger.close()
    assert heard == await store.usage.list() == [first]


async def test_the_price_of_the_model_that_answered_is_the_one_that_is_paid(meter: Meter) -> None:
    admission = await ask(meter, price=None)
    settled = admission.settle(answer(output=3), price=CENT)
    assert (settled.cost, settled.price_model) == (0.03, "test/cent")
    admission = await ask(meter, price=CENT)
    assert admission.settle(answer(output=3), price=None).cost is None


async def test_who_has_no_limits_is_let_in_without_waiting(meter: Meter, store: Store) -> None:
    await store.close()
    for identity in (ANN, Identity(owner="local"), Identity(owner="x", key_id="y", limits=Limits())):
        letting = meter.admit(identity, price=CENT)
        with pytest.raises(StopIteration):
            letting.send(None)


async def test_a_limit_says_whose_it_is_and_when_to_come_again(meter: Meter, clock: Clock) -> None:
    limited(meter, Limits(requests_per_minute=1))
    await ask(meter)
    clock.now += 15
    with pytest.raises(LimitReached, match="the key 'k' is limited to 1 requests a minute") as refused:
        await ask(meter)
    assert refused.value.retry_after == 45
    clock.now += 45
    await ask(meter)


async def test_an_owner_has_limits_over_all_keys(meter: Meter) -> None:
    limited(meter, Limits(), ann=Limits(parallel=2))
    for key in ("k", "l"):
        await meter.admit(Identity(owner="ann", key_id=key), price=None)
    await meter.admit(Identity(owner="bob", key_id="m"), price=None)
    with pytest.raises(LimitReached, match="the owner 'ann' is limited to 2 requests at the same time"):
        await meter.admit(Identity(owner="ann", key_id="n"), price=None)


async def test_a_keys_own_limits_stand_instead_of_the_usual_ones(meter: Meter) -> None:
    limited(meter, Limits(parallel=1))
    own = Identity(owner="ann", key_id="k", limits=Limits(parallel=2))
    await meter.admit(own, price=None)
    await meter.admit(own, price=None)
    with pytest.raises(LimitReached):
        await meter.admit(own, price=None)


async def test_the_end_of_a_request_makes_room(meter: Meter) -> None:
    limited(meter, Limits(parallel=1, tokens_per_minute=100))
    (await ask(meter, tokens=90)).release()
    (await ask(meter, tokens=90)).settle(answer(output=None, status="error"))
    (await ask(meter, tokens=90)).settle(replace(RECORD, tokens=Usage(total_tokens=60)))
    with pytest.raises(LimitReached, match="is limited to 100 tokens a minute") as refused:
        await ask(meter, tokens=41)
    assert refused.value.transient
    with pytest.raises(LimitReached, match="this request alone has about 101") as refused:
        await ask(meter, tokens=101)
    assert not refused.value.transient


async def test_new_limits_know_what_was_counted_before(meter: Meter) -> None:
    limited(meter, Limits(requests_per_minute=5))
    for _ in range(3):
        await ask(meter)
    limited(meter, Limits(requests_per_minute=3))
    with pytest.raises(LimitReached):
        await ask(meter)


@pytest.mark.promise("a-budget-is-never-overdrawn")
async def test_five_hundred_at_once_never_spend_more_than_a_budget_for_a_hundred(
    meter: Meter, store: Store
) -> None:
    limited(meter, Limits(usd_per_day=1.0))

    async def request(number: int) -> bool:
        try:
            admission = await ask(meter)
        except BudgetExhausted:
            return False
        await asyncio.sleep(0)
        admission.settle(answer(number))
        return True

    let_in = sum(await asyncio.gather(*(request(number) for number in range(500))))
    await store.flush()
    assert let_in == 100
    assert await store.budgets.get_balance("key:k", DAY) == (1_000_000_000, 0)
    with pytest.raises(
        BudgetExhausted, match=r"'k' may spend \$1.00 this day and has spent \$1.00"
    ) as refused:
        await ask(meter)
    assert not refused.value.transient


async def test_a_budget_that_others_have_reserved_is_worth_another_try(meter: Meter) -> None:
    limited(meter, Limits(usd_total=0.01))
    admission = await ask(meter)
    with pytest.raises(BudgetExhausted, match="is reserved by active requests") as refused:
        await ask(meter)
    assert (refused.value.transient, refused.value.retry_after) == (True, 1.0)
    admission.release()
    await ask(meter)


async def test_who_is_refused_for_money_holds_nothing(meter: Meter, store: Store) -> None:
    limited(meter, Limits(usd_total=0.01, parallel=1), ann=Limits(usd_per_month=0.001))
    for _ in range(3):
        with pytest.raises(BudgetExhausted, match="the owner 'ann'"):
            await ask(meter)
    assert await store.budgets.get_balance("key:k", TOTAL) == (0, 0)


async def test_who_leaves_while_money_is_reserved_leaves_no_reservation(meter: Meter, store: Store) -> None:
    limited(meter, Limits(usd_total=1.0, parallel=1))
    asking = asyncio.ensure_future(ask(meter))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await ask(meter)
    await store.flush()
    assert await store.budgets.get_balance("key:k", TOTAL) == (0, 10_000_000)


@pytest.mark.parametrize(
    ("record", "spent"),
    [
        (answer(output=None, status="error"), 0),
        (replace(answer(output=None, status="error"), first_byte=0.1), 10_000_000),
        (answer(output=None), 10_000_000),
        (replace(answer(), cost=0.5), 500_000_000),
    ],
)
async def test_a_budget_pays_for_what_was_consumed(
    meter: Meter, store: Store, *, record: UsageRecord, spent: int
) -> None:
    limited(meter, Limits(usd_total=1.0))
    (await ask(meter)).settle(record)
    await store.flush()
    assert await store.budgets.get_balance("key:k", TOTAL) == (spent, 0)


@pytest.mark.parametrize(("unpriced", "spent"), [("refuse", 10_000_000), ("allow", 0)])
async def test_a_fallback_without_a_price_costs_what_was_reserved_unless_that_is_allowed(
    meter: Meter, store: Store, *, unpriced: Literal["refuse", "allow"], spent: int
) -> None:
    meter.reconfigure(LimitTable(default_key=Limits(usd_total=1.0), unpriced=unpriced), meter.prices)
    assert (await ask(meter)).settle(answer(), price=None).cost is None
    await store.flush()
    assert await store.budgets.get_balance("key:k", TOTAL) == (spent, 0)


async def test_a_model_without_a_price_is_refused_where_money_is_limited(meter: Meter) -> None:
    limits = Limits(usd_per_day=1.0, parallel=1)
    limited(meter, limits)
    with pytest.raises(BadRequest, match="'gpt-99' has no price") as refused:
        await meter.admit(ANN, price=None, model="gpt-99")
    assert refused.value.field == "model"
    assert "prices" in str(refused.value.hint)
    meter.reconfigure(LimitTable(default_key=limits, unpriced="allow"), meter.prices)
    (await meter.admit(ANN, price=None, model="gpt-99")).settle(RECORD)


async def test_no_error_is_raised_that_a_door_cannot_tell(meter: Meter) -> None:
    limited(meter, Limits(requests_per_minute=1, usd_total=0.001))
    for _ in range(3):
        with pytest.raises(DragomanError) as refused:
            await ask(meter)
        assert refused.value.status == 429


async def test_a_call_that_a_crash_cut_off_is_charged_to_a_budget_that_has_no_room_for_it(
    meter: Meter, store: Store
) -> None:
    limited(meter, Limits(usd_total=0.02))
    (await ask(meter)).settle(answer(1, output=2))
    with pytest.raises(BudgetExhausted):
        await ask(meter)
    meter.admit_lost(ANN, CENT).settle(answer(2, output=3, status="aborted"))
    await meter.ledger.flush()
    assert await store.budgets.get_balance("key:k", TOTAL) == (50_000_000, 0)
