"""Presence: the work of a request is cancelled at once when its client goes."""

from __future__ import annotations

import asyncio
from types import TracebackType

from dragoman.server.exchange import Exchange

UNWATCHED = 0.02  # seconds at the beginning: what is over by then costs no task that watches


class Presence:
    """`async with Presence(exchange) as presence`: inside, the client's going cancels what is awaited.

    The server is silent about it when something is sent, so the request's own channel is watched. Set `over`
    before the last of an answer is sent: the channel ends then too. `gone` says that the client has left; the
    block ends without an error in that case.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.over = False
        self.gone = False
        self._exchange = exchange
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Presence:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(UNWATCHED, self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        watch, task = self._watch, self._task
        self._timer = self._watch = self._task = None  # no cycles: they would wait for the collector
        if watch is not None:
            watch.cancel()
        if not self.gone or task is None:
            return False
        return task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError)

    def _begin(self) -> None:
        self._watch = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        receive = self._exchange.receive
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self.over and self._task is not None:
            self.gone = True
            self._task.cancel()
