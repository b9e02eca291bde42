"""Chores: what a hub sees to by itself from time to time: answers given elsewhere, and what has grown old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dragoman.errors import StoreError, Unavailable
from dragoman.operations.approval import Approval
from dragoman.store.store import Store

DAY = 86_400  # seconds
LOOK = 2.0  # seconds between two looks for answers


@contextmanager
def background(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """The work goes on inside, and ends with it."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


async def tidy(store: Store, days: int) -> None:
    """Once a day, forget approvals and artifacts that are older than so many days."""
    while True:
        with suppress(StoreError, Unavailable):
            await store.approvals.purge(days * DAY)
            await store.artifacts.purge(days * DAY)
        await asyncio.sleep(DAY)


async def heed(store: Store, go_on: Callable[[Approval], Awaitable[object]]) -> None:
    """Have chats go on whose approvals were answered in the data folder, past this process."""
    since = time.time()
    while True:
        await asyncio.sleep(LOOK)
        now = time.time()
        with suppress(StoreError, Unavailable):
            for approval in await answered(store, since) if store.database.up else ():
                await go_on(approval)
            since = now - LOOK


async def answered(store: Store, since: float) -> list[Approval]:
    """The approvals of runs that were answered from then on."""
    found = [*await store.approvals.list(status="approved"), *await store.approvals.list(status="denied")]
    return [each for each in found if each.run_id is not None and (each.answered_at or 0.0) >= since]
