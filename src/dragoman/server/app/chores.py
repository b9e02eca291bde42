"""Chores: what a hub sees to by itself from time to time: answers given elsewhere, and what has grown old."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dragoman.errors import RunActive, StoreError, Unavailable
from dragoman.operations.approval import Approval
from dragoman.operations.permission.guard import Consent
from dragoman.store.store import Store

log = logging.getLogger(__name__)
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


class Heed:
    """Has chats go on that waited for somebody's word: it was given past this process, or not in time.

    What was said while no hub ran counts as well, and what nobody makes use of any more has ended.
    """

    def __init__(
        self, store: Store, go_on: Callable[[Approval], Awaitable[bool]], *, consent: Consent
    ) -> None:
        self._store = store
        self._go_on = go_on
        self._consent = consent
        self._since = 0.0
        self._late: dict[str, Approval] = {}  # their sessions were busy

    async def run(self) -> None:
        """Look every other second, for ever."""
        while True:
            await asyncio.sleep(LOOK)
            with suppress(StoreError, Unavailable):
                if self._store.database.up:
                    await self._look()

    async def _look(self) -> None:
        now = time.time()
        found = await self._store.approvals.settled(self._since)
        wanted = self._late | {each.id: each for each in found}
        for approval in wanted.values():
            self._late[approval.id] = approval
            try:
                await self._settle(approval, over=approval.expires_at <= now)
            except RunActive:
                continue
            except (StoreError, Unavailable):
                raise
            except Exception:
                log.exception("approval %s is not followed", approval.id)
            del self._late[approval.id]
        self._since = now - LOOK

    async def _settle(self, approval: Approval, *, over: bool) -> None:
        current = await self._consent.expire(approval.id) if over else approval
        if not await self._go_on(current) and over:
            await self._consent.abandon(current)
