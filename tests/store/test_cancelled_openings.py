"""Whoever waits for a database to open, or for a lock in it, is cancelled: nothing stays open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dragoman.store.accounts.budgets import BudgetRepository
from dragoman.store.database import Database
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import DatabaseSettings, choose_backend
from tests.store.places import Place
from tests.waiting import until


class HeldCall:
    """A function that blocks in its thread until it is let through, and what happens, in order."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.events: list[str] = []
        self.go = threading.Event()
        self._function = function

    def __call__(self, *args: Any) -> Any:
        self.events.append("begun")
        self.go.wait()
        result = self._function(*args)
        self.events.append("done")
        return result

    async def cancel_meanwhile(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task that waits for the function, and let the function end."""
        await until(lambda: self.events == ["begun"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self.go.set()


async def test_a_lock_that_is_taken_once_its_waiter_is_gone_is_freed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await place.open() as store:
        database = store.database
        take = database._backend.try_lock

        def recorded(name: str) -> Any:
            lock = take(name)
            assert lock is not None

            @contextmanager
            def watched() -> Iterator[None]:
                with lock:
                    yield
                preparing.events.append("freed")

            return watched()

        preparing = HeldCall(recorded)
        monkeypatch.setattr(database._backend, "try_lock", preparing)

        async def wait() -> None:
            async with database.try_lock("purge"):
                raise AssertionError("it was cancelled before")

        await preparing.cancel_meanwhile(asyncio.ensure_future(wait()))
        await until(lambda: "freed" in preparing.events)
        assert preparing.events == ["begun", "done", "freed"]
        async with database.try_lock("purge") as is_taken:
            assert is_taken


async def test_a_database_that_opens_once_nobody_waits_for_it_is_closed_after_that(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = choose_backend(place.folder, DatabaseSettings(place.url))
    preparing, release = HeldCall(backend.prepare), backend.release

    def recorded_release() -> None:
        release()
        preparing.events.append("released")

    monkeypatch.setattr(backend, "prepare", preparing)
    monkeypatch.setattr(backend, "release", recorded_release)
    await preparing.cancel_meanwhile(asyncio.ensure_future(Database.open(backend)))
    await until(lambda: "released" in preparing.events and "done" in preparing.events)
    assert preparing.events == ["begun", "done", "released"]
    async with await place.open():
        pass  # neither the folder nor the database is locked


async def test_a_store_whose_opening_is_cut_off_is_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    before = set(threading.enumerate())  # those of stores that other tests have open

    async def never(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(BudgetRepository, "recover", never)
        opening = asyncio.ensure_future(place.open())
        await begun.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    async with await place.open() as store:  # no process has its folder any more
        await store.sessions.create(Session(id="s", owner="ann", created_at=0.0, updated_at=0.0))
    names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in names if name in ("dragoman-writer", "dragoman-membership")]
