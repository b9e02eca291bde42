"""Notices of stalled tasks: a warning after an hour of waiting, an error after a day, each given once.

A notice is claimed in the database, so that one host gives it, also after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from dragoman.errors import StoreError, Unavailable
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TeamTask

log = logging.getLogger(__name__)
StallKind: TypeAlias = Literal["warning", "error"]
LEVELS: Sequence[tuple[int, StallKind, float]] = ((2, "error", 86_400.0), (1, "warning", 3_600.0))
"""The levels, the longest wait first: number in the row, name, and the seconds after which it holds."""
CHECK_INTERVAL = 60.0  # seconds


class StallDetector:
    """Finds tasks that wait in a queue, or for a person or another task, for too long."""

    def __init__(
        self, store: Store, *, on_stall: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        """`on_stall` is called with the level of each notice."""
        self._store = store
        self._clock = clock
        self._on_stall = on_stall

    async def run(self) -> None:
        """Check every CHECK_INTERVAL seconds, until cancelled."""
        while True:
            try:
                if self._store.database.is_up:
                    await self.check()
            except (StoreError, Unavailable) as error:
                log.info("tasks that stall are checked later: %s", error.message)
            await asyncio.sleep(CHECK_INTERVAL)

    async def check(self) -> Sequence[TeamTask]:
        """Give the notices that are due, and return their tasks. Raises StoreError, Unavailable."""
        noticed: list[TeamTask] = []
        for number, kind, seconds in LEVELS:
            since = self._clock() - seconds
            for task in await self._store.team_tasks.claim_stalled(number, since=since, kind=kind):
                hours = int((self._clock() - waits_since(task)) // 3_600)
                text = f"task {task.id} of team {task.team} is {task.state} for {hours} hours"
                log.log(logging.ERROR if kind == "error" else logging.WARNING, "%s", text)
                self._on_stall(kind)
                noticed.append(task)
        return noticed


def waits_since(task: TeamTask) -> float:
    """Return the earliest time at which a task can have begun to wait."""
    return task.created_at if task.state == "queued" else task.started_at or task.created_at
