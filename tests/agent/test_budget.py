"""Budgets in US dollars: reserved before a step, settled after it, shared by concurrent runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import Context, operation, user_message
from dragoman.accounts.price import NANOS_PER_DOLLAR
from dragoman.accounts.price_lookup import PriceList
from dragoman.agent.agent import Agent
from dragoman.agent.settings import RunLimits
from dragoman.agent.turn_spec import StepChange, StepContext
from dragoman.errors import BudgetExhausted, ConfigError
from dragoman.events import Usage
from dragoman.operations.budget import Budget
from dragoman.providers.model import Model
from dragoman.providers.scripted import ScriptedCall, ScriptedProvider, Step
from tests.agent.scripted import ASK, PRICES, USED, add, calling, provider, scripted, types

STEP = 100e-6 + 10 * 10e-6  # dollars that USED costs
ANSWER = 1_024 * 10e-6  # dollars that an answer of unknown length is reserved for


def limited(usd: float, *steps: Any, **more: Any) -> Agent:
    limits = RunLimits(max_budget_usd=usd)
    return Agent(scripted(*steps), operations=[add], prices=PRICES, limits=limits, **more)


async def test_a_run_costs_what_its_steps_do() -> None:
    agent = Agent(scripted(calling(usage=USED), Step(text="4", usage=USED)), operations=[add], prices=PRICES)
    result = await agent.spawn(ASK).result
    assert result.cost == pytest.approx(2 * STEP)


async def test_the_cost_of_a_model_without_a_price_is_none() -> None:
    assert (await Agent(scripted(Step(text="4", usage=USED))).spawn(ASK).result).cost is None


@pytest.mark.parametrize(
    ("provider", "model", "usage", "usd"),
    [
        # dollars per million tokens, from the price list: input, output, cache read, cache write
        ("anthropic", "claude-sonnet-4-5", Usage(10_000, 100, cached_input_tokens=6_000), 0.0153),
        ("anthropic", "claude-sonnet-4-5", Usage(10_000, 0, cache_write_tokens=8_000), 0.036),
        ("openai", "gpt-4o", Usage(10_000, 100, cached_input_tokens=8_000), 0.016),
        ("openai", "gpt-4o", Usage(10_000, 100), 0.026),
    ],
)
def test_cache_reads_and_writes_cost_what_each_provider_asks(
    provider: str, model: str, usage: Usage, usd: float
) -> None:
    price = PriceList().find(provider, model)
    assert price is not None
    assert (price.cost(usage) or 0) / NANOS_PER_DOLLAR == pytest.approx(usd)


async def test_a_step_that_could_not_fit_is_not_begun() -> None:
    agent = limited(0.001, "4")
    run = agent.spawn(ASK)
    assert await types(run) == ["start", "finish"]
    result = await run.result
    assert (result.exit_reason, result.steps, result.cost) == ("budget_exhausted", 0, None)
    assert "0.001000 left" in (result.stopped_by or "")
    assert provider(agent).requests == []
    assert [message.role for message in result.messages] == ["user"]


async def test_the_budget_is_asked_again_after_every_step() -> None:
    dear = Usage(input_tokens=10_000, output_tokens=100)  # 11 of 20 thousandths of a dollar
    agent = limited(0.02, calling(text="Let me", usage=dear), "4")
    result = await agent.spawn(ASK).result
    assert (result.exit_reason, result.steps, result.text) == ("budget_exhausted", 1, "Let me")
    assert result.cost == pytest.approx(0.011)
    assert len(provider(agent).requests) == 1


LONG = Usage(input_tokens=5_000, output_tokens=10)  # though its prompt is estimated at some 100 tokens
SPENT = 5_000e-6 + 10 * 10e-6
NEXT_PROMPT = 5_000 * 2e-6  # at most: all of it may be written to the cache


@pytest.mark.parametrize(("room", "steps"), [(NEXT_PROMPT / 2, 1), (NEXT_PROMPT * 1.01, 2)])
async def test_a_step_reserves_at_least_what_the_last_prompt_really_was(room: float, steps: int) -> None:
    agent = limited(SPENT + ANSWER + room, calling(usage=LONG), Step(text="4", usage=LONG))
    result = await agent.spawn(ASK).result
    assert result.steps == steps
    assert result.exit_reason == ("success" if steps == 2 else "budget_exhausted")


async def test_a_step_whose_conversation_was_cut_reserves_its_own_prompt_only() -> None:
    def cut(step: StepContext) -> StepChange | None:
        return StepChange(messages=[user_message("And?")], tools=[]) if step.number > 1 else None

    room = NEXT_PROMPT / 2
    agent = limited(
        SPENT + ANSWER + room, calling(usage=LONG), Step(text="4", usage=USED), on_prepare_step=cut
    )
    assert (await agent.spawn(ASK).result).exit_reason == "success"


async def test_what_a_request_says_of_the_length_of_its_answer_is_trusted() -> None:
    agent = limited(0.002, Step(text="4", usage=USED), options={"max_tokens": 50})
    assert (await agent.spawn(ASK).result).exit_reason == "success"


async def test_an_answer_that_outgrows_the_budget_is_cut_off() -> None:
    long = Step(text=["word " * 100] * 200)  # 25,000 tokens: 0.25 dollars
    result = await limited(0.05, long).spawn(ASK).result
    assert result.exit_reason == "budget_exhausted"
    assert result.usage.estimated
    assert 0.03 < (result.cost or 0) < 0.0501
    assert result.text.startswith("word ")


async def test_an_answer_that_its_provider_does_not_count_is_estimated() -> None:
    result = await limited(0.05, Step(text="word " * 400)).spawn(ASK).result
    assert (result.exit_reason, result.usage.output_tokens) == ("success", 500)
    assert result.usage.estimated
    assert result.cost == pytest.approx(500 * 10e-6, rel=0.1)


@pytest.mark.parity
async def test_a_budget_needs_a_price() -> None:
    agent = Agent(scripted("4"), limits=RunLimits(max_budget_usd=1))
    with pytest.raises(ConfigError, match="no price for the model 'scripted/any'"):
        agent.spawn(ASK)


async def test_a_step_on_a_model_without_a_price_ends_a_run_with_a_budget() -> None:
    free = Model(ScriptedProvider([Step(text="4")], name="free"), "any")
    agent = limited(1, calling(usage=USED), on_prepare_step=lambda _: StepChange(model=free))
    result = await agent.spawn(ASK).result
    assert result.exit_reason == "crashed"
    assert "no price" in result.error.message


async def test_a_provider_that_keeps_its_own_budget_is_not_gated_and_that_is_said() -> None:
    class Own(ScriptedProvider):
        family = "claude-code"

    agent = Agent(Model(Own([Step(text="4")]), "any"), limits=RunLimits(max_budget_usd=0.0000001))
    result = await agent.spawn(ASK).result
    assert result.exit_reason == "success"
    assert "not enforced" in result.notices[0]


async def test_fifty_runs_at_once_never_overspend_their_budget() -> None:
    dear = Usage(input_tokens=15, output_tokens=1_000)
    budget = Budget(usd=0.2)  # room for about 19 at what each may cost

    async def one() -> Any:
        agent = Agent(scripted(Step(text="word " * 10, usage=dear, delay=0.001)), prices=PRICES)
        return await agent.spawn(ASK, context=Context(budget=budget)).result

    results = await asyncio.gather(*(one() for _ in range(50)))
    words = [result.exit_reason for result in results]
    assert 15 <= words.count("success") <= 20
    assert set(words) == {"success", "budget_exhausted"}
    assert budget.spent == pytest.approx(sum(result.cost or 0 for result in results))
    assert budget.spent <= 0.2 + ANSWER
    assert budget.reserved == pytest.approx(0)


async def test_an_aborted_answer_is_paid_for_and_gives_back_the_rest() -> None:
    budget = Budget(usd=1)
    agent = Agent(scripted(Step(text=["word " * 20] * 100, delay=0.01)), prices=PRICES)
    run = agent.spawn(ASK, context=Context(budget=budget))
    async for event in run.events():
        if event.type == "text-delta":
            run.abort()
            break
    result = await run.result
    assert (result.exit_reason, result.usage.estimated) == ("aborted", True)
    assert 0 < (result.cost or 0) == pytest.approx(budget.spent)
    assert budget.reserved == 0


def test_a_budget_within_a_budget_is_spent_out_of_both() -> None:
    above = Budget(usd=1.0)
    inside = Budget(usd=0.5, parent=above)
    inside.reserve(0.4)
    assert inside.remaining == pytest.approx(0.1)
    assert above.remaining == pytest.approx(0.6)
    with pytest.raises(BudgetExhausted) as refused:
        inside.reserve(0.2)
    assert refused.value.transient
    inside.settle(0.4, 0.5)
    assert (inside.is_spent, above.is_spent) == (True, False)
    assert above.remaining == pytest.approx(0.5)
    other = Budget(parent=above)
    other.reserve(0.5)
    with pytest.raises(BudgetExhausted):
        other.reserve(0.1)
    assert (other.reserved, above.reserved) == (0.5, 0.5)


def test_calls_within_a_budget_count_in_both() -> None:
    above = Budget(calls=3)
    inside = Budget(calls=2, parent=above)
    inside.count_call()
    inside.count_call()
    with pytest.raises(BudgetExhausted, match="2 calls"):
        inside.count_call()
    above.count_call()
    with pytest.raises(BudgetExhausted, match="3 calls"):
        Budget(parent=above).count_call()


@operation
async def search(context: Context) -> str:
    """Search, for money."""
    context.spend(0.25)
    return "found"


@pytest.mark.parametrize("budget", [None, 5.0])
async def test_the_cost_of_a_result_covers_sub_agents_at_any_depth_and_operations(
    budget: float | None,
) -> None:
    def helper(name: str, *steps: Any, operations: Any) -> Any:
        model = scripted(*steps)
        return Agent(model, operations=operations, prices=PRICES, name=name).as_operation("Helps.")

    task = {"prompt": "Do it."}
    used = Step(text="so", usage=USED)
    pays = calling(ScriptedCall("tools_search", {}), usage=USED)
    inner = helper("inner", pays, used, operations=[search])
    twice = calling(
        ScriptedCall("agents_inner", task, id="a"), ScriptedCall("tools_search", {}, id="b"), usage=USED
    )
    outer = helper("outer", twice, used, operations=[inner, search])
    asks = calling(ScriptedCall("agents_outer", task), usage=USED)
    limits = RunLimits(max_budget_usd=budget)
    agent = Agent(scripted(asks, used), operations=[outer], prices=PRICES, limits=limits)
    result = await agent.spawn(ASK).result
    assert result.exit_reason == "success"
    assert result.cost == pytest.approx(6 * STEP + 2 * 0.25)
    assert result.usage.input_tokens == 200  # of its own steps


async def test_the_cost_of_a_result_covers_runs_that_an_operation_spawns() -> None:
    @operation
    async def consult(context: Context) -> str:
        """Ask another agent."""
        inner = Agent(scripted(Step(text="so", usage=USED)), prices=PRICES)
        return (await inner.run(ASK, context=context)).text

    asks = calling(ScriptedCall("tools_consult", {}), usage=USED)
    agent = Agent(scripted(asks, Step(text="4", usage=USED)), operations=[consult], prices=PRICES)
    assert (await agent.run(ASK)).cost == pytest.approx(3 * STEP)
