"""The heart of a stream: a comment when nothing was said for a while, so that nobody takes it for dead."""

from __future__ import annotations

import asyncio
from types import TracebackType

from dragoman.server.exchange import Exchange
from dragoman.wire.dialect import KEEP_ALIVE


class Heart:
    """`with Heart(exchange, period) as heart`; `period` is in seconds. `beat` whenever something is sent.

    One timer a stream, armed again only when it fires.
    """

    def __init__(self, exchange: Exchange, period: float) -> None:
        self._exchange = exchange
        self._period = period
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def __enter__(self) -> Heart:
        self._timer = self._loop.call_later(self._period, self._fire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def beat(self) -> None:
        """Something is being sent."""
        self._last = self._loop.time()

    def _fire(self) -> None:
        quiet = self._loop.time() - self._last
        if quiet >= self._period:
            quiet = 0.0
            self.beat()
            if self._sending is None or self._sending.done():
                self._sending = asyncio.ensure_future(self._send())
        self._timer = self._loop.call_later(self._period - quiet, self._fire)

    async def _send(self) -> None:
        await self._exchange.send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
