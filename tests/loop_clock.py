"""The clock of an event loop in the hands of a test, so that a loaded machine changes no outcome.

Set ahead, it ends what is limited in time at once, and not before the test says so. Stopped, it shows that
something needs no time: whatever waits for one (`asyncio.timeout`, `asyncio.sleep`, a deadline) waits on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class LoopClock:
    """The clock of the running event loop, from now until the loop ends: it never goes back."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._read = loop.time
        self._ahead = 0.0
        self._stopped_at: float | None = None
        loop.time = self._time  # type: ignore[method-assign]

    def set_ahead(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._ahead += seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let no time pass within the block."""
        self._stopped_at = self._time()
        try:
            yield
        finally:
            self._ahead = self._stopped_at - self._read()
            self._stopped_at = None

    def _time(self) -> float:
        return self._read() + self._ahead if self._stopped_at is None else self._stopped_at
