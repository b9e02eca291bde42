"""A store on each backend; every contract test runs on all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dragoman.store.store import Store
from tests.databases import BACKENDS, databases_as_named
from tests.store.places import Place, empty_place
from tests.waiting import LIMIT


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
def database() -> Iterator[None]:
    """The tests of the store name their database themselves: see `place`."""
    with databases_as_named():
        yield


@pytest.fixture
def patient_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long as it takes for the locks of a process that was killed, or has just closed its store.

    Postgres releases them once it notices, which takes long on a busy machine.
    """
    monkeypatch.setattr("dragoman.store.postgres.locks.LOCK_SECONDS", LIMIT)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where the store is, still empty, on each backend."""
    with empty_place(request.param, tmp_path / "data") as found:
        yield found


@pytest.fixture
async def store(place: Place, clock: Clock) -> AsyncIterator[Store]:
    async with await place.open(clock=clock) as opened:
        yield opened
