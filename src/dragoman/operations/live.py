"""Live: a call under way, which can be stopped by itself."""

from __future__ import annotations

import asyncio
from typing import Any


class Live:
    """A call that this task awaits."""

    __slots__ = ("_before", "_task", "stopped")

    def __init__(self) -> None:
        self.stopped: str | None = None
        """Why the call is to stop, without what awaits it."""
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def stop(self, reason: str) -> bool:
        """Stop it; False when it was told already."""
        if self._task is None or self.stopped is not None:
            return False
        self.stopped = reason
        self._task.cancel(reason)
        return True

    def settle(self) -> bool:
        """It is over. Whether, beside its own stop, what awaits it was cancelled too, and has to end.

        Without a stop the count says nothing: up to Python 3.12 a task group leaves it higher when one of
        its tasks has failed.
        """
        if self._task is None or self.stopped is None:
            return False
        return self._task.uncancel() > self._before
