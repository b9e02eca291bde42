"""Webhook deliveries in the database. A row is written in the transaction that ends its run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)

from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Params,
    is_due,
    select_fields,
    to_params,
    to_struct,
)
from dragoman.store.database import Database
from dragoman.store.tables.core import webhook_deliveries

MAX_PLANNED_DELIVERY = 10_800.0  # seconds until the next attempt: none is planned later
DeliveryStatus: TypeAlias = Literal["pending", "delivered", "failed"]


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery. `next_at` is when it is tried next; `error` says why it failed last."""

    id: str
    run_id: str
    session_id: str
    owner: str
    url: str
    body: str = ""
    status: DeliveryStatus = "pending"
    attempts: int = 0
    next_at: float
    created_at: float
    ended_at: float | None = None
    error: str | None = None

    @classmethod
    def of_run(cls, run_id: str, url: str, *, session_id: str, owner: str, at: float) -> WebhookDelivery:
        """Return the delivery that tells a webhook of a run's end."""
        return cls(
            id=f"msg_{run_id}",
            run_id=run_id,
            session_id=session_id,
            owner=owner,
            url=url,
            next_at=at,
            created_at=at,
        )


class WebhookDeliveryStatements:
    """The SQL of `WebhookDeliveryRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table = webhook_deliveries
        found = select_fields(WebhookDelivery, table)
        zero: ColumnElement[int] = literal_column("0")
        earlier = table.alias("earlier")
        is_before = or_(
            earlier.c.created_at < table.c.created_at,
            and_(earlier.c.created_at == table.c.created_at, earlier.c.id < table.c.id),
        )
        waits = exists(select(earlier.c.id)).where(
            earlier.c.session_id == table.c.session_id,
            earlier.c.status == literal_column("'pending'"),
            is_before,
        )
        of_owner = func.row_number().over(partition_by=table.c.owner, order_by=(table.c.next_at, table.c.id))
        due = found.where(IS_PENDING_DELIVERY, is_due(table.c.next_at, limit=MAX_PLANNED_DELIVERY), ~waits)
        ranked = due.add_columns(of_owner.label("of_owner")).subquery()
        fair = select(*(ranked.c[name] for name in WebhookDelivery.__struct_fields__)).where(
            ranked.c.of_owner <= bindparam("per_owner")
        )
        first = fair.order_by(ranked.c.of_owner, ranked.c.next_at)
        this = table.c.id == bindparam("id")
        attempt = update(table).where(this, IS_PENDING_DELIVERY, table.c.attempts == bindparam("at_attempts"))
        result: dict[str, Any] = {
            name: bindparam(name) for name in ("status", "next_at", "ended_at", "error")
        }
        self.insert = compiler.compile(compiler.insert(table).on_conflict_do_nothing(index_elements=["id"]))
        self.due = compiler.compile(first.limit(bindparam("limit")).offset(zero))
        self.claim = compiler.compile(
            attempt.values(attempts=bindparam("attempts"), next_at=bindparam("next_at"))
        )
        self.end = compiler.compile(attempt.values(result))
        self.of_run = compiler.compile(found.where(table.c.run_id == bindparam("run_id")))
        self.purge = compiler.compile(delete(table).where(table.c.ended_at < bindparam("before")))


IS_PENDING_DELIVERY: ColumnElement[bool] = webhook_deliveries.c.status == literal_column("'pending'")


class WebhookDeliveryRepository:
    """The deliveries of all runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> WebhookDeliveryStatements:
        return self._database.statements(WebhookDeliveryStatements)

    def insert(self, connection: DatabaseConnection, delivery: WebhookDelivery) -> None:
        """In a job: add a delivery, unless there is one of its id."""
        connection.execute_batched(self._sql.insert, to_params(delivery))

    async def list_due(self, now: float, *, limit: int, per_owner: int) -> Sequence[WebhookDelivery]:
        """Return deliveries to try now: of each session the first that is pending, of all owners in turn."""
        return await self._read(self._sql.due, {"now": now, "limit": limit, "per_owner": per_owner})

    async def claim(self, delivery: WebhookDelivery, *, until: float) -> bool:
        """Count an attempt, and keep other hosts from it until a time. False when another one was faster."""
        params = {
            "id": delivery.id,
            "at_attempts": delivery.attempts,
            "attempts": delivery.attempts + 1,
            "next_at": until,
        }
        return await self._database.write(lambda connection: connection.execute(self._sql.claim, params) > 0)

    async def end(
        self, delivery: WebhookDelivery, status: DeliveryStatus, *, at: float, error: str | None
    ) -> bool:
        """Write the outcome of an attempt; for "pending", `at` is when it is tried again.

        False when a later attempt has begun, after the time for which this one was claimed.
        """
        ended_at = None if status == "pending" else at
        params = {"id": delivery.id, "status": status, "next_at": at, "ended_at": ended_at, "error": error}
        params["at_attempts"] = delivery.attempts + 1
        return await self._database.write(lambda connection: connection.execute(self._sql.end, params) > 0)

    async def get_of_run(self, run_id: str) -> WebhookDelivery | None:
        """Return the delivery of a run."""
        found = await self._read(self._sql.of_run, {"run_id": run_id})
        return found[0] if found else None

    async def purge(self, *, before: float) -> None:
        """Delete the deliveries that ended before this time."""
        await self._database.write(lambda connection: connection.execute(self._sql.purge, {"before": before}))

    async def _read(self, sql: str, params: Params) -> Sequence[WebhookDelivery]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_struct(WebhookDelivery, row) for row in rows]
