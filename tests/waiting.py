"""Wait for what nothing tells of, and leave the processor to what is waited for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

LIMIT = 120.0  # seconds after which a test hangs; no promise is about it
LONGEST_PAUSE = 0.05
T = TypeVar("T")


async def until(is_true: Callable[[], object]) -> None:
    """Wait until something is true; `is_true` may return an awaitable."""

    async def look() -> object:
        found = is_true()
        return await found if inspect.isawaitable(found) else found

    await poll(look)


async def poll(look: Callable[[], Awaitable[T | None]]) -> T:
    """What `look` returns, once that is neither `None` nor false nor empty.

    The pauses grow with the time that has passed, so that they delay a test by a tenth at most.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.timeout(LIMIT):
        while not (found := await look()):  # noqa: ASYNC110
            await asyncio.sleep(min(LONGEST_PAUSE, (loop.time() - started) / 10))
    return found
