"""Keep-alive comments on idle server-sent event streams.

Proxies and clients close a stream that is silent for too long (nginx: 60 s). One timer a stream, re-armed
only when it fires, so a busy stream pays nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType


class KeepAlive:
    """Call `send_comment` after `interval` seconds without output. Use it in `async with`.

    Set `last_output` to the event loop's time at each write (an attribute, to cost little for each chunk).
    Send an event that needs several writes in `async with keep_alive.paused()`, as a comment would break it.
    """

    def __init__(self, send_comment: Callable[[], Awaitable[None]], interval: float) -> None:
        self._send_comment = send_comment
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self.last_output = self._loop.time()
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Future[None] | None = None

    def note_output(self) -> None:
        """Set `last_output` to now."""
        self.last_output = self._loop.time()

    async def __aenter__(self) -> KeepAlive:
        self._timer = self._loop.call_later(self._interval, self._fire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        sending = self._sending
        if sending is None or sending.done():
            return
        try:
            # A comment may start the response; cancelled half-way, it would leave the rest without a head.
            if error is None:
                await asyncio.wait([sending])
        finally:
            sending.cancel()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Send no comment while the block runs, after waiting for one that is being sent."""
        self._is_paused = True
        try:
            if self._sending is not None and not self._sending.done():
                await asyncio.wait([self._sending])
            yield
        finally:
            self._is_paused = False
            self.last_output = self._loop.time()

    def _fire(self) -> None:
        idle = self._loop.time() - self.last_output
        if idle >= self._interval:
            idle = 0.0
            self.last_output = self._loop.time()
            if not self._is_paused and (self._sending is None or self._sending.done()):
                self._sending = asyncio.ensure_future(self._send_comment())
        self._timer = self._loop.call_later(self._interval - idle, self._fire)
