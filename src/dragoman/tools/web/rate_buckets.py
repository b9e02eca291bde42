"""Rate buckets: limit the web requests that name the same rate key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from dragoman.errors import BadRequest
from dragoman.operations.call_limiter import CallLimiter, Rate
from dragoman.operations.context import Context

RateLookup: TypeAlias = Callable[[Context], tuple[str, Mapping[str, str]]]
"""Returns the scope whose buckets a caller uses (a team, or empty for the hub), and its rates by key."""


class RateBuckets:
    """The buckets of all callers. Callers of one scope share its buckets."""

    def __init__(self, lookup: RateLookup) -> None:
        self._lookup = lookup
        self._limiters: dict[tuple[str, str], tuple[str, CallLimiter]] = {}

    async def take(self, key: str | None, context: Context) -> None:
        """Take a token from the bucket of a key; without a key do nothing.

        Raises RateLimited, and BadRequest for an unknown key.
        """
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
