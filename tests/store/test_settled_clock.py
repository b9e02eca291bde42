"""Deleting by age while the clock is wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.server.app.background_jobs import RetentionPurge
from dragoman.store.postgres import membership
from dragoman.store.retention import Retention
from dragoman.store.settled_clock import SettledClock
from tests.store.places import empty_place

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


@pytest.mark.parametrize("ahead", [365 * DAY, -365 * DAY], ids=["a year ahead", "a year behind"])
async def test_a_host_that_starts_with_a_wrong_clock_knows_it_from_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    monkeypatch.setattr(membership, "CLOCK", f"{membership.CLOCK} - ({ahead:.0f})")
    caplog.set_level(logging.WARNING, logger="dragoman")
    with empty_place("postgres", tmp_path) as place:
        async with await place.open() as store:
            assert abs(store.clock_ahead - ahead) < DAY
            clock = SettledClock(ahead=store.clock_ahead)
            assert clock.is_settled() == (ahead < 0)
            if ahead > 0:
                assert abs(store.approval_clock() - (time.time() - ahead)) < DAY
                assert clock.settled_time() == 0.0
            else:
                again = SettledClock(ahead=store.clock_ahead)
                assert abs(again.seconds_back() + ahead) < DAY
    assert "NTP" in caplog.text
