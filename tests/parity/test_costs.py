"""Costs, budgets, prompt caching and thinking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import (
    Agent,
    AnthropicProvider,
    OpenAIProvider,
    PriceOverride,
    RunLimits,
    SoFar,
    cost,
    operation,
)
from dragoman import events as e
from tests.parity.upstream import anthropic, call, claude, openai_model, text, upstream

PRICES = {"openai/my-*": PriceOverride(input=1.0, output=10.0)}
USED = {"prompt_tokens": 10_000, "completion_tokens": 1_000, "total_tokens": 11_000}
CACHED = {
    "input_tokens": 1_000,
    "cache_creation_input_tokens": 2_000,
    "cache_read_input_tokens": 10_000,
    "output_tokens": 100,
}


@operation(namespace="math", effect="read")
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


ADDS = call("math_add", {"a": 2, "b": 2}, usage=USED)


@pytest.mark.parametrize(
    ("model", "usd"),
    [  # dollars per million tokens: input, output
        ("claude-sonnet-4-20250514", (3, 15)),
        ("claude-opus-4-20250514", (15, 75)),
        ("gpt-4o", (2.5, 10)),
        ("gpt-4o-2024-08-06", (2.5, 10)),
        ("gpt-4o-mini", (0.15, 0.6)),
        ("gpt-4o-mini-2024-07-18", (0.15, 0.6)),
    ],
)
async def test_families_of_models_have_their_price(model: str, usd: tuple[float, float]) -> None:
    expected = (10_000 * usd[0] + 1_000 * usd[1]) / 1_000_000
    if model.startswith("gpt"):
        async with openai_model(text("Hi.", usage=USED), name=model) as (_, agent):
            result = await Agent(agent).spawn("Hello?").result
    else:
        async with (
            upstream(claude("Hi.", input_tokens=10_000, output_tokens=1_000)) as up,
            AnthropicProvider(base_url=up.url, api_key="sk-0123456789") as provider,
        ):
            result = await Agent(provider.model(model)).spawn("Hello?").result
    assert result.cost == pytest.approx(expected)


async def test_the_cost_of_a_model_that_nobody_knows_is_none_and_its_tokens_are_told() -> None:
    async with openai_model(text("Hi.", usage=USED), name="my-own") as (_, model):
        result = await Agent(model).spawn("Hello?").result
    assert result.cost is None
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10_000, 1_000)


async def test_a_price_of_ones_own_counts_by_pattern() -> None:
    async with openai_model(text("Hi.", usage=USED), name="my-own") as (_, model):
        agent = Agent(model, limits=RunLimits(max_budget_usd=0.5), prices=PRICES)
        result = await agent.spawn("Hello?").result
    assert result.exit_reason == "success"
    assert result.cost == pytest.approx(0.02)


async def test_a_budget_stops_the_loop_before_it_is_exceeded() -> None:
    async with openai_model(ADDS, name="my-own") as (up, model):
        agent = Agent(model, operations=[add], limits=RunLimits(max_budget_usd=0.05), prices=PRICES)
        result = await agent.spawn("Go on and on.").result
    assert result.exit_reason == "budget_exhausted"
    assert result.cost is not None
    assert result.cost <= 0.05
    assert len(up.received) == result.steps == 2
    assert "0.05" in (result.stopped_by or "")


async def test_what_was_spent_is_seen_after_each_step() -> None:
    seen: list[float | None] = []

    def watch(done: SoFar) -> bool:
        seen.append(done.cost)
        return False

    async with openai_model(ADDS, name="my-own") as (_, model):
        agent = Agent(model, operations=[add], prices=PRICES, stop_when=[watch, cost(0.05)])
        result = await agent.spawn("Go on.").result
    assert (result.exit_reason, result.steps) == ("budget_exhausted", 3)
    assert seen == pytest.approx([0.02, 0.04, 0.06])


async def test_a_cache_is_marked_and_its_tokens_are_counted_at_their_own_price() -> None:
    async with (
        upstream(claude("Hi.", **CACHED)) as up,
        AnthropicProvider(base_url=up.url, api_key="sk-0123456789") as provider,
    ):
        model = provider.model("claude-sonnet-4-20250514", cache_control=True)
        agent = Agent(model, instructions="Be brief.", operations=[add])
        result = await agent.spawn("Hello?").result
    [body] = up.bodies
    marked = [body["tools"][-1], body["system"][-1], body["messages"][-1]["content"][-1]]
    assert [block["cache_control"] for block in marked] == [{"type": "ephemeral"}] * 3
    used = result.usage
    assert (used.cache_creation_input_tokens, used.cache_read_input_tokens) == (2_000, 10_000)
    assert used.input_tokens == 13_000  # the whole prompt
    assert result.cost == pytest.approx((1_000 * 3 + 2_000 * 3.75 + 10_000 * 0.3 + 100 * 15) / 1_000_000)


async def test_thinking_has_a_budget_and_is_shown_and_sent_back_signed() -> None:
    signed = [
        {"type": "thinking_delta", "thinking": "Two and two."},
        {"type": "signature_delta", "signature": "sig"},
    ]
    thought: tuple[dict[str, Any], Any] = ({"type": "thinking", "thinking": "", "signature": ""}, signed)
    answers: tuple[dict[str, Any], Any] = (
        {"type": "text", "text": ""},
        [{"type": "text_delta", "text": "Four."}],
    )
    async with (
        upstream(anthropic(thought, answers, input_tokens=10, output_tokens=20)) as up,
        AnthropicProvider(base_url=up.url, api_key="sk-0123456789") as provider,
    ):
        model = provider.model("m", thinking={"type": "enabled", "budget_tokens": 10_000})
        run = Agent(model).spawn("2 + 2?")
        heard = [event.delta async for event in run.events() if isinstance(event, e.ReasoningDelta)]
        result = await run.result
        await Agent(model).spawn([*result.messages, {"role": "user", "content": "Sure?"}]).result
    first, second = up.bodies
    assert heard == ["Two and two."]
    assert result.text == "Four."
    assert first["thinking"] == {"type": "enabled", "budget_tokens": 10_000}
    assert first["max_tokens"] > 10_000
    assert second["messages"][1]["content"][0] == {
        "type": "thinking",
        "thinking": "Two and two.",
        "signature": "sig",
    }


async def test_runs_at_a_time_have_a_budget_each() -> None:
    async with (
        upstream(text("Hi.", usage=USED)) as up,
        OpenAIProvider(base_url=f"{up.url}/v1", api_key="sk-0123456789") as provider,
    ):
        limits = RunLimits(max_budget_usd=0.03)
        agent = Agent(provider.model("my-own"), limits=limits, prices=PRICES)
        results = await asyncio.gather(*(agent.spawn("Hello?").result for _ in range(5)))
    assert [result.exit_reason for result in results] == ["success"] * 5
