"""A pool for deliveries to many owners' receivers: slow receivers of one owner do not delay the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

AT_ONCE = 50  # deliveries under way at a time
PER_OWNER = 10  # of these, for one owner


class DeliveryPool:
    """The deliveries that are under way."""

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        """`on_end` is called after each delivery."""
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._owners: Counter[str] = Counter()

    @property
    def room(self) -> int:
        """How many more may be under way."""
        return AT_ONCE - len(self._tasks)

    def has_room(self, owner: str) -> bool:
        """Return whether another delivery of an owner may begin."""
        return self.room > 0 and self._owners[owner] < PER_OWNER

    def start(self, owner: str, delivery: Coroutine[Any, Any, None]) -> None:
        """Begin a delivery, which has to handle its own errors."""
        self._owners[owner] += 1
        task = asyncio.ensure_future(delivery)
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, owner))

    async def close(self) -> None:
        """Cancel the deliveries under way; they are still due after a restart."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, owner: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]
        self._on_end()
