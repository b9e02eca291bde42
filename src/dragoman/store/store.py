"""The store: one database and the nouns that are kept in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import StoreError, Unavailable
from dragoman.store.approvals import Approvals
from dragoman.store.artifacts import Artifacts
from dragoman.store.budgets import Budgets
from dragoman.store.calls import Calls
from dragoman.store.connection import Job
from dragoman.store.database import Database
from dragoman.store.history import History
from dragoman.store.keys import Keys
from dragoman.store.mcp_servers import Definitions, McpServers
from dragoman.store.messages import Messages
from dragoman.store.runs import Runs
from dragoman.store.sealing import MasterKey
from dragoman.store.secrets import Secrets
from dragoman.store.sessions import Sessions
from dragoman.store.sqlite import Synchronous
from dragoman.store.usage import UsageRecords

T = TypeVar("T")
FILE = "hub.db"


class Store:
    """What the hub keeps. Use it in `async with`, or call `close`."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.time,
        master: MasterKey | None = None,
        fresh: bool = True,
    ) -> None:
        """`fresh` False: there may be reservations of a hub that crashed, see `Budgets`."""
        self.database = database
        self.sessions = Sessions(database, clock=clock)
        self.messages = Messages(database, clock=clock)
        self.history = History(database)
        self.runs = Runs(database, sessions=self.sessions, messages=self.messages)
        self.calls = Calls(database)
        self.approvals = Approvals(database, clock=clock)
        self.artifacts = Artifacts(database, clock=clock)
        self.definitions = Definitions(database)
        self.mcp_servers = McpServers(database, clock=clock)
        self.usage = UsageRecords(database)
        self.keys = Keys(database, clock=clock)
        self.secrets = Secrets(database, clock=clock, master=master)
        self.budgets = Budgets(database, clock=clock, fresh=fresh)

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        synchronous: Synchronous = "normal",
        exclusive: bool = True,
        patient: bool = False,
        clock: Callable[[], float] = time.time,
        master: MasterKey | None = None,
    ) -> Store:
        """The store in a data folder, created if need be; see `Database.open`. `master` opens its secrets."""
        database = await Database.open(
            folder / FILE, synchronous=synchronous, exclusive=exclusive, patient=patient
        )
        store = cls(database, clock=clock, master=master, fresh=not exclusive)
        with suppress(StoreError, Unavailable):  # the first who reserves tries again
            await store.budgets.recover()
        return store

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
