"""Requests in flight, and how a hub that shuts down drains them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from dragoman.errors import Unavailable

ABORT_SECONDS = 1.0  # that aborted requests get to send their last events


class InFlightRequests:
    """The requests that one surface of the hub is answering."""

    def __init__(self) -> None:
        self.active: dict[TrackedRequest, None] = {}
        """The requests that have not ended, in the order of their arrival."""
        self.idle = asyncio.Event()
        """Set when the last request ends."""

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self.active)

    def track(self, abort: Callable[[], None] | None = None) -> TrackedRequest:
        """Return a context manager that counts a request while its block runs.

        `abort` is called when the request has to end. Without it the block's task is cancelled, and the block
        raises Unavailable.
        """
        return TrackedRequest(self, abort)

    async def drain(self, seconds: float) -> int:
        """Wait up to `seconds` for the requests to end, then abort the rest. Return how many were aborted."""
        await self._wait(seconds)
        late = list(self.active)
        for request in late:
            request.abort()
        if late:
            await self._wait(ABORT_SECONDS)
        return len(late)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.active:
                    self.idle.clear()
                    await self.idle.wait()


class TrackedRequest:
    """A request that is in flight while the block of its `with` runs. See `InFlightRequests.track`.

    A class, not a generator: every request enters it.
    """

    __slots__ = ("_abort", "_is_cancelled", "_requests", "_task")

    def __init__(self, requests: InFlightRequests, abort: Callable[[], None] | None) -> None:
        self._requests = requests
        self._abort = abort
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def __enter__(self) -> None:
        if self._abort is None:
            self._task = asyncio.current_task()
        self._requests.active[self] = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        active = self._requests.active
        del active[self]
        if not active:
            self._requests.idle.set()
        if not self._is_cancelled or self._task is None or not isinstance(error, asyncio.CancelledError):
            return
        if self._task.uncancel() <= 0:
            raise Unavailable("the hub is shutting down; retry the request") from None

    def abort(self) -> None:
        """End the request because the hub shuts down."""
        if self._abort is not None:
            self._abort()
        elif self._task is not None:
            self._is_cancelled = True
            self._task.cancel()
