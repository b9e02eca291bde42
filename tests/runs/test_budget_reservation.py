"""Reservation of a run's budget for its model calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.accounts.budget_reservation import BudgetReservation
from dragoman.accounts.price import Price, TokenRates
from dragoman.accounts.request_size import AnswerBounds
from dragoman.errors import BudgetExhausted
from dragoman.operations.budget import Budget
from tests.serving import Served, ask, serving, text_of, types, usage, write_script

PRICE = Price(name="p", rates=(TokenRates(input=1_000_000, output=10_000_000),))  # 1 and 10 dollars a million
PRICES = {"sim/*": {"input": 1.0, "output": 10.0}}
ANSWER = 1_024 * 10e-6


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_what_a_call_may_cost_is_kept_back_and_what_it_cost_is_spent() -> None:
    budget = Budget(usd=1)
    reservation = BudgetReservation(budget, PRICE)
    reservation.reserve(lambda: 100, AnswerBounds(50))
    assert budget.reserved == pytest.approx(100e-6 + 50 * 10e-6)
    reservation.settle(0.0003, answered=True)
    reservation.settle(0.5, answered=True)
    assert (budget.reserved, budget.spent) == (0, 0.0003)


def test_an_answer_that_outgrows_it_takes_more_and_is_stopped_when_there_is_none() -> None:
    budget = Budget(usd=3.5 * ANSWER)
    reservation = BudgetReservation(budget, PRICE)
    reservation.reserve(lambda: 0)
    reservation.grow(4_096)
    assert budget.reserved == pytest.approx(ANSWER)
    reservation.grow(4_097)
    reservation.grow(3 * 4_096)
    assert budget.reserved == pytest.approx(3 * ANSWER)
    with pytest.raises(BudgetExhausted, match="left; this call may cost"):
        reservation.grow(3 * 4_096 + 1)


@pytest.mark.parametrize(("answered", "spent"), [(True, ANSWER), (False, 0)])
def test_a_cost_that_nobody_knows_is_what_was_kept_back_if_there_was_an_answer(
    answered: bool, spent: float
) -> None:
    budget = Budget(usd=1)
    reservation = BudgetReservation(budget, PRICE)
    reservation.reserve(lambda: 0)
    reservation.settle(None, answered=answered)
    assert budget.reserved == 0
    assert budget.spent == pytest.approx(spent)


def test_without_a_price_it_is_paid_when_the_cost_is_told() -> None:
    budget = Budget(usd=1)
    reservation = BudgetReservation(budget, None)
    reservation.reserve(lambda: 100)
    reservation.grow(1_000_000)
    assert budget.reserved == 0
    reservation.settle(2.0, answered=True)
    with pytest.raises(BudgetExhausted, match="the budget of this run is spent"):
        BudgetReservation(budget, None).reserve(lambda: 0)


async def rows(hub: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await hub.http.get("/api/usage")).json()["rows"]
    return found


async def test_an_answer_of_a_hub_that_outgrows_its_budget_is_cut_off_and_paid(tmp_path: Path) -> None:
    long = [{"text": ["word " * 100] * 200}]  # 25,000 tokens: 0.25 dollars
    agents = {"default": {"max_usd": 0.05}}
    async with serving(tmp_path, long, agents=agents, prices=PRICES) as hub:
        frames = await hub.chat()
        assert text_of(frames).startswith("word ")
        assert "Stopped: The budget of 0.05 USD has" in text_of(frames)
        assert frames[-1]["finishReason"] == "other"
        [row] = await rows(hub)
        assert (row["status"], row["error"]) == ("aborted", "insufficient_quota")
        assert 0.03 < row["cost"] < 0.0501


async def test_a_step_of_a_hub_that_could_not_fit_is_not_asked(tmp_path: Path) -> None:
    steps = [{"text": "4", "usage": usage(10, 1)}]
    agents: dict[str, Any] = {"default": {"max_usd": 0.001}}
    async with serving(tmp_path, steps, play="turns", agents=agents, prices=PRICES) as hub:
        frames = await hub.chat()
        notice = "Stopped: The budget of 0.001 USD has 0.001000 left; this call may cost 0.01"
        assert text_of(frames).startswith(notice)
        assert types(frames).count("start-step") == 1, "the step that was not asked is not shown"
        assert await rows(hub) == []
    agents = {"default": {"max_usd": 0.001, "options": {"max_tokens": 10}}}
    async with serving(tmp_path / "b", steps, play="turns", agents=agents, prices=PRICES) as hub:
        assert text_of(await hub.chat()) == "4"


async def test_a_request_that_an_owners_limit_refuses_gives_back_what_was_kept(tmp_path: Path) -> None:
    agents = {"default": {"max_usd": 1}}
    limits = {"owner": {"usd_total": 0.000001}}
    steps = [{"text": "4"}]
    async with serving(tmp_path, steps, play="turns", agents=agents, prices=PRICES, limits=limits) as hub:
        frames = await hub.post(ask("hi"))
        [error] = [frame["errorText"] for frame in frames if frame["type"] == "error"]
        assert error.startswith("the owner 'local' may spend")


async def test_what_is_kept_back_is_the_price_of_the_dearest_model_that_may_be_asked(tmp_path: Path) -> None:
    dear = write_script(tmp_path, [{"text": "4"}], play="turns")
    providers = {name: {"type": "scripted", "script": str(dear)} for name in ("sim", "dear")}
    more: dict[str, Any] = {
        "providers": providers,
        "fallbacks": {"sim/any": ["dear/any"]},
        "prices": {**PRICES, "dear/*": {"input": 1, "output": 1_000}},
        "agents": {"default": {"max_usd": 0.5}},
    }
    async with serving(tmp_path, **more) as hub:
        assert "has 0.500000 left; this call may cost 1.02" in text_of(await hub.chat())
