"""Fixtures of the accounts tests: a store, a usage spool and a clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.store.store import Store

NOON = 1795348800.0  # 2026-11-22 12:00 UTC


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    async with await Store.open(tmp_path, clock=clock) as opened:
        yield opened
