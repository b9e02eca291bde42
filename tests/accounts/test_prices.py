"""Prices of models: lookup, overrides, unknown models, and the cost of a request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from genai_prices import Usage as TheirUsage
from genai_prices import calc_price
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.accounts.price import Price, TokenRates
from dragoman.accounts.price_lookup import PriceList, PriceOverride, override_price
from dragoman.events import ModelUsage, Usage

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
PRICES = PriceList(clock=NOW.timestamp)
OPENAI = "https://api.openai.com/v1"
LOOPBACK = "http://127.0.0.1:8000/v1"


def name(provider: str, model: str, *, base_url: str | None = None, type: str | None = None) -> str | None:
    price = PRICES.find(provider, model, base_url=base_url, type=type)
    return None if price is None else price.name


@pytest.mark.parametrize(
    ("provider", "model", "found"),
    [
        ("openai", "gpt-4o", "openai/gpt-4o"),
        ("openai", "gpt-4o-2024-08-06", "openai/gpt-4o"),
        ("openai", "gpt-4o-20240806", "openai/gpt-4o"),
        ("openai", "gpt-5.6", "openai/gpt-5.6-sol"),
        ("anthropic", "claude-sonnet-4-5-20250929", "anthropic/claude-sonnet-4-5"),
        ("anthropic", "claude-sonnet-4-5-latest", "anthropic/claude-sonnet-4-5"),
        ("xai", "grok-4-1-fast", "x-ai/grok-4-1-fast-reasoning"),
        ("openai", "ft:gpt-4o-mini-2024-07-18:acme::abc", "openai/ft:gpt-4o-mini"),
    ],
)
def test_a_price_tells_whose_it_is(provider: str, model: str, found: str) -> None:
    assert name(provider, model) == found


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o-turbo-next"),
        ("openai", "gpt-99"),
        ("anthropic", "claude-opus-4-8-max"),
        ("anthropic", "claude-sonnet-4-5-1"),
        ("google", "gemini-2.5-pro-ultra"),
        ("openai", "whisper-1"),
    ],
)
def test_a_model_that_the_library_only_guesses_at_has_no_price(provider: str, model: str) -> None:
    assert name(provider, model) is None


def test_the_address_tells_whose_prices_they_are() -> None:
    assert name("work", "gpt-4o", base_url=OPENAI) == "openai/gpt-4o"
    assert name("fake", "claude-sonnet-4-5", base_url=LOOPBACK, type="anthropic") is not None
    assert name("vllm", "gpt-4o", base_url=LOOPBACK, type="openai") is None


@pytest.mark.parametrize("type", ["local", "scripted", "ollama"])
def test_models_on_machines_of_our_own_have_no_price_until_one_is_set(type: str) -> None:
    assert name("mistral", "mistral-large-latest", base_url=LOOPBACK, type=type) is None
    prices = PriceList({"mistral/*": PriceOverride(input=0, output=0)})
    price = prices.find("mistral", "mistral-large-latest", type=type)
    assert price is not None
    assert price.cost(Usage(input_tokens=7, output_tokens=9)) == 0


def test_an_override_comes_before_the_library_and_one_without_a_star_before_one_with() -> None:
    prices = PriceList(
        {
            "openai/*": PriceOverride(input=1, output=2),
            "gpt-4o": PriceOverride(input=3, output=4, cache_read=0.0375),
        }
    )
    assert prices.find("openai", "gpt-4o") == Price(
        name="gpt-4o", rates=(TokenRates(input=3_000_000, output=4_000_000, cache_read=37_500),)
    )
    assert prices.find("openai", "o3") == Price(
        name="openai/*", rates=(TokenRates(input=1_000_000, output=2_000_000),)
    )


def test_what_is_unknown_costs_nobody_knows_how_much() -> None:
    price = PRICES.find("openai", "gpt-4o")
    assert price is not None
    assert price.cost(Usage()) is None
    assert price.cost(Usage(input_tokens=3)) is None
    assert price.cost(Usage(output_tokens=3)) is None
    embedding = PRICES.find("openai", "text-embedding-3-small")
    assert embedding is not None
    assert embedding.cost(Usage(input_tokens=1_000_000)) == 20_000_000


MODELS = [
    ("openai", "gpt-4o"),
    ("openai", "gpt-5.6"),
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-4-8"),
    ("google", "gemini-2.5-pro"),
    ("x-ai", "grok-4.5"),
    ("deepseek", "deepseek-v4-pro"),
    ("groq", "llama-3.3-70b-versatile"),
]
COUNTS = st.integers(0, 600_000)


@pytest.mark.parametrize(("provider", "model"), MODELS)
@given(fresh=COUNTS, read=COUNTS, written=COUNTS, output=COUNTS, hour=COUNTS, searches=st.integers(0, 9))
def test_a_cost_is_what_the_library_says(
    *, provider: str, model: str, fresh: int, read: int, written: int, output: int, hour: int, searches: int
) -> None:
    price = PRICES.find(provider, model)
    assert price is not None
    total, hour = fresh + read + written, min(hour, written)
    usage = Usage(
        input_tokens=total,
        output_tokens=output,
        cached_input_tokens=read,
        cache_write_tokens=written,
        hour_cache_write_tokens=hour,
    )
    assert (price.cost(usage) or 0) <= price.max_cost(total, output)
    ours = price.cost(replace(usage, web_searches=searches))
    theirs = calc_price(
        TheirUsage(
            input_tokens=total,
            output_tokens=output,
            cache_read_tokens=read,
            cache_write_tokens=written,
            cache_write_1h_tokens=hour,
            web_searches=searches,
        ),
        model,
        provider_id=provider,
        genai_request_timestamp=NOW,
    )
    assert ours is not None
    assert abs(Decimal(ours) - theirs.total_price * 10**9) <= Decimal("0.5")


def test_a_price_that_depends_on_the_time_of_day_is_asked_again() -> None:
    clock = [datetime(2025, 3, 1, 12, tzinfo=UTC).timestamp()]
    prices = PriceList(clock=lambda: clock[0])
    day = prices.find("deepseek", "deepseek-reasoner")
    clock[0] = datetime(2025, 3, 1, 20, tzinfo=UTC).timestamp()
    night = prices.find("deepseek", "deepseek-reasoner")
    assert day is not None
    assert night is not None
    assert night.max_cost(1_000_000, 0) < day.max_cost(1_000_000, 0)


async def test_the_library_is_loaded_when_it_is_needed_and_not_before() -> None:
    program = (
        "import sys, asyncio; from dragoman.accounts.price_lookup import PriceList, PriceOverride\n"
        "prices = PriceList({'m': PriceOverride(input=1, output=1)}); prices.find('p', 'm')\n"
        "prices.find('local', 'qwen'); print('genai_prices' in sys.modules)\n"
        "asyncio.run(prices.preload()); print('genai_prices' in sys.modules)"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\nTrue\n", "")


def test_the_advice_of_another_model_is_paid_at_its_own_price() -> None:
    own = override_price("small", PriceOverride(input=1, output=5))
    advisor = override_price("large", PriceOverride(input=10, output=50, cache_read=1))
    advice = Usage(800, 500, 1300, cached_input_tokens=300)
    usage = Usage(100, 20, 120) + Usage(advice.input_tokens, advice.output_tokens, 1300, None, 300)
    usage = replace(usage, other_models=(ModelUsage("large", advice),))
    costs = own.cost(Usage(100, 20, 120)), advisor.cost(advice)
    assert costs == (200_000, 5_000_000 + 300_000 + 25_000_000)
    assert replace(own, others={"large": advisor}).cost(usage) == sum(filter(None, costs))
    assert replace(own, others={"large": None}).cost(usage) is None
    assert own.cost(usage) is None
