"""Usage records in the database: what each model call consumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import astuple
from sqlalchemy import (
    CTE,
    ClauseElement,
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from dragoman.events import Usage
from dragoman.store.accounts.usage_report import (
    TOKEN_COLUMNS,
    GroupBy,
    UsageReport,
    UsageReportRow,
    filter_conditions,
)
from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob, Params, Row, to_params
from dragoman.store.database import Database
from dragoman.store.tables.core import team_tasks, usage
from dragoman.usage_record import UsageRecord

RECORD_COLUMNS = tuple(name for name in UsageRecord.__struct_fields__ if name != "tokens")
USAGE_COLUMNS = (*TOKEN_COLUMNS, "estimated")
COLUMNS = (*RECORD_COLUMNS, *USAGE_COLUMNS)
CALL_COLUMNS = ("step", "call_id")  # with `run_id` the same for each attempt at a step of a run
BATCH_SIZES = (32, 8, 1)  # records in one statement
NO_TOTALS = (0, None, 0, *(None for _ in TOKEN_COLUMNS))
# A record's fields and those of its tokens, in the order in which an INSERT names the columns.
_FIELDS = (*UsageRecord.__struct_fields__, *Usage.__struct_fields__)
order_values = itemgetter(*(_FIELDS.index(column.name) for column in usage.columns))


class UsageTotals(msgspec.Struct, frozen=True):
    """Sums over model calls. A sum of unknown values is None; `tokens.estimated` if any call's tokens are."""

    calls: int
    cost: float | None
    tokens: Usage


class UsageStatements:
    """The SQL of `UsageRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        added = compiler.insert(usage).values({name: bindparam(name) for name in COLUMNS})
        self.insert = compiler.compile(added)
        self.of_task = compiler.compile(select_sums().join(*tasks_in_tree()))
        columns = [usage.c[name] for name in COLUMNS]
        self.get = compiler.compile(select(*columns).where(usage.c.id == bindparam("id")))
        self.delete = compiler.compile(delete(usage).where(usage.c.id == bindparam("id")))
        call = [usage.c[name].is_not_distinct_from(bindparam(name)) for name in CALL_COLUMNS]
        of_run = usage.c.run_id == bindparam("run_id")  # not NULL: for `=` there is an index
        self.list_attempts = compiler.compile(
            select(*columns).where(of_run, *call).order_by(usage.c.started_at)
        )
        self.insert_missing = [
            (size, compiler.compile_positional(adding(compiler, size=size))) for size in BATCH_SIZES
        ]


class UsageRepository:
    """The usage records of all owners. Deleting a session does not delete its usage."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> UsageStatements:
        return self._database.statements(UsageStatements)

    def insert_job(self, record: UsageRecord) -> DatabaseJob[None]:
        """Return a job that inserts a record, for `Store.enqueue` or `Store.write`."""
        params = record_params(record)

        def job(connection: DatabaseConnection) -> None:
            connection.execute_batched(self._sql.insert, params)

        return job

    def insert_missing_job(self, records: Iterable[UsageRecord]) -> DatabaseJob[None]:
        """Return a job that inserts the records that do not exist yet, so that a batch can be repeated."""
        rows: list[tuple[Any, ...]] = [
            order_values((*astuple(record), *astuple(record.tokens))) for record in records
        ]

        def job(connection: DatabaseConnection) -> None:
            at = 0
            for size, sql in self._sql.insert_missing:
                while len(rows) - at >= size:
                    connection.execute_positional(sql, tuple(chain.from_iterable(rows[at : at + size])))
                    at += size

        return job

    def take_estimate(self, connection: DatabaseConnection, record: UsageRecord) -> UsageRecord | None:
        """Delete and return the estimate of the call of a record, which began before: the first one after it.

        None if there is none.
        """
        for attempt in self._attempts(connection, record):
            if attempt.is_lost and attempt.started_at > record.started_at:
                connection.execute(self._sql.delete, {"id": attempt.id})
                return attempt
        return None

    def is_recorded(self, connection: DatabaseConnection, lost: UsageRecord) -> bool:
        """Return whether the call of an estimate has a record of its own."""
        attempts = self._attempts(connection, lost)
        return any(each.started_at < lost.started_at and not each.tokens.estimated for each in attempts)

    def _attempts(self, connection: DatabaseConnection, record: UsageRecord) -> Sequence[UsageRecord]:
        """Return the records of all attempts at the step of a record, in the order in which they began."""
        params = {name: getattr(record, name) for name in ("run_id", *CALL_COLUMNS)}
        return [to_record(row) for row in connection.fetch_all(self._sql.list_attempts, params)]

    async def add(self, record: UsageRecord) -> None:
        """Insert a record; it is committed on return."""
        await self._database.write(self.insert_job(record))

    async def get(self, id: str) -> UsageRecord | None:
        """Return the record of this id, or None."""
        rows = await self._query(self._sql.get, {"id": id})
        return to_record(rows[0]) if rows else None

    async def totals(
        self,
        *,
        owner: str | None = None,
        key_id: str | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
        since: float | None = None,
    ) -> UsageTotals:
        """Return sums over the records that match all arguments and started at `since` or later."""
        filters = {
            "owner": owner,
            "key_id": key_id,
            "session_id": session_id,
            "run_id": run_id,
            "since": since,
        }
        params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        sql = self._database.query_sql(select_totals, frozenset(params))
        row = await self._database.read(lambda connection: connection.fetch_one(sql, params))
        return to_totals(row or NO_TOTALS)

    async def task_totals(self, task_id: str) -> UsageTotals:
        """Return sums over what a task of a team, and the tasks below it, have used so far."""
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.of_task, {"task_id": task_id})
        )
        return to_totals(row or NO_TOTALS)

    async def report(
        self,
        group_by: Sequence[GroupBy] = (),
        *,
        since: float | None = None,
        until: float | None = None,
        filters: Mapping[str, str] | None = None,
        limit: int = 1000,
    ) -> Sequence[UsageReportRow]:
        """Return sums for each group of records with `since <= started_at < until`.

        Rows are ordered by time if grouped by day or hour, then by cost, highest first. Without `group_by`
        there is one row. `filters`: the names in `FILTERS`.
        """
        params = query_filters(since, until, filters=filters)
        report = UsageReport(group_by)
        sql = self._database.compile(report.select(params))
        rows = await self._query(sql, {**params, "limit": limit})
        return [report.to_row(row) for row in rows]

    async def list(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        filters: Mapping[str, str] | None = None,
        after: tuple[float, str] | None = None,
        limit: int = 1000,
    ) -> Sequence[UsageRecord]:
        """Return records, oldest first; `after` is `(started_at, id)` of the previous page's last record."""
        params = query_filters(since, until, filters=filters)
        wanted = filter_conditions(params)
        place = (usage.c.started_at, usage.c.id)
        if after is not None:
            wanted.append(tuple_(*place) > tuple_(bindparam("after_at"), bindparam("after_id")))
            params |= {"after_at": after[0], "after_id": after[1]}
        found = select(*(usage.c[name] for name in COLUMNS)).where(*wanted)
        page = found.order_by(*place).limit(bindparam("limit")).offset(literal_column("0"))
        sql = self._database.compile(page)
        return [to_record(row) for row in await self._query(sql, {**params, "limit": limit})]

    async def _query(self, sql: str, params: Params) -> Sequence[Row]:
        return await self._database.read(lambda connection: connection.fetch_all(sql, params))


