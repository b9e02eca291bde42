"""Summaries of a conversation are paid for and counted like steps."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import (
    Agent,
    ContextPolicy,
    Finish,
    Message,
    RunLimits,
    StepChange,
    StepContext,
    Summariser,
    TextPart,
    Usage,
)
from dragoman.errors import ConfigError
from dragoman.providers.model import Model
from dragoman.providers.scripted import Failure, ScriptedProvider, Step
from tests.agent.scripted import PRICES, scripted

SUMMARY = Step(text="They spoke.", usage=Usage(input_tokens=1_000, output_tokens=50, total_tokens=1_050))
ANSWER = Step(text="Fine.", usage=Usage(input_tokens=200, output_tokens=5, total_tokens=205))
BOTH = 1_200 * 1e-6 + 55 * 10e-6  # dollars
POLICY = ContextPolicy("summarise", limit=1_500)


class Known(ScriptedProvider):
    """A provider whose models the price list knows."""

    family = "openai"


def talk(turns: int, size: int = 800) -> list[Message]:
    messages = [
        (
            Message(f"u{number}", "user", (TextPart(f"question {number}"),)),
            Message(f"a{number}", "assistant", (TextPart("y" * size),)),
        )
        for number in range(turns)
    ]
    return [each for turn in messages for each in turn] + [Message("last", "user", (TextPart("And?"),))]


def agent(*steps: Step, policy: ContextPolicy = POLICY, **more: Any) -> Agent:
    return Agent(scripted(*steps), context=policy, prices=PRICES, **more)


async def cuts(run: Any) -> list[Any]:
    """What the events say of cuts."""
    return [event.data async for event in run.events() if event.type == "data-context"]


async def test_what_a_summary_took_is_in_the_usage_and_in_the_cost() -> None:
    run = agent(SUMMARY, ANSWER).spawn(talk(9))
    result = await run.result
    assert [(cut["kind"], cut["summary"]) for cut in await cuts(run)] == [("summarise", "They spoke.")]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (1_200, 55)
    assert result.cost == pytest.approx(BOTH)
    assert result.steps == 1
    finish = [event async for event in run.events()][-1]
    assert isinstance(finish, Finish)
    assert finish.usage == Usage(1_200, 55, 1_255)


async def test_a_summary_counts_also_where_the_step_behind_it_is_not_begun() -> None:
    dear = Step(text="Long.", usage=Usage(input_tokens=9_000, output_tokens=50))
    result = await agent(dear, limits=RunLimits(max_budget_usd=0.015)).spawn(talk(9)).result
    assert (result.exit_reason, result.steps, result.text) == ("budget_exhausted", 0, "")
    assert result.usage.input_tokens == 9_000
    assert result.cost == pytest.approx(9_000 * 1e-6 + 50 * 10e-6)


async def test_a_summary_that_does_not_fit_into_the_budget_is_not_made() -> None:
    model = scripted(ANSWER)
    limits = RunLimits(max_budget_usd=0.008)
    options = {"max_tokens": 50}
    made = Agent(model, context=POLICY, prices=PRICES, limits=limits, options=options)
    run = made.spawn(talk(9))
    result = await run.result
    (cut,) = await cuts(run)
    assert (cut["kind"], "this call may cost" in cut["problem"]) == ("truncate", True)
    assert (result.exit_reason, result.usage.input_tokens) == ("success", 200)


async def test_a_summariser_of_your_own_is_paid_by_the_run_too() -> None:
    small = ScriptedProvider([SUMMARY], name="scripted")
    policy = ContextPolicy("summarise", limit=1_500, summarise=Summariser(small, "small"))
    result = await agent(ANSWER, policy=policy, limits=RunLimits(max_budget_usd=1)).spawn(talk(9)).result
    assert result.usage.input_tokens == 1_200
    assert result.cost == pytest.approx(BOTH)
    assert [sent.model for sent in small.requests] == ["small"]


async def test_a_budget_needs_the_price_of_the_model_that_summarises() -> None:
    unknown = ScriptedProvider([SUMMARY], name="elsewhere")
    policy = ContextPolicy("summarise", limit=1_500, summarise=Summariser(unknown, "small"))
    with pytest.raises(ConfigError, match="no price for the model 'elsewhere/small'"):
        agent(ANSWER, policy=policy, limits=RunLimits(max_budget_usd=1)).spawn(talk(9))


async def test_a_summary_that_broke_off_is_paid_for() -> None:
    broken = Step(text="They " * 100, error=Failure("gone"))
    run = agent(broken, ANSWER).spawn(talk(9))
    result = await run.result
    (cut,) = await cuts(run)
    assert (cut["kind"], cut["problem"]) == ("truncate", "gone")
    assert (result.cost or 0) > 200 * 1e-6 + 5 * 10e-6


async def test_an_agent_knows_how_much_its_model_reads() -> None:
    provider = Known([ANSWER, ANSWER], name="openai")
    policy = ContextPolicy("truncate")
    run = Agent(Model(provider, "gpt-4"), context=policy).spawn(talk(20, size=2_000))
    assert len(await cuts(run)) == 1  # 10,000 tokens, and it reads 8,192
    large = Agent(Model(provider, "gpt-4o"), context=policy).spawn(talk(20, size=2_000))
    assert await cuts(large) == []  # 128,000


async def test_sizes_that_a_policy_gives_go_before_those_of_the_list() -> None:
    provider = Known([ANSWER], name="openai")
    policy = ContextPolicy("truncate", windows={"gpt-4": 100_000}.get)
    assert await cuts(Agent(Model(provider, "gpt-4"), context=policy).spawn(talk(20, size=2_000))) == []


async def test_a_step_of_another_provider_reads_as_much_as_its_model_does() -> None:
    listed, unlisted = Known([ANSWER], name="openai"), Known([ANSWER], name="elsewhere")

    def change(_: StepContext) -> StepChange:
        return StepChange(model=Model(listed, "gpt-4"))

    policy, conversation = ContextPolicy("truncate"), talk(20, size=2_000)
    run = Agent(Model(unlisted, "gpt-4"), context=policy, on_prepare_step=change).spawn(conversation)
    assert len(await cuts(run)) == 1
    assert await cuts(Agent(Model(unlisted, "gpt-4"), context=policy).spawn(conversation)) == []
