"""Deleting by age while the clock is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dragoman.server.app.background_jobs import RetentionPurge
from dragoman.store.retention import Retention
from dragoman.store.settled_clock import SettledClock

DAY = 86_400.0


class CountedRetention:
    """Counts how often expired rows are deleted."""

    def __init__(self) -> None:
        self.rounds = 0

    async def purge(self, periods: Any) -> Mapping[str, int]:
        """Delete nothing."""
        self.rounds += 1
        return {}


async def test_nothing_expires_for_a_day_after_the_clock_was_set_ahead() -> None:
    ahead, passed = 0.0, 0.0
    clock = SettledClock(lambda: 1e9 + ahead + passed, monotonic=lambda: passed)
    retention = CountedRetention()
    purge = RetentionPurge(cast(Retention, retention), {}, count=lambda *_: None, clock=clock)

    async def deletes() -> bool:
        before = retention.rounds
        await purge.purge()
        return retention.rounds > before

    assert await deletes()
    passed += 30 * DAY
    ahead = 1_800.0  # it was a little late
    assert await deletes()
    ahead = 365 * DAY
    assert not await deletes()
    passed += DAY - 1.0
    assert not await deletes()
    ahead = 0.0  # it was wrong
    assert await deletes()
    ahead = 365 * DAY
    assert not await deletes()
    passed += DAY
    assert await deletes()  # it is right
    ahead -= 7_200.0
    assert await deletes()
