"""Patience: how long a server may take to start, when many start at once on a machine of few cores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TICK = 0.25
EACH_CORE = 2  # processes that start at a time on one core as fast as alone


class Patience:
    """Counts those that start. The more, the slower their time runs: they share the machine."""

    def __init__(self, cores: int | None = None) -> None:
        self._room = EACH_CORE * (cores or os.cpu_count() or 1)
        self._starting = 0

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """TimeoutError after so many seconds, as if no more were starting than the machine starts at ease."""
        self._starting += 1
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(self._watch(limit, seconds))
            try:
                yield
            finally:
                self._starting -= 1
                watching.cancel()

    async def _watch(self, limit: asyncio.Timeout, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        left, last = seconds, loop.time()
        while left > 0:
            await asyncio.sleep(min(TICK, left))
            now = loop.time()
            left -= (now - last) / max(1.0, self._starting / self._room)
            last = now
        limit.reschedule(loop.time())
