"""A price: what the tokens of one model cost, in whole numbers."""

from __future__ import annotations

import msgspec

from dragoman.errors import DragomanError, ProviderError
from dragoman.events import FinishStep, Usage

NANO = 1_000_000_000
"""Nano-dollars in a US dollar."""
PICO_A_NANO = 1_000
MOST = 2**62
"""Nano-dollars that the database can still add to others."""
DEFAULT_OUTPUT = 1_024
"""Tokens that an answer is expected to have where its request sets no limit."""
TOLD = "provider"
"""The name of the price where the provider itself says what an answer cost."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What one token costs, in picodollars (a millionth of a US dollar per million tokens), for prompts of
    more than `over` tokens. None for cached tokens: they cost what the others of the prompt do.
    """

    over: int = -1
    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model. `name` says whose it is: `openai/gpt-4o`, or the pattern of an override.

    `rates` ascend by `over`: the whole prompt and its answer are paid at the last one that it reaches.
    """

    name: str
    rates: tuple[Rates, ...]
    request: int = 0
    """Nano-dollars for the request itself."""

    def cost(self, usage: Usage) -> int | None:
        """Nano-dollars, rounded half up. None when a count that costs something is unknown."""
        total, output = usage.input_tokens, usage.output_tokens
        rates = self._at(total or 0)
        if (total is None and rates.input) or (output is None and rates.output):
            return None
        read, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
        picos = max((total or 0) - read - written, 0) * rates.input
        picos += read * (rates.input if rates.cache_read is None else rates.cache_read)
        picos += written * (rates.input if rates.cache_write is None else rates.cache_write)
        picos += (output or 0) * rates.output
        return self.request + (picos + PICO_A_NANO // 2) // PICO_A_NANO

    def ceiling(self, input_tokens: int, max_output: int | None) -> int:
        """Nano-dollars that a request may cost at most, if its prompt was estimated well; rounded up."""
        rates = self._at(input_tokens)
        dearest = max(rates.input, rates.cache_write or 0)
        output = DEFAULT_OUTPUT if max_output is None or max_output < 0 else max_output
        return min(MOST, self.request - (-(input_tokens * dearest + output * rates.output) // PICO_A_NANO))

    def _at(self, input_tokens: int) -> Rates:
        found = self.rates[0]
        for rates in self.rates[1:]:
            if input_tokens > rates.over:
                found = rates
        return found


def told_cost(finish: FinishStep) -> float | None:
    """What a provider that counts by itself says an answer cost, in US dollars."""
    for told in (finish.provider_metadata or {}).values():
        usd = told.get("costUsd")
        if isinstance(usd, int | float):
            return float(usd)
    return None


def used_in(error: DragomanError | None) -> Usage | None:
    """The tokens that a provider says an answer took which failed."""
    used = error.used if isinstance(error, ProviderError) else None
    return None if used is None else Usage(**used)
