"""Limits on how many calls run at a time and how often they start. Operations may share a limiter."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec

from dragoman.errors import ConfigError, RateLimited

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
RATE_PATTERN = re.compile(r"(\d{1,9})\s*(?:/|per)\s*(second|minute|hour|day|s|min|h|d)")
PERIOD_ALIASES = {"s": "second", "min": "minute", "h": "hour", "d": "day"}


class Rate(msgspec.Struct, frozen=True):
    """At most `calls` calls in any `seconds` seconds."""

    calls: int
    seconds: float = 60.0

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse `60/minute`, `5/s` or `1000 per day`. Raises ConfigError."""
        match = RATE_PATTERN.fullmatch(text.strip().lower())
        if match is None or int(match[1]) < 1:
            raise ConfigError(f"{text!r} is not a valid rate", hint="write it like 60/minute")
        return cls(int(match[1]), PERIODS[PERIOD_ALIASES.get(match[2], match[2])])


class KeyedSlots:
    """Lets at most `limit` callers of each key in at a time; others wait for their turn."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a free slot of this key and occupy it."""
        async with self._slots.setdefault(key, asyncio.Semaphore(self._limit)):
            yield


class CallLimiter:
    """Runs at most `concurrency` calls at a time and refuses calls above the rate; None means no limit."""

    def __init__(
        self,
        *,
        concurrency: int | None = None,
        rate: Rate | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, got {concurrency}")
        self._semaphore = None if concurrency is None else asyncio.Semaphore(concurrency)
        self._rate = rate
        self._clock = clock
        self._recent_calls: deque[float] = deque()

    @asynccontextmanager
    async def acquire(self, name: str) -> AsyncIterator[None]:
        """Wait for a free slot and occupy it. Raises RateLimited if `name` was called too often."""
        self._check_rate(name)
        if self._semaphore is None:
            yield
            return
        async with self._semaphore:
            yield

    def _check_rate(self, name: str) -> None:
        rate = self._rate
        if rate is None:
            return
        now = asyncio.get_running_loop().time() if self._clock is None else self._clock()
        while self._recent_calls and self._recent_calls[0] <= now - rate.seconds:
            self._recent_calls.popleft()
        if len(self._recent_calls) >= rate.calls:
            wait = round(self._recent_calls[0] + rate.seconds - now, 3)
            raise RateLimited(
                f"{name} is limited to {rate.calls} calls in {rate.seconds:g} seconds.",
                retry_after=wait,
                hint=f"Retry in {wait:g} seconds.",
            )
        self._recent_calls.append(now)
