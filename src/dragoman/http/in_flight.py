"""Requests in flight, and how a hub that shuts down drains them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from dragoman.errors import Unavailable

ABORT_SECONDS = 1.0  # for aborted requests to send their last words


class InFlightRequests:
    """The requests that one surface of the hub is answering."""

    def __init__(self) -> None:
        self._aborts: dict[object, Callable[[], None]] = {}
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        """How many requests are in flight."""
        return len(self._aborts)

    @contextmanager
    def track(self, abort: Callable[[], None] | None = None) -> Iterator[None]:
        """Count a request while the block runs.

        When its time is over `abort` is called. Without one the block's task is cancelled and the block
        raises Unavailable.
        """
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        entry = object()
        aborted = False

        def cancel() -> None:
            nonlocal aborted
            aborted = True
            task.cancel()

        self._aborts[entry] = abort or cancel
        try:
            yield
        except asyncio.CancelledError:
            if not aborted or task.uncancel() > 0:
                raise
            raise Unavailable("the hub is shutting down; retry the request") from None
        finally:
            del self._aborts[entry]
            if not self._aborts:
                self._idle.set()

    async def drain(self, seconds: float) -> int:
        """Wait up to `seconds` for the requests to end, then abort the rest. Return how many were aborted."""
        await self._wait(seconds)
        aborts = list(self._aborts.values())
        for abort in aborts:
            abort()
        if aborts:
            await self._wait(ABORT_SECONDS)
        return len(aborts)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._aborts:
                    self._idle.clear()
                    await self._idle.wait()
