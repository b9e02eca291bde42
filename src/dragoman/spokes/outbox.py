"""The outbox: what waits to be sent over one connection; bounded, so that a slow reader costs no memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count

from dragoman.spokes.parts import Sizes
from dragoman.spokes.protocol import Frame, Progress

Send = Callable[[str], Awaitable[None]]


class Outbox:
    """Frames in the order in which they leave: urgent ones first, also between the parts of a big one."""

    def __init__(self, send: Send, *, sizes: Sizes, room: int) -> None:
        """`room` is how many characters may wait before put() does."""
        self._send = send
        self._sizes = sizes
        self._room = room
        self._urgent: dict[str, str] = {}
        self._queue: dict[str, list[str]] = {}
        self._parts: deque[str] = deque()  # what is left of a message that is being sent
        self._held = 0
        self._numbers = count()
        self._closed = False
        self._some = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while nothing is left to be sent."""
        self._space = asyncio.Event()
        self._space.set()

    def post(self, frame: Frame, *, key: str | None = None) -> None:
        """Send a small frame before all others. One of the same key that still waits is replaced."""
        self._urgent[key or f"#{next(self._numbers)}"] = self._sizes.cut(frame)[0]
        self._wake()

    async def put(self, frame: Frame, *, key: str | None = None) -> None:
        """Send a frame; waits while there is no room. TooLarge when the other side would not take it.

        Once the connection is gone it does nothing.
        """
        texts = self._sizes.cut(frame)
        while not self._space.is_set():  # others may have taken it by the time this task goes on
            await self._space.wait()
        if not self._closed:
            self._keep(key or f"#{next(self._numbers)}", texts)

    def close(self) -> None:
        """Nothing leaves any more; nobody waits for room."""
        self._closed = True
        self._space.set()

    def progress(self, frame: Progress) -> None:
        """Send how far a call is, in the place of an older word that still waits; let go without room."""
        key = f"progress {frame.id}"
        texts = self._sizes.cut(frame)
        if not self._closed and (self.withdraw(key) or self._space.is_set()):
            self._keep(key, texts)

    def withdraw(self, key: str) -> bool:
        """Whether a frame had not begun to leave; then it never will."""
        texts = self._queue.pop(key, None)
        if texts is None:
            return False
        self._free(texts)
        return True

    async def run(self) -> None:
        """Send what there is and what will come, until it is cancelled or the connection breaks."""
        while True:
            text = self._next()
            if text is not None:
                await self._send(text)
                continue
            self._some.clear()
            self.idle.set()
            await self._some.wait()

    def _next(self) -> str | None:
        if self._urgent:
            return self._urgent.pop(next(iter(self._urgent)))
        if self._parts:
            return self._parts.popleft()
        if not self._queue:
            return None
        texts = self._queue.pop(next(iter(self._queue)))
        self._free(texts)
        self._parts.extend(texts[1:])
        return texts[0]

    def _keep(self, key: str, texts: list[str]) -> None:
        self._queue[key] = texts
        self._held += sum(map(len, texts))
        if self._held >= self._room:
            self._space.clear()
        self._wake()

    def _wake(self) -> None:
        self.idle.clear()
        self._some.set()

    def _free(self, texts: list[str]) -> None:
        self._held -= sum(map(len, texts))
        if self._held < self._room:
            self._space.set()
