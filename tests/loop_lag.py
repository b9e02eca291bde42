"""How long the event loop does nothing else: held by a callback, or by a thread in a C function."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.stopwatch import read_at_once

T = TypeVar("T")
MOST = 0.05  # seconds between two turns of the loop
TRIES = 10  # the best is the work's own: other work of the process, and of the machine, counts too


class LoopWatch:
    """Measures while its block runs; `lag` is the longest turn of the loop in seconds."""

    def __init__(self) -> None:
        self.lag = 0.0
        self._watching: asyncio.Future[None] | None = None

    async def __aenter__(self) -> LoopWatch:
        self._watching = asyncio.ensure_future(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.002)
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        """Note the longest time between two turns, at most 1 ms of which are meant.

        It is the CPU time of the process, for a thread may hold the interpreter. Threads also run while the
        loop waits for a processor; that is what the time on the clock without that wait leaves out.
        """
        while True:
            waited = waited_for_processor()
            used, passed = time.process_time(), time.perf_counter()  # without the time of reading that file
            await asyncio.sleep(0.001)
            used, passed = time.process_time() - used, time.perf_counter() - passed
            self.lag = max(self.lag, min(used, passed - (waited_for_processor() - waited)))


async def best_lag(work: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """Do the work until it holds the loop no longer than `MOST`, a few times; its result and the best lag."""
    best = float("inf")
    for _ in range(TRIES - 1):
        async with LoopWatch() as watch:
            result = await work()
        if watch.lag <= MOST:
            return result, watch.lag
        best = min(best, watch.lag)
    async with LoopWatch() as watch:
        result = await work()
    return result, min(best, watch.lag)


def waited_for_processor() -> float:
    """Return the seconds that this thread was ready to run and did not; 0 where Linux does not say."""
    try:
        words = read_at_once(f"/proc/self/task/{threading.get_native_id()}/schedstat").split()
    except OSError:
        return 0.0
    return int(words[1]) / 1e9
