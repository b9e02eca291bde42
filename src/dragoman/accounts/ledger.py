"""The ledger: usage and what it does to budgets, into the database, or into the spool until it takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sqlalchemy import bindparam, select

from dragoman.accounts.spool import Settlement, Spool
from dragoman.errors import DragomanError, StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.store.budgets import Charge
from dragoman.store.connection import Connection
from dragoman.store.store import Store
from dragoman.store.tables import usage

TOGETHER = 0.02  # seconds in which usage gathers: waking the writer costs more than a row
AGAIN = 5.0  # seconds until what an open database refused is tried again
REFUSED = (DragomanError, ArithmeticError, TypeError, ValueError)

log = logging.getLogger(__name__)


class Ledger:
    """What is added is written once in effect, whatever becomes of database and process in between."""

    def __init__(self, store: Store, spool: Spool) -> None:
        self.spool = spool
        self.boot = new_id("boot")
        """Names this process to the spool."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._pending: list[Settlement] = []
        self._owed: list[tuple[Sequence[Charge], int]] = []
        self._replaying: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        found = select(usage.c.id).where(usage.c.id == bindparam("id"))
        self._find = store.database.compile(found)

    async def open(self) -> None:
        """Write what an earlier process has left, now or when the database is up."""
        await self.spool.open()
        self._store.database.on_up(self._replay_now)
        if self._store.database.up and self.spool.rows:
            await self._replay()

    async def close(self) -> None:
        """Give everything to the database or the disk."""
        self._hand_over()
        with suppress(StoreError, Unavailable):
            await self._store.flush()
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.wait([self._replaying])
        await self.spool.close()

    async def catch_up(self) -> None:
        """Wait until all that was added is in the database, or in the spool because that is down."""
        self._hand_over()
        with suppress(StoreError, Unavailable):
            await self._store.flush()
        if self._again is not None:
            self._again.cancel()
            self._replay_now()
        if self._replaying is not None:
            await asyncio.wait([self._replaying])

    def add(self, settlement: Settlement) -> None:
        """Write it, together with all others of this moment; what budgets wait for is not waited for."""
        self._pending.append(settlement)
        if settlement.charges:
            self._loop.call_soon(self._hand_over)
        elif len(self._pending) == 1:
            self._loop.call_later(TOGETHER, self._hand_over)

    def give_back(self, charges: Sequence[Charge], reserved: int) -> None:
        """Nothing was spent of what was reserved."""
        job = self._store.budgets.settling(charges, reserved=reserved, spent=0)
        try:
            self._store.post(job, failed=lambda _: self._owe(charges, reserved))
        except (StoreError, Unavailable):
            self._owe(charges, reserved)

    def _owe(self, charges: Sequence[Charge], reserved: int) -> None:
        """To be given back when the database is up; a process that starts anew has reserved nothing."""
        self._owed.append((charges, reserved))
        if self._store.database.up:
            self._replay_later()

    def _hand_over(self) -> None:
        batch, self._pending = self._pending, []
        if not batch:
            return
        try:
            self._store.post(partial(self._enter, batch), failed=partial(self._set_aside, batch))
        except (StoreError, Unavailable) as error:
            self._set_aside(batch, error)

    def _enter(self, batch: Sequence[Settlement], connection: Connection) -> None:
        self._store.usage.adding_many([settlement.record for settlement in batch])(connection)
        for settlement in batch:
            if settlement.charges:
                self._settle(settlement, connection)

    def _set_aside(self, batch: Sequence[Settlement], error: Exception) -> None:
        if not self.spool.rows:  # said once an outage, not once a request
            log.warning("usage waits in the spool until the database takes it: %s", error)
        self.spool.put(batch)
        if self._store.database.up:
            self._replay_later()

    def _replay_later(self) -> None:
        if self._again is None and not self._closed:
            self._again = self._loop.call_later(AGAIN, self._replay_now)

    def _replay_now(self) -> None:
        self._again = None
        owed, self._owed = self._owed, []
        for charges, reserved in owed:
            self.give_back(charges, reserved)
        if self._replaying is None and not self._closed and self.spool.rows:
            self._replaying = asyncio.create_task(self._replay())

    async def _replay(self) -> None:
        try:
            count = await self.spool.replay(self._write)
            log.warning("%d usage records that waited were written", count)
        except (StoreError, Unavailable, OSError) as error:
            log.warning("%d usage records go on waiting: %s", self.spool.rows, error)
        except Exception:
            log.exception("%d usage records go on waiting", self.spool.rows)
        finally:
            self._replaying = None
        if self.spool.rows and self._store.database.up:
            self._replay_later()

    async def _write(self, chunk: Sequence[Settlement]) -> None:
        """Write those that are not there yet; what the database refuses for its own sake is logged."""
        try:
            await self._store.write(partial(self._restore, chunk))
        except (StoreError, Unavailable):
            raise
        except REFUSED as error:
            if len(chunk) == 1:
                log.error("the usage record %r is lost: %s", chunk[0].record.id, error)
                return
            for settlement in chunk:
                await self._write([settlement])

    def _restore(self, chunk: Sequence[Settlement], connection: Connection) -> None:
        for settlement in chunk:
            if connection.one(self._find, {"id": settlement.record.id}) is None:
                self._store.usage.adding_many([settlement.record])(connection)
                self._settle(settlement, connection)

    def _settle(self, settlement: Settlement, connection: Connection) -> None:
        reserved = settlement.reserved if settlement.boot == self.boot else 0
        budgets = self._store.budgets
        budgets.settling(settlement.charges, reserved=reserved, spent=settlement.spent)(connection)
