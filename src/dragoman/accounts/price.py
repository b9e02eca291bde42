"""The price of a model, in whole numbers, and the cost of usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.errors import DragomanError, ProviderError
from dragoman.events import MAX_TOKENS, FinishStep, ModelUsage, Usage
from dragoman.usage_record import UsageRecord
from dragoman.wire.client_request import Advisor

NANOS_PER_DOLLAR = 1_000_000_000
"""Nano-dollars in a US dollar."""
PICOS_PER_NANO = 1_000
MAX_NANOS = 2**62
"""The highest amount in nano-dollars that the database can still add to others."""
DEFAULT_OUTPUT_TOKENS = 1_024
"""Tokens that an answer is assumed to have when its request sets no limit."""
PROVIDER_PRICE = "provider"
"""The price name in the record when the provider itself reported the cost."""


def assumed_tokens(max_output_tokens: int | None) -> int:
    """Return the tokens that an answer is assumed to have at most; a limit below zero is none."""
    if max_output_tokens is None or max_output_tokens < 0:
        return DEFAULT_OUTPUT_TOKENS
    return max_output_tokens


class TokenRates(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of one token, for prompts of more than `above` tokens.

    They are in picodollars: 1 is a millionth of a US dollar per million tokens. None for cached tokens means
    the price of other input tokens.
    """

    above: int = -1
    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None
    hour_cache_write: int | None = None
    """For tokens that the cache keeps for an hour. None means the price of other cache writes."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model. `name` is the model's (`openai/gpt-4o`) or the pattern of an override.

    `rates` ascend by `above`: the last one that the prompt reaches applies to all of its tokens.
    """

    name: str
    rates: tuple[TokenRates, ...]
    request: int = 0
    """Nano-dollars for each request."""
    web_search: int = 0
    """Nano-dollars for each search that the provider makes."""
    others: Mapping[str, Price | None] = {}
    """The prices of the other models of a usage, or of those that may be asked for advice, by their names."""

    def cost(self, usage: Usage) -> int | None:
        """Return the cost in nano-dollars, rounded half up; None if a token count with a price is unknown, or
        so high that it must be wrong: then what was reserved is charged.
        """
        if usage.other_models:
            return self._joint_cost(usage, usage.other_models)
        total, output = usage.input_tokens, usage.output_tokens
        if MAX_TOKENS in (total, output):
            return None
        rates = self._rates_for(total or 0)
        if (total is None and rates.input) or (output is None and rates.output):
            return None
        read, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
        picos = max((total or 0) - read - written, 0) * rates.input
        picos += read * (rates.input if rates.cache_read is None else rates.cache_read)
        write_rate = rates.input if rates.cache_write is None else rates.cache_write
        picos += written * write_rate
        if usage.hour_cache_write_tokens and rates.hour_cache_write is not None:
            picos += min(usage.hour_cache_write_tokens, written) * (rates.hour_cache_write - write_rate)
        picos += (output or 0) * rates.output
        searches = (usage.web_searches or 0) * self.web_search
        cost = self.request + searches + (picos + PICOS_PER_NANO // 2) // PICOS_PER_NANO
        return cost if cost <= MAX_NANOS else None

    def _joint_cost(self, usage: Usage, others: Sequence[ModelUsage]) -> int | None:
        """Return the cost of an answer that several models have worked on, each at its own price."""
        costs: list[int | None] = []
        for other in others:
            usage -= other.usage
            price = self.others.get(other.model)
            costs.append(None if price is None else price.cost(other.usage))
        costs.append(self.cost(usage))
        return None if None in costs else sum(filter(None, costs))

    def max_cost(
        self,
        input_tokens: int,
        max_output_tokens: int | None,
        *,
        searches: int = 0,
        advisors: Sequence[Advisor] = (),
    ) -> int:
        """Return the highest cost in nano-dollars for an estimated prompt, rounded up.

        `searches` are the most that the provider may make. `advisors` read the prompt each time; those
        without a price in `others` cost nothing here.
        """
        advice = sum(
            each.uses * price.max_cost(input_tokens, each.output_tokens)
            for each in advisors
            if (price := self.others.get(each.model)) is not None
        )
        rates = self._rates_for(input_tokens)
        dearest = max(rates.input, rates.cache_write or 0, rates.hour_cache_write or 0)
        output = assumed_tokens(max_output_tokens)
        fees = self.request + max(searches, 0) * self.web_search + advice
        return min(MAX_NANOS, fees - (-(input_tokens * dearest + output * rates.output) // PICOS_PER_NANO))

    def _rates_for(self, input_tokens: int) -> TokenRates:
        reached = self.rates[0]
        for rates in self.rates[1:]:
            if input_tokens > rates.above:
                reached = rates
        return reached


def to_nanos(usd: float) -> int:
    """Return US dollars in nano-dollars, rounded; at most what the database can count."""
    return MAX_NANOS if usd >= MAX_NANOS / NANOS_PER_DOLLAR else round(usd * NANOS_PER_DOLLAR)


def provider_cost(finish: FinishStep) -> float | None:
    """Return the cost in US dollars that the provider reported, if it did."""
    for metadata in (finish.provider_metadata or {}).values():
        usd = metadata.get("costUsd")
        if isinstance(usd, int | float) and not isinstance(usd, bool):
            return usd
    return None


def credible_cost(usd: float | None) -> float | None:
    """Return a cost that another program reports; None for one below zero, or that nothing can cost."""
    return float(usd) if usd is not None and 0 <= usd <= MAX_NANOS / NANOS_PER_DOLLAR else None


def usage_of_error(error: DragomanError | None) -> Usage | None:
    """Return the tokens that the provider reported for a failed answer, if it did."""
    used = error.usage if isinstance(error, ProviderError) else None
    return None if used is None else Usage(**used)


def with_cost(record: UsageRecord, price: Price | None, *, provider_cost: float | None) -> UsageRecord:
    """Return the record with its cost: its own, else by the price, else as reported by the provider."""
    if record.cost is not None:
        own = credible_cost(record.cost)
        return record if own == record.cost else replace(record, cost=own)
    cost = price.cost(record.tokens) if price is not None else None
    if price is not None and cost is not None:
        return replace(record, cost=cost / NANOS_PER_DOLLAR, price_model=record.price_model or price.name)
    reported = credible_cost(provider_cost)
    return record if reported is None else replace(record, cost=reported, price_model=PROVIDER_PRICE)
