"""A flag that tasks wait for: `asyncio.Event` without the queue that each event makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Flag:
    """As `asyncio.Event`, for objects of which there are thousands.

    An event takes 0.8 KiB, most of it for an empty queue; a flag takes a tenth until somebody waits.
    """

    __slots__ = ("_is_set", "_waiters", "on_set")

    def __init__(self) -> None:
        self.on_set: Callable[[], None] | None = None
        """Called each time it is set."""
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def __repr__(self) -> str:
        return f"Flag({'set' if self._is_set else 'unset'}, waiters={len(self._waiters or ())})"

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and let all who wait go on."""
        self._is_set = True
        if self.on_set is not None:
            self.on_set()
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Unset it: who waits from now on waits for the next `set`."""
        self._is_set = False

    def take(self) -> bool:
        """Unset it; return whether it was set."""
        was_set, self._is_set = self._is_set, False
        return was_set

    async def wait(self) -> None:
        """Wait until it is set."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            if not self._waiters:
                self._waiters = None
