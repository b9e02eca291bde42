"""The send queue of one connection; bounded, so that a slow reader costs no memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count

from dragoman.errors import FrameTooLong, RateLimited, TooLarge
from dragoman.large_json import SMALL
from dragoman.offload import offload
from dragoman.spokes.protocol import (
    PartFrame,
    ProgressFrame,
    SpokeFrame,
    encode_frame,
    encode_long,
    frame_size,
)

# ---- Parts: a message that is longer than a frame, split into frames and joined again.

ENVELOPE_BYTES = 64
MAX_CHAR_BYTES = 4  # bytes of a character of JSON text inside a JSON string
SHOWN_CHARS = 400  # characters at the start of a message that is too long
MAX_URGENT = 1_000  # urgent frames that wait, above which `wait_for_urgent` waits


class FrameSizes:
    """The sizes of frames and whole messages, in bytes."""

    __slots__ = ("frame", "message")

    def __init__(self, *, frame: int, message: int) -> None:
        self.frame = frame
        self.message = message

    def split(self, frame: SpokeFrame) -> list[str]:
        """Return the texts to send for a frame: itself or its parts. Raises TooLarge."""
        whole = encode_frame(frame) if frame_size(frame) <= SMALL else encode_long(frame)
        if len(whole) > self.message:
            raise TooLarge(
                f"the message has {len(whole)} bytes, and the other side accepts at most {self.message}"
            )
        if len(whole) <= self.frame:
            return [whole.decode()]
        return list(self._parts(whole.decode()))

    def _parts(self, text: str) -> Iterator[str]:
        step = max(1, (self.frame - ENVELOPE_BYTES) // MAX_CHAR_BYTES)
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            yield encode_frame(PartFrame(text=piece, last=start + step >= len(text))).decode()


class PartJoiner:
    """Joins the parts of messages, one message at a time. `limit` is in characters."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._texts: list[str] = []
        self._size = 0
        self._dropping = False
        self.start = ""
        """The start of the last message that was too long."""

    def add(self, part: PartFrame) -> str | None:
        """Return the whole message after its last part.

        Raises FrameTooLong when it exceeds the limit, once; its other parts are then ignored.
        """
        self._size += len(part.text)
        if self._dropping or self._size > self._limit:
            first, self._dropping = not self._dropping, not part.last
            self.start = (self._texts or [part.text])[0][:SHOWN_CHARS] if first else self.start
            self._texts, self._size = [], 0
            if first:
                raise FrameTooLong(f"a message in parts is over {self._limit} bytes")
            return None
        self._texts.append(part.text)
        if not part.last:
            return None
        whole, self._texts, self._size = "".join(self._texts), [], 0
        return whole


SendText = Callable[[str], Awaitable[None]]


class Outbox:
    """The frames to send: urgent ones first, even between the parts of a long one."""

    def __init__(self, send_text: SendText, *, sizes: FrameSizes, limit: int) -> None:
        """`limit` is how many characters may wait before send() blocks."""
        self._send_text = send_text
        self._sizes = sizes
        self._limit = limit
        self._urgent: dict[str, str] = {}
        self._queue: dict[str, list[str]] = {}
        self._parts: deque[str] = deque()  # the other parts of the message that is being sent
        self._queued_size = 0
        self._numbers = count()
        self._closed = False
        self._has_frames = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while nothing waits to be sent."""
        self._space = asyncio.Event()
        self._space.set()
        self._urgent_space = asyncio.Event()
        self._urgent_space.set()

    def send_urgent(self, frame: SpokeFrame, *, key: str | None = None) -> None:
        """Send a small frame before all others. A waiting one of the same key is replaced."""
        self._urgent[key or f"#{next(self._numbers)}"] = self._sizes.split(frame)[0]
        if len(self._urgent) >= MAX_URGENT:
            self._urgent_space.clear()
        self._wake()

    async def wait_for_urgent(self) -> None:
        """Wait while many urgent frames wait; call it before starting work that may end with one."""
        if not self._closed:
            await self._urgent_space.wait()

    async def send(self, frame: SpokeFrame, *, key: str | None = None) -> None:
        """Send a frame, waiting for space. Raises TooLarge if the other side would not accept it.

        A large frame is encoded in a thread. Does nothing once the connection is closed.
        """
        texts = await offload(frame_size(frame), partial(self._sizes.split, frame))
        while not self._space.is_set():  # other tasks may have used the space before this one continues
            await self._space.wait()
        if not self._closed:
            self._enqueue(key or f"#{next(self._numbers)}", texts)

    def close(self) -> None:
        """Send nothing more; wake up the tasks that wait for space."""
        self._closed = True
        self._space.set()
        self._urgent_space.set()

    def send_progress(self, frame: ProgressFrame) -> None:
        """Send progress in place of earlier progress that still waits; drop it if there is no space."""
        key = f"progress {frame.id}"
        texts = self._sizes.split(frame)
        if not self._closed and (self.withdraw(key) or self._space.is_set()):
            self._enqueue(key, texts)

    def send_now(self, frame: SpokeFrame) -> None:
        """Queue a frame without waiting. Raises RateLimited if there is no space, and TooLarge."""
        texts = self._sizes.split(frame)
        if not self._space.is_set():
            raise RateLimited("too much data is waiting to be sent to the other side", retry_after=1.0)
        if not self._closed:
            self._enqueue(f"#{next(self._numbers)}", texts)

    def is_waiting(self, key: str) -> bool:
        """Return whether a frame of this key waits to be sent."""
        return key in self._queue

    def withdraw(self, key: str) -> bool:
        """Remove a frame that is not sent yet; return whether there was one."""
        texts = self._queue.pop(key, None)
        if texts is None:
            return False
        self._release(texts)
        return True

    async def run(self) -> None:
        """Send frames until cancelled or the connection breaks."""
        while True:
            text = self._next()
            if text is not None:
                await self._send_text(text)
                continue
            self._has_frames.clear()
            self.idle.set()
            await self._has_frames.wait()

    def _next(self) -> str | None:
        if self._urgent:
            text = self._urgent.pop(next(iter(self._urgent)))
            if len(self._urgent) < MAX_URGENT:
                self._urgent_space.set()
            return text
        if self._parts:
            return self._parts.popleft()
        if not self._queue:
            return None
        texts = self._queue.pop(next(iter(self._queue)))
        self._release(texts)
        self._parts.extend(texts[1:])
        return texts[0]

    def _enqueue(self, key: str, texts: list[str]) -> None:
        self._queue[key] = texts
        self._queued_size += sum(map(len, texts))
        if self._queued_size >= self._limit:
            self._space.clear()
        self._wake()

    def _wake(self) -> None:
        self.idle.clear()
        self._has_frames.set()

    def _release(self, texts: list[str]) -> None:
        self._queued_size -= sum(map(len, texts))
        if self._queued_size < self._limit:
            self._space.set()
