"""Limits of a key or an owner: requests, tokens and money."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MAX_COUNT = 2**53 - 1  # the largest integer that JavaScript reads exactly
MAX_USD = 1_000_000_000  # a billion: the database counts in nano-dollars


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Limits of a key or an owner on model requests. None: no limit. Money is in US dollars, days are UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    parallel: int | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None
    usd_total: float | None = None

    @property
    def counts_prompts(self) -> bool:
        """Whether the size of a prompt counts: towards a rate of tokens, or towards money."""
        counted = (self.tokens_per_minute, self.usd_per_day, self.usd_per_month, self.usd_total)
        return any(limit is not None for limit in counted)


NO_LIMITS = Limits()


def limit_problems(limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield the limits that cannot be kept, each by its name and with what is wrong with it."""
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        highest = MAX_USD if name.startswith("usd_") else MAX_COUNT
        if value is not None and not value >= 0:  # NaN is not a limit either
            yield name, f"expected a number >= 0, got {value!r:.40}"
        elif value is not None and value > highest:
            yield name, f"expected a number <= {highest}, got {value!r:.40}"
