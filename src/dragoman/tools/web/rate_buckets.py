"""Rate buckets: how often web requests of one kind may be made, by the key that a caller names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from dragoman.errors import BadRequest
from dragoman.operations.call_limiter import CallLimiter, Rate
from dragoman.operations.context import Context

RateLookup: TypeAlias = Callable[[Context], tuple[str, Mapping[str, str]]]
"""Returns whose buckets a caller uses, and their rates by key."""


class RateBuckets:
    """The buckets of all callers; those of one scope (a team, or the hub) share theirs."""

    def __init__(self, lookup: RateLookup) -> None:
        self._lookup = lookup
        self._limiters: dict[tuple[str, str], tuple[str, CallLimiter]] = {}

    async def take(self, key: str | None, context: Context) -> None:
        """Take from a bucket; from none without a key. Raises RateLimited, BadRequest for an unknown key."""
        if key is None:
            return
        scope, rates = self._lookup(context)
        if key not in rates:
            names = ", ".join(sorted(rates)) or "there are none"
            raise BadRequest(f"There is no rate {key[:100]!r}.", field="rate_key", hint=f"Rates: {names}.")
        rate, limiter = self._limiters.get((scope, key), ("", None))
        if limiter is None or rate != rates[key]:
            limiter = CallLimiter(rate=Rate.parse(rates[key]))
            self._limiters[scope, key] = (rates[key], limiter)
        async with limiter.acquire(f"web.fetch with the rate key {key!r}"):
            return
