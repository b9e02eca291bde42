"""A short soak test; `python -m tests.faults.soak --seconds 600` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import rounds
from tests.faults.soak import soak


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_random_faults_leave_nothing_behind_and_the_rows_are_what_was_served(tmp_path: Path) -> None:
    report = await soak(tmp_path, seconds=rounds(quick=4, thorough=60), clients=24, seed=3)
    assert report.problems == []
    assert set(report.seen) == {"complete", "failed", "left"}
    assert set(report.rows) == {"finished", "failed", "aborted"}
