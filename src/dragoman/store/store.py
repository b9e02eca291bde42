"""The store: one database and the nouns that are kept in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dragoman.store.calls import Calls
from dragoman.store.connection import Job
from dragoman.store.database import Database
from dragoman.store.keys import Keys
from dragoman.store.messages import Messages
from dragoman.store.runs import Runs
from dragoman.store.sessions import Sessions
from dragoman.store.sqlite import Synchronous
from dragoman.store.usage import UsageRecords

T = TypeVar("T")
FILE = "hub.db"


class Store:
    """What the hub keeps. Use it in `async with`, or call `close`."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self.sessions = Sessions(database, clock=clock)
        self.messages = Messages(database, clock=clock)
        self.runs = Runs(database, sessions=self.sessions, messages=self.messages)
        self.calls = Calls(database)
        self.usage = UsageRecords(database)
        self.keys = Keys(database, clock=clock)

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        synchronous: Synchronous = "normal",
        exclusive: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> Store:
        """The store in a data folder, created if need be; see `Database.open`."""
        database = await Database.open(folder / FILE, synchronous=synchronous, exclusive=exclusive)
        return cls(database, clock=clock)

    async def write(self, job: Job[T]) -> T:
        """What the job returns, once it is committed."""
        return await self.database.write(job)

    def post(self, job: Job[Any], *, failed: Callable[[Exception], None] | None = None) -> None:
        """Have the job done in order with all others. Unavailable when too many wait.

        `failed` hears why when it could not be done; without it, that is logged.
        """
        self.database.post(job, failed=failed)

    async def flush(self) -> None:
        """Wait until everything that was posted is committed."""
        await self.database.flush()

    async def close(self) -> None:
        """Finish what waits, then close."""
        await self.database.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
