"""The outbox: what waits to be sent over one connection; bounded, so that a slow reader costs no memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

from dragoman.errors import FrameTooLong, TooLarge
from dragoman.spokes.protocol import Frame, Part, Progress, encode

# ---- Parts: a message over the size of a frame, cut into frames and joined again.

ENVELOPE = 64
WIDEST = 4  # bytes of a character of JSON text inside a JSON string
SHOWN = 200


class Sizes:
    """How big frames and whole messages may be, in bytes."""

    __slots__ = ("frame", "message")

    def __init__(self, *, frame: int, message: int) -> None:
        self.frame = frame
        self.message = message

    def cut(self, frame: Frame) -> list[str]:
        """The texts to be sent for a frame: itself, or its parts. TooLarge when the other side takes none."""
        whole = encode(frame)
        if len(whole) > self.message:
            raise TooLarge(f"the message has {len(whole)} bytes, and the other side takes {self.message}")
        if len(whole) <= self.frame:
            return [whole.decode()]
        return list(self._parts(whole.decode()))

    def _parts(self, text: str) -> Iterator[str]:
        step = max(1, (self.frame - ENVELOPE) // WIDEST)
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            yield encode(Part(text=piece, last=start + step >= len(text))).decode()


class Joiner:
    """Joins the parts of one message after the other."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[str] = []
        self._size = 0

    def add(self, part: Part) -> str | None:
        """The whole message once its last part has come. FrameTooLong when it is over the limit."""
        self._size += len(part.text)
        if self._size > self._limit:
            self._held.clear()
            raise FrameTooLong(f"a message in parts is over {self._limit} bytes")
        self._held.append(part.text)
        if not part.last:
            return None
        whole, self._held, self._size = "".join(self._held), [], 0
        return whole


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
