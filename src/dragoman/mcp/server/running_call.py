"""A tool call in its own task, and its progress until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragoman.errors import DragomanError, Unavailable
from dragoman.mcp.server.results import progress_text
from dragoman.operations.context import ProgressCallback

StartCall = Callable[[ProgressCallback | None], Awaitable[dict[str, Any]]]
NO_VALUE = object()
IDENTITY_KEY = "dragoman.identity"  # in an ASGI scope: the caller
CALLS_KEY = "dragoman.calls"  # in an ASGI scope: the running calls that end with the request


class ProgressUpdate(msgspec.Struct, frozen=True):
    """The progress of a call: `count` grows, `text` is for people."""

    count: int
    text: str


class RunningCall:
    """A started call. It ends by itself or with cancel(); a caller that waits may stop waiting at any time.

    Progress that comes faster than it is read is skipped, except the newest.
    """

    def __init__(self, start: StartCall, *, reports_progress: bool) -> None:
        self._value: Any = NO_VALUE
        self._count = 0
        self._changed = asyncio.Event()
        self.error: DragomanError | None = None
        self.task = asyncio.ensure_future(start(self._report if reports_progress else None))
        self.task.add_done_callback(lambda _: self._changed.set())

    def cancel(self, error: DragomanError | None = None) -> None:
        """Abort the call and all calls below it; `error` is then its result instead of Unavailable."""
        self.error = self.error or error
        self.task.cancel()

    async def next(self) -> ProgressUpdate | None:
        """Wait for the next progress; None when the call has ended."""
        await self._changed.wait()
        if self._value is NO_VALUE:
            return None
        value, self._value = self._value, NO_VALUE
        if not self.task.done():
            self._changed.clear()
        self._count += 1
        return ProgressUpdate(self._count, progress_text(value))

    async def result(self) -> dict[str, Any]:
        """Wait for the result; being cancelled cancels the call. An aborted one: `error` or Unavailable."""
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.task.cancelled():
            raise self.error or Unavailable("the call was aborted")
        return self.task.result()

    def _report(self, value: Any) -> None:
        self._value = value
        self._changed.set()