def select_totals(names: frozenset[str]) -> ClauseElement:
    """Return the query for the sums of all records with these parameters."""
    return select_sums().where(*filter_conditions(names))


def select_sums() -> Select[Any]:
    """Return the query for the sums of all records."""
    sums: list[ColumnElement[Any]] = [func.sum(usage.c[name]) for name in ("cost", *TOKEN_COLUMNS)]
    counts: list[ColumnElement[Any]] = [func.count(), func.count().filter(usage.c.estimated)]
    return select(*counts, *sums).select_from(usage)


def tasks_in_tree() -> tuple[CTE, ColumnElement[bool]]:
    """Return a task of a team with all below it, and the condition that a record is of one of them.

    The tasks of a topic share a session, one after the other: a record belongs to the one that ran then.
    """
    place = team_tasks.c.session_id, team_tasks.c.started_at, team_tasks.c.ended_at
    tree = select(*place).where(team_tasks.c.id == bindparam("task_id")).cte("tree", recursive=True)
    is_child = team_tasks.c.source_session == tree.c.session_id
    tree = tree.union(select(*place).join(tree, and_(is_child, runs_at(team_tasks.c.created_at, of=tree))))
    return tree, and_(usage.c.session_id == tree.c.session_id, runs_at(usage.c.started_at, of=tree))


def runs_at(time: ColumnElement[float], *, of: CTE) -> ColumnElement[bool]:
    """Return the condition that a task ran at a time."""
    return and_(time >= of.c.started_at, or_(of.c.ended_at.is_(None), time <= of.c.ended_at))


def adding(compiler: Compiler, *, size: int) -> ClauseElement:
    """Return an INSERT of `size` records: between statements, threads contend for the interpreter."""
    rows: list[dict[str, Any]] = [
        {column.name: bindparam(f"{column.name}_{row}") for column in usage.columns} for row in range(size)
    ]
    return compiler.insert(usage).values(rows).on_conflict_do_nothing(index_elements=["id"])


def query_filters(
    since: float | None, until: float | None, *, filters: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the filters that are set, as statement parameters."""
    values: dict[str, Any] = {"since": since, "until": until, **(filters or {})}
    return {name: value for name, value in values.items() if value is not None}


def record_params(record: UsageRecord) -> dict[str, Any]:
    return to_params(record) | to_params(record.tokens)


def to_record(row: Row) -> UsageRecord:
    own = dict(zip(RECORD_COLUMNS, row[: len(RECORD_COLUMNS)], strict=True))
    counts = dict(zip(USAGE_COLUMNS, row[len(RECORD_COLUMNS) :], strict=True))
    return UsageRecord(tokens=Usage(**counts | {"estimated": bool(counts["estimated"])}), **own)


def to_totals(row: Row) -> UsageTotals:
    calls, estimated, cost, *tokens = row
    counts = dict(zip(TOKEN_COLUMNS, tokens, strict=True))
    return UsageTotals(calls=calls, cost=cost, tokens=Usage(**counts, estimated=estimated > 0))
