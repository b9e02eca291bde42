"""Underway: a tool call in a task of its own, and what it says until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragoman.errors import Unavailable
from dragoman.mcp.answers import progress_text
from dragoman.operations.context import Report

Start = Callable[[Report | None], Awaitable[dict[str, Any]]]
NOTHING = object()
IDENTITY = "dragoman.identity"  # in an ASGI scope: who asks
UNDERWAY = "dragoman.underway"  # in an ASGI scope: the tasks of the calls that end with the request


class Quiet(msgspec.Struct, frozen=True):
    """It has said nothing for a while."""


class Told(msgspec.Struct, frozen=True):
    """How far a call is: `count` grows, `text` is for people."""

    count: int
    text: str


class Underway:
    """A call that was begun. It ends by itself, or with cancel(); whoever waits may leave at any time.

    What it says faster than it can be told on is skipped, but for the newest. `heard` False: nobody listens.
    """

    def __init__(self, start: Start, *, heard: bool) -> None:
        self._value: Any = NOTHING
        self._count = 0
        self._stirred = asyncio.Event()
        self.task = asyncio.ensure_future(start(self._report if heard else None))
        self.task.add_done_callback(lambda _: self._stirred.set())

    def cancel(self) -> None:
        """Abort the call with all that it called."""
        self.task.cancel()

    async def next(self, timeout: float | None = None) -> Told | Quiet | None:
        """What it says next; Quiet when that takes longer than `timeout`; None when it has ended."""
        try:
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        except TimeoutError:
            return Quiet()
        if self._value is NOTHING:
            return None
        value, self._value = self._value, NOTHING
        if not self.task.done():
            self._stirred.clear()
        self._count += 1
        return Told(self._count, progress_text(value))

    async def result(self) -> dict[str, Any]:
        """What came of it; whoever stops awaiting this cancels it. Unavailable when it was stopped."""
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.task.cancelled():
            raise Unavailable("the call was stopped")
        return self.task.result()

    def _report(self, value: Any) -> None:
        self._value = value
        self._stirred.set()
