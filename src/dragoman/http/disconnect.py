"""Cancellation of a request's work when its client disconnects.

ASGI servers do not report a closed connection when something is sent; only `receive` does. So a task reads
the request's channel while the work is done.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from dragoman.http.asgi_exchange import Exchange

WATCH_DELAY = 0.02  # seconds; requests that are answered by then never pay for a task that watches


class DisconnectWatch:
    """`with DisconnectWatch(exchange) as watch`: cancel the block when the client disconnects.

    Set `response_complete` before the last part of the response is sent, because the channel reports a
    disconnect then too. After a disconnect the block ends without an error and `disconnected` is set.
    Watching begins after `delay` seconds.
    """

    def __init__(self, exchange: Exchange, *, delay: float = WATCH_DELAY) -> None:
        self._delay = delay
        self.response_complete = False
        self.disconnected = False
        self._exchange = exchange
        self.task: asyncio.Task[object] | None = None
        """The task of the block; None outside it."""
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> DisconnectWatch:
        self.task = asyncio.current_task()
        if self._delay:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._start)
        else:
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        watch, task = self._watch, self.task
        self._timer = self._watch = self.task = None  # no cycles: they would wait for the garbage collector
        if watch is not None:
            watch.cancel()
        if not self.disconnected or task is None:
            return False
        return task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError)

    def _start(self) -> None:
        self._watch = asyncio.ensure_future(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        receive = self._exchange.receive
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self.response_complete and self.task is not None:
            self.disconnected = True
            self.task.cancel()
