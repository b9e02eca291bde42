"""A store on each backend; every contract test runs on all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.store.store import Store

BACKENDS = ["sqlite"]


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=BACKENDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the backend's store is, still empty."""
    return tmp_path / str(request.param)


@pytest.fixture
async def store(folder: Path, clock: Clock) -> AsyncIterator[Store]:
    async with await Store.open(folder, clock=clock) as opened:
        yield opened
