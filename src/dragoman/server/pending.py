"""Pending: the requests under way at a door, for which a hub that is stopped has some seconds left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from dragoman.errors import Unavailable


class Pending:
    """Knows of the requests that are being answered, and ends them when it is told to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """This task answers a request while the block runs. Unavailable when there is no time left for it."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel() > 0:
                raise
            raise Unavailable("the hub is being stopped", hint="ask again later") from None
        finally:
            self._tasks.discard(task)
            self._ended.discard(task)

    async def drain(self, seconds: float) -> None:
        """Give what is under way so many seconds; what is left then is aborted."""
        if not self._tasks:
            return
        _, left = await asyncio.wait(self._tasks, timeout=seconds)
        for task in left & self._tasks:
            self._ended.add(task)
            task.cancel()
