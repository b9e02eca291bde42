"""Heavy work: what is big is read and written in a thread, one after the other, so that others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dragoman.operations.threads import Threads

T = TypeVar("T")
BIG = 100_000  # characters, about
FEW = 32  # fields of a value that are all looked at
DEEP = 4
OTHER = 100


class Heavy:
    """Calls functions on values: at once, or in its one thread where a value is big."""

    def __init__(self) -> None:
        self._threads = Threads(1, "heavy")

    async def run(self, function: Callable[[Any], T], value: Any) -> T:
        """What the function makes of the value."""
        if weigh(value) < BIG:
            return function(value)
        return await asyncio.get_running_loop().run_in_executor(self._threads.pool, function, value)

    def close(self) -> None:
        """Let the thread go, without waiting for it."""
        self._threads.close()


def weigh(value: Any, depth: int = DEEP) -> int:
    """About how many characters a value has as JSON; guessed from some of its parts."""
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, dict | list | tuple) or not value:
        return OTHER
    if not depth:
        return OTHER * len(value)
    if isinstance(value, dict):
        parts = list(value.values()) if len(value) <= FEW else [*value.values()][:3]
    else:
        parts = list(value) if len(value) <= 3 else [value[0], value[len(value) // 2], value[-1]]
    return len(value) * sum(weigh(part, depth - 1) for part in parts) // len(parts)
