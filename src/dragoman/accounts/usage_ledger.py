"""The usage ledger: usage records and budget settlements, written to the database or to the spool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Select, bindparam, select

from dragoman.accounts.price import to_nanos
from dragoman.accounts.spool import Settlement, Spool
from dragoman.errors import DragomanError, HostFenced, StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.store.accounts.budgets import BudgetRefusal, ChargedBudget, window_at
from dragoman.store.connection import DatabaseConnection
from dragoman.store.store import Store
from dragoman.store.tables.core import usage
from dragoman.usage_record import UsageRecord

BATCH_SECONDS = 0.02  # records are collected for this long: waking the writer costs more than a row
RETRY_SECONDS = 5.0  # before records that an available database refused are retried
DATA_ERRORS = (DragomanError, ArithmeticError, TypeError, ValueError)

log = logging.getLogger(__name__)


class UsageLedger:
    """Writes each settlement exactly once in effect, even if the database or the process fails in between."""

    def __init__(self, store: Store, spool: Spool) -> None:
        self.spool = spool
        self.boot_id = new_id("boot")
        """Identifies this process in the spool."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._pending: list[Settlement] = []
        self._timer: asyncio.TimerHandle | None = None
        self._unsettled: list[tuple[Sequence[ChargedBudget], int, int]] = []
        self._replay_task: asyncio.Task[None] | None = None
        self._replay_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._find_record = store.database.query_sql(select_record_id, "id")

    async def open(self) -> None:
        """Write what an earlier process left in the spool, now or when the database is up."""
        await self.spool.open()
        self._store.database.on_recovery(self._replay_now)
        if self._store.database.is_up and self.spool.row_count:
            await self._replay()

    async def close(self) -> None:
        """Write everything to the database or to the spool."""
        self.write_batch()
        with suppress(StoreError, Unavailable):
            await self._store.flush()
        self._closed = True
        if self._replay_timer is not None:
            self._replay_timer.cancel()
        if self._replay_task is not None:
            self._replay_task.cancel()
            await asyncio.wait([self._replay_task])
        await self.spool.close()

    async def replay_leftover(self, spool: Spool) -> int:
        """Write what a process that has ended left in its spool; return how many records there were.

        Raises StoreError, Unavailable, OSError.
        """
        try:
            return await spool.replay(self._write_chunk)
        finally:
            await spool.close()

    async def flush(self) -> None:
        """Wait until all settlements are in the database or, if that is down, in the spool."""
        self.write_batch()
        with suppress(StoreError, Unavailable):
            await self._store.flush()
        if self._replay_timer is not None:
            self._replay_timer.cancel()
            self._replay_now()
        if self._replay_task is not None:
            await asyncio.wait([self._replay_task])

    def add(self, settlement: Settlement) -> None:
        """Write a settlement in a batch with others; one with charges at the next iteration of the loop."""
        self._pending.append(settlement)
        if settlement.charges or settlement.shared:
            self._loop.call_soon(self.write_batch)
        elif self._timer is None:
            self._timer = self._loop.call_later(BATCH_SECONDS, self._on_timer)

    async def reserve(self, charges: Sequence[ChargedBudget], amount: int) -> BudgetRefusal | None:
        """Reserve an amount in the database; return the refusal if a budget has too little left.

        What is reserved after the caller was cancelled is released. Raises StoreError, Unavailable.
        """
        reserving = asyncio.ensure_future(self._store.budgets.reserve(charges, amount))
        try:
            return await asyncio.shield(reserving)
        except asyncio.CancelledError:
            reserving.add_done_callback(partial(self._release_late, charges=charges, amount=amount))
            raise

    def _release_late(
        self, reservation: asyncio.Future[Any], *, charges: Sequence[ChargedBudget], amount: int
    ) -> None:
        if not reservation.cancelled() and reservation.exception() is None and reservation.result() is None:
            self.release_reservation(charges, amount)

    def release_reservation(self, charges: Sequence[ChargedBudget], reserved: int) -> None:
        """Release a reservation of which nothing was spent."""
        self.settle(charges, reserved=reserved, spent=0)

    def settle(self, charges: Sequence[ChargedBudget], *, reserved: int, spent: int) -> None:
        """Release a reservation, and charge what is spent without a usage record."""
        job = self._store.budgets.settle_job(charges, reserved=reserved, spent=spent)
        settle_later = partial(self._settle_later, (charges, reserved, spent))
        try:
            self._store.enqueue(job, on_failure=settle_later)
        except (StoreError, Unavailable) as error:
            settle_later(error)

    def _settle_later(self, settled: tuple[Sequence[ChargedBudget], int, int], error: Exception) -> None:
        """Settle when the database is up again. Not persisted: reservations end with the process."""
        if isinstance(error, HostFenced):
            return
        self._unsettled.append(settled)
        if self._store.database.is_up:
            self._replay_later()

    def _on_timer(self) -> None:
        self._timer = None
        self.write_batch()

    def write_batch(self) -> None:
        """Queue what was added so far; the store writes it with all else that is queued in this iteration."""
        batch, self._pending = self._pending, []
        if not batch:
            return
        try:
            self._store.enqueue(
                partial(self._insert_batch, batch), on_failure=partial(self._spool_batch, batch)
            )
        except (StoreError, Unavailable) as error:
            self._spool_batch(batch, error)

    def _insert_batch(self, batch: Sequence[Settlement], connection: DatabaseConnection) -> None:
        if lost := [settlement for settlement in batch if settlement.record.is_lost]:
            self._insert_missing(lost, connection)
            batch = [settlement for settlement in batch if not settlement.record.is_lost]
        self._store.usage.insert_missing_job([settlement.record for settlement in batch])(connection)
        for settlement in batch:
            if settlement.charges or settlement.shared:
                self._settle_budgets(settlement, connection)

    def _spool_batch(self, batch: Sequence[Settlement], error: Exception) -> None:
        """Spool what the database did not take. Usage of a fenced host's runs is counted elsewhere."""
        if isinstance(error, HostFenced):
            batch = [settlement for settlement in batch if settlement.record.run_id is None]
            if not batch:
                return
        if not self.spool.row_count:  # once an outage, not once a request
            log.warning("usage records are spooled until the database accepts them: %s", error)
        self.spool.append(batch)
        if self._store.database.is_up:
            self._replay_later()

    def _replay_later(self) -> None:
        if self._replay_timer is None and not self._closed:
            self._replay_timer = self._loop.call_later(RETRY_SECONDS, self._replay_now)

    def _replay_now(self) -> None:
        self._replay_timer = None
        unsettled, self._unsettled = self._unsettled, []
        for charges, reserved, spent in unsettled:
            self.settle(charges, reserved=reserved, spent=spent)
        if self._replay_task is None and not self._closed and self.spool.row_count:
            self._replay_task = asyncio.create_task(self._replay())

    async def _replay(self) -> None:
        try:
            count = await self.spool.replay(self._write_chunk)
            log.warning("%d spooled usage records were written", count)
        except (StoreError, Unavailable, OSError) as error:
            log.warning("%d usage records stay in the spool: %s", self.spool.row_count, error)
        except Exception:
            log.exception("%d usage records stay in the spool", self.spool.row_count)
        finally:
            self._replay_task = None
        if self.spool.row_count and self._store.database.is_up:
            self._replay_later()

    async def _write_chunk(self, chunk: Sequence[Settlement]) -> None:
        """Write those that do not exist yet. A record that is itself invalid is logged and dropped."""
        try:
            await self._store.write(partial(self._insert_missing, chunk))
        except (StoreError, Unavailable):
            raise
        except DATA_ERRORS as error:
            if len(chunk) == 1:
                log.error("the usage record %r is lost: %s", chunk[0].record.id, error)
                return
            for settlement in chunk:
                await self._write_chunk([settlement])

    def _insert_missing(self, chunk: Sequence[Settlement], connection: DatabaseConnection) -> None:
        for settlement in chunk:
            if connection.fetch_one(self._find_record, {"id": settlement.record.id}) is None:
                self._insert_late(settlement, connection)

    def _insert_late(self, settlement: Settlement, connection: DatabaseConnection) -> None:
        """Write a settlement, so that a call of a lost process is counted once: by its record if there is
        one, which may come before or after the estimate.
        """
        store, record = self._store, settlement.record
        if record.is_lost and store.usage.is_recorded(connection, record):
            self._settle_budgets(replace(settlement, spent=0, shared_spent=0), connection)
            return
        if record.run_id is not None and not record.is_lost:
            estimate = store.usage.take_estimate(connection, record)
            if estimate is not None:
                self._settle_budgets(refund(estimate, settlement), connection)
        store.usage.insert_missing_job([record])(connection)
        self._settle_budgets(settlement, connection)

    def _settle_budgets(self, settlement: Settlement, connection: DatabaseConnection) -> None:
        is_own = settlement.boot == self.boot_id
        budgets, reserved = self._store.budgets, settlement.reserved if is_own else 0
        budgets.settle_job(settlement.charges, reserved=reserved, spent=settlement.spent)(connection)
        for charge, part in settlement.shared:
            spent = settlement.shared_spent
            budgets.settle_job([charge], reserved=part if is_own else 0, spent=spent)(connection)


def refund(estimate: UsageRecord, settlement: Settlement) -> Settlement:
    """Return what gives the cost of an estimate back to the budgets that pay for its call, as of its time."""
    cost = to_nanos(estimate.cost or 0.0)
    charges = tuple(
        replace(charge, window=window_at(charge.window, estimate.started_at)) for charge in settlement.charges
    )
    return replace(settlement, charges=charges, reserved=0, spent=-cost, boot="", shared_spent=-cost)


def select_record_id(name: str) -> Select[Any]:
    """Return the query for the ids of the usage records with a value of a column."""
    return select(usage.c.id).where(usage.c[name] == bindparam(name))
