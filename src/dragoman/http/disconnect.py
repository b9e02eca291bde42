"""Cancellation of a request's work when its client disconnects.

ASGI servers report a closed connection only in `receive`, not when something is sent. So a task calls
`receive` while the handler works, unless the server can call back (`DisconnectSource`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from types import TracebackType

from dragoman.http.asgi_exchange import Exchange

CLOCK_RESOLUTION = 0.001  # seconds; uvloop's clock counts in milliseconds
WATCH_DELAY = 0.02  # seconds; a request that ends earlier needs no watching task


class DisconnectSource(ABC):
    """The owner of a `receive` that can call back when the client disconnects, which needs no task."""

    @abstractmethod
    def watch_disconnect(self, callback: Callable[[], None] | None) -> bool:
        """Call `callback` when the client disconnects; with None, do not any more. Return whether it will.

        False while `receive` has messages to return. `receive` must not be called meanwhile.
        """


class LateStarts:
    """Starts the watches that are still open after `WATCH_DELAY`, with one timer for an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: deque[tuple[float, DisconnectWatch]] = deque()
        self.timer: asyncio.TimerHandle | None = None

    @staticmethod
    def add(watch: DisconnectWatch) -> None:
        """Start a watch after the delay, unless its block has ended by then."""
        global _late_starts  # noqa: PLW0603 - a program has one event loop, and this runs for every request
        loop, starts = asyncio.get_running_loop(), _late_starts
        if starts is None or starts.loop is not loop:
            starts = _late_starts = LateStarts(loop)
        starts.waiting.append((loop.time() + WATCH_DELAY, watch))
        if starts.timer is None:
            starts.timer = loop.call_later(WATCH_DELAY, starts._start_due)

    def _start_due(self) -> None:
        waiting, now = self.waiting, self.loop.time()
        while waiting and waiting[0][0] <= now + CLOCK_RESOLUTION:
            _, watch = waiting.popleft()
            if watch.task is not None:
                watch.start()
        self.timer = self.loop.call_at(waiting[0][0], self._start_due) if waiting else None


_late_starts: LateStarts | None = None  # of the event loop that was used last


class DisconnectWatch:
    """`with DisconnectWatch(exchange) as watch`: cancel the block when the client disconnects.

    Set `response_complete` before the last part of the response is sent, because `receive` reports the end of
    a response as a disconnect, too. After a disconnect the block ends without an error and `disconnected` is
    set. Watching starts after `WATCH_DELAY`, or with `at_once` when the block is entered.
    """

    __slots__ = ("_at_once", "_exchange", "_source", "_watch", "disconnected", "response_complete", "task")

    def __init__(self, exchange: Exchange, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self.response_complete = False
        self.disconnected = False
        self._exchange = exchange
        self.task: asyncio.Task[object] | None = None
        """The task of the block; None outside it."""
        self._watch: asyncio.Task[None] | None = None
        self._source: DisconnectSource | None = None

    def __enter__(self) -> DisconnectWatch:
        self.task = asyncio.current_task()
        if self._at_once:
            self.start()
        else:
            LateStarts.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        watch, source, task = self._watch, self._source, self.task
        self._watch = self._source = self.task = None  # no cycles: they would wait for the garbage collector
        if watch is not None:
            watch.cancel()
        if source is not None:
            source.watch_disconnect(None)
        if not self.disconnected or task is None:
            return False
        return task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError)

    def start(self) -> None:
        """Start to watch."""
        source = getattr(self._exchange.receive, "__self__", None)  # the server, if `receive` is its method
        if isinstance(source, DisconnectSource) and source.watch_disconnect(self._on_disconnect):
            self._source = source
        else:
            self._watch = asyncio.ensure_future(self._wait_for_disconnect())

    def _on_disconnect(self) -> None:
        """Cancel the block, once: a server may call for the request and again for its connection."""
        if not (self.response_complete or self.disconnected) and self.task is not None:
            self.disconnected = True
            self.task.cancel()

    async def _wait_for_disconnect(self) -> None:
        receive = self._exchange.receive
        while (await receive())["type"] != "http.disconnect":
            pass
        self._on_disconnect()
