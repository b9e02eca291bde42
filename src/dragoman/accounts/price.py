"""A price: what the tokens of one model cost, in whole numbers."""

from __future__ import annotations

import msgspec

from dragoman.errors import DragomanError, ProviderError
from dragoman.events import FinishStep, Usage

NANOS_PER_DOLLAR = 1_000_000_000
"""Nano-dollars in a US dollar."""
PICOS_PER_NANO = 1_000
MAX_NANOS = 2**62
"""Nano-dollars that the database can still add to others."""
DEFAULT_OUTPUT_TOKENS = 1_024
"""Tokens that an answer is expected to have where its request sets no limit."""
PROVIDER_PRICE = "provider"
"""The name of the price where the provider itself says what an answer cost."""


class TokenRates(msgspec.Struct, frozen=True, kw_only=True):
    """What one token costs, in picodollars (a millionth of a US dollar per million tokens), for prompts of
    more than `above` tokens. None for cached tokens: they cost what the others of the prompt do.
    """

    above: int = -1
    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model. `name` says whose it is: `openai/gpt-4o`, or the pattern of an override.

    `rates` ascend by `above`: the whole prompt and its answer are paid at the last one that it reaches.
    """

    name: str
    rates: tuple[TokenRates, ...]
    request: int = 0
    """Nano-dollars for the request itself."""

    def cost(self, usage: Usage) -> int | None:
        """Nano-dollars, rounded half up. None when a count that costs something is unknown."""
        total, output = usage.input_tokens, usage.output_tokens
        rates = self._rates_for(total or 0)
        if (total is None and rates.input) or (output is None and rates.output):
            return None
        read, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
        picos = max((total or 0) - read - written, 0) * rates.input
        picos += read * (rates.input if rates.cache_read is None else rates.cache_read)
        picos += written * (rates.input if rates.cache_write is None else rates.cache_write)
        picos += (output or 0) * rates.output
        return self.request + (picos + PICOS_PER_NANO // 2) // PICOS_PER_NANO

    def max_cost(self, input_tokens: int, max_output_tokens: int | None) -> int:
        """Nano-dollars that a request may cost at most, if its prompt was estimated well; rounded up."""
        rates = self._rates_for(input_tokens)
        dearest = max(rates.input, rates.cache_write or 0)
        output = (
            DEFAULT_OUTPUT_TOKENS if max_output_tokens is None or max_output_tokens < 0 else max_output_tokens
        )
        return min(
            MAX_NANOS, self.request - (-(input_tokens * dearest + output * rates.output) // PICOS_PER_NANO)
        )

    def _rates_for(self, input_tokens: int) -> TokenRates:
        found = self.rates[0]
        for rates in self.rates[1:]:
            if input_tokens > rates.above:
                found = rates
        return found


def provider_cost(finish: FinishStep) -> float | None:
    """What a provider that counts by itself says an answer cost, in US dollars."""
    for told in (finish.provider_metadata or {}).values():
        usd = told.get("costUsd")
        if isinstance(usd, int | float):
            return float(usd)
    return None


def usage_of_error(error: DragomanError | None) -> Usage | None:
    """The tokens that a provider says an answer took which failed."""
    used = error.usage if isinstance(error, ProviderError) else None
    return None if used is None else Usage(**used)
