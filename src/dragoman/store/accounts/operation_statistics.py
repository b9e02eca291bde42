"""Statistics of operations: how many calls, how they ended, and how long they took."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, select

from dragoman.operations.outcome import CallStatus
from dragoman.store.accounts.percentiles import percentile_columns
from dragoman.store.connection import Row
from dragoman.store.database import Database
from dragoman.store.tables.core import calls

MAX_CALLS = 10_000  # the newest ones, of which percentiles are computed
STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)


class OperationStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of an operation since a time. Durations are in seconds; None if no call has ended.

    `calls` is at most MAX_CALLS; `capped` says that there are more.
    """

    calls: int
    capped: bool
    by_status: dict[str, int]
    p50: float | None
    p95: float | None
    p99: float | None
    cost: float | None


class OperationStatisticsRepository:
    """Reads statistics of the calls in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, operation: str, *, since: float, owner: str | None = None) -> OperationStatistics:
        """Return the statistics of an operation's calls since a unix time, of one owner or of all."""
        params: dict[str, Any] = {"operation": operation, "since": since}
        if owner is not None:
            params["owner"] = owner
        sql = self._database.query_sql(select_statistics, owner is not None)
        row = await self._database.read(lambda connection: connection.fetch_one(sql, params))
        return to_statistics(row or ())


def select_statistics(owned: bool) -> Select[Any]:
    """Return the query; its parameters are `operation`, `since` and, if `owned`, `owner`."""
    wanted = [calls.c.operation == bindparam("operation"), calls.c.started_at >= bindparam("since")]
    if owned:
        wanted.append(calls.c.owner == bindparam("owner"))
    newest = select(calls.c.status, calls.c.cost, calls.c.started_at, calls.c.ended_at).where(*wanted)
    newest = newest.order_by(calls.c.started_at.desc())
    cap: ColumnElement[int] = literal_column(str(MAX_CALLS + 1))
    found = newest.limit(cap).offset(literal_column("0")).cte("newest")
    took = case(
        (found.c.status == literal_column("'done'"), found.c.ended_at - found.c.started_at),
        (found.c.status == literal_column("'failed'"), found.c.ended_at - found.c.started_at),
        else_=literal_column("NULL"),
    )
    rank = func.row_number().over(order_by=took.asc().nulls_last()).label("rank")
    number = func.count(took).over().label("number")
    ranked = select(found.c.status, found.c.cost, took.label("took"), rank, number).cte("ranked")
    counts = [func.count().filter(ranked.c.status == literal_column(f"'{status}'")) for status in STATUSES]
    times = percentile_columns(ranked.c.took, rank=ranked.c.rank, count=ranked.c.number)
    columns: list[Any] = [func.count(), func.sum(ranked.c.cost), *counts, *times]
    return select(*columns)


def to_statistics(row: Row) -> OperationStatistics:
    count, cost, *rest = row
    counts, percentiles = rest[: len(STATUSES)], rest[len(STATUSES) :]
    return OperationStatistics(
        calls=min(count, MAX_CALLS),
        capped=count > MAX_CALLS,
        by_status={name: number for name, number in zip(STATUSES, counts, strict=True) if number},
        cost=cost,
        p50=percentiles[0],
        p95=percentiles[1],
        p99=percentiles[2],
    )
