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
SPELLING = re.compile(r"(\d+)\s*(?:/|per)\s*(second|minute|hour|day|s|min|h|d)")
SHORT = {"s": "second", "min": "minute", "h": "hour", "d": "day"}


class Rate(msgspec.Struct, frozen=True):
    """At most so many `calls` within any `seconds`."""

    calls: int
    seconds: float = 60.0

    @classmethod
    def parse(cls, text: str) -> Rate:
        """The rate in `60/minute`, `5/s`, `1000 per day`. ConfigError when it is none."""
        found = SPELLING.fullmatch(text.strip().lower())
        if found is None or int(found[1]) < 1:
            raise ConfigError(f"{text!r} is no rate", hint="one reads like 60/minute")
        return cls(int(found[1]), PERIODS[SHORT.get(found[2], found[2])])


class Gate:
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
        self._free = None if concurrency is None else asyncio.Semaphore(concurrency)
        self._rate = rate
        self._clock = clock
        self._passed: deque[float] = deque()

    @asynccontextmanager
    async def enter(self, name: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it. RateLimited when `name` was called too often already."""
        self._count(name)
        if self._free is None:
            yield
            return
        async with self._free:
            yield

    def _count(self, name: str) -> None:
        rate = self._rate
        if rate is None:
            return
        now = asyncio.get_running_loop().time() if self._clock is None else self._clock()
        while self._passed and self._passed[0] <= now - rate.seconds:
            self._passed.popleft()
        if len(self._passed) >= rate.calls:
            wait = round(self._passed[0] + rate.seconds - now, 3)
            raise RateLimited(
                f"{name} takes {rate.calls} calls in {rate.seconds:g} seconds, and had them",
                retry_after=wait,
                hint=f"try again in {wait:g} seconds",
            )
        self._passed.append(now)
