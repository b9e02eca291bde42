"""A gate: how many calls pass at a time, and how often. Operations may share one."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from dragoman.errors import ConfigError, RateLimited

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
RATE_PATTERN = re.compile(r"(\d+)\s*(?:/|per)\s*(second|minute|hour|day|s|min|h|d)")
PERIOD_ALIASES = {"s": "second", "min": "minute", "h": "hour", "d": "day"}


class Rate(msgspec.Struct, frozen=True):
    """At most so many `calls` within any `seconds`."""

    calls: int
    seconds: float = 60.0

    @classmethod
    def parse(cls, text: str) -> Rate:
        """The rate in `60/minute`, `5/s`, `1000 per day`. ConfigError when it is none."""
        found = RATE_PATTERN.fullmatch(text.strip().lower())
        if found is None or int(found[1]) < 1:
            raise ConfigError(f"{text!r} is no rate", hint="one reads like 60/minute")
        return cls(int(found[1]), PERIODS[PERIOD_ALIASES.get(found[2], found[2])])


class CallLimiter:
    """Lets `concurrency` calls through at a time, and refuses those above the rate. None: as many as come."""

    def __init__(
        self,
        *,
        concurrency: int | None = None,
        rate: Rate | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"a concurrency is at least 1, got {concurrency}")
        self._semaphore = None if concurrency is None else asyncio.Semaphore(concurrency)
        self._rate = rate
        self._clock = clock
        self._recent_calls: deque[float] = deque()

    @asynccontextmanager
    async def acquire(self, name: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it. RateLimited when `name` was called too often already."""
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
                f"{name} takes {rate.calls} calls in {rate.seconds:g} seconds, and had them",
                retry_after=wait,
                hint=f"try again in {wait:g} seconds",
            )
        self._recent_calls.append(now)
