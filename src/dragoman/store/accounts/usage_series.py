"""Usage over time: sums and percentiles of model calls, by period and group, for charts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    select,
)

from dragoman.store.accounts.percentiles import PERCENTS, percentile_columns
from dragoman.store.accounts.usage_report import (
    PERIOD_SECONDS,
    GroupBy,
    filter_conditions,
    group_column,
    group_label,
    group_source,
)
from dragoman.store.connection import Params, Row
from dragoman.store.database import Database
from dragoman.store.tables.core import usage

Period: TypeAlias = Literal["hour", "day"]
GroupKey: TypeAlias = tuple[Any, ...]
MEASURED = ("first_byte", "duration")
MAX_RECORDS = 200_000  # the newest ones, of which percentiles are computed


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles (nearest rank) of the known values, in seconds; None if none is known."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class UsagePoint(msgspec.Struct, frozen=True, rename="camel"):
    """Sums and percentiles of the model calls of a group, or of one period of it."""

    calls: int = 0
    failed: int = 0
    unpriced: int = 0
    cost: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    first_byte: Percentiles = Percentiles()
    duration: Percentiles = Percentiles()


class UsageSeries(msgspec.Struct, frozen=True):
    """A group, its total, and its points by the number of the period since 1970; periods may be missing."""

    group: Mapping[str, str | None]
    total: UsagePoint
    points: Mapping[int, UsagePoint]


class UsageSeriesResult(msgspec.Struct, frozen=True):
    """The series of all calls, those of the largest groups, and whether there are further groups.

    `sampled` is true if percentiles are those of the newest MAX_RECORDS calls only.
    """

    whole: UsageSeries
    groups: Sequence[UsageSeries]
    more: bool
    sampled: bool


class UsageSeriesRepository:
    """Reads usage over time. All of one result is read in one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(
        self, period: Period, group_by: Sequence[GroupBy], *, params: Params, groups: int, charted: int
    ) -> UsageSeriesResult:
        """Return the totals of the `groups` largest groups, with points for the first `charted`.

        `params` are filters as `query_filters` returns them, with `since` and `until`.
        """
        statements = SeriesQueries(period, tuple(dict.fromkeys(group_by)), filters=frozenset(params))
        compiled = {name: self._database.compile(query) for name, query in statements.queries()}

        def read(connection: Any) -> UsageSeriesResult:
            def fetch(name: str, limit: int) -> Sequence[Row]:
                rows: Sequence[Row] = connection.fetch_all(compiled[name], {**params, "limit": limit})
                return rows

            totals = read_points(fetch("totals", groups + 1), statements.width)
            whole = read_points(fetch("whole", 1), 0)[()]
            series = UsageSeries(
                {}, whole, by_period(read_points(fetch("whole_points", groups), 1)).get((), {})
            )
            points = by_period(read_points(fetch("points", charted), statements.width + 1))
            found = [
                UsageSeries(statements.label(key), total, points.get(key, {}))
                for key, total in list(totals.items())[:groups]
            ]
            if not statements.width:
                found = []
            return UsageSeriesResult(series, found, len(totals) > groups, sampled=whole.calls > MAX_RECORDS)

        return await self._database.read(read)


class SeriesQueries:
    """The queries of one shape of report; their parameters are the filters and `limit`."""

    def __init__(self, period: Period, group_by: tuple[GroupBy, ...], *, filters: Collection[str]) -> None:
        self._group_by = group_by
        self._conditions = filter_conditions(filters)
        self._period = group_column(period).label("period")
        self.width = len(group_by)

    def queries(self) -> Sequence[tuple[str, Select[Any]]]:
        """Return the queries by name."""
        ranked = self._ranked(self._groups(), name="totals_ranked")
        totals = summed(ranked, [ranked.c[f"g{at}"] for at in range(self.width)])
        largest = (ranked_order(totals)).limit(bindparam("limit")).offset(literal_column("0"))
        whole = self._ranked([], name="whole_ranked")
        by_time = self._ranked([self._period], name="time_ranked")
        return (
            ("totals", largest),
            ("whole", summed(whole, [])),
            ("whole_points", summed(by_time, [by_time.c.g0])),
            ("points", self._points()),
        )

    def label(self, key: GroupKey) -> Mapping[str, str | None]:
        """Return the names of a group's values."""
        return {name: group_label(name, value) for name, value in zip(self._group_by, key, strict=True)}

    def _groups(self) -> list[ColumnElement[Any]]:
        return [group_column(name) for name in self._group_by]

    def _points(self) -> Select[Any]:
        """Return the query of the points of the largest groups."""
        ranked = self._ranked([*self._groups(), self._period], name="points_ranked")
        columns = [ranked.c[f"g{at}"] for at in range(self.width)]
        query = summed(ranked, [*columns, ranked.c[f"g{self.width}"]])
        if not self.width:
            return query
        groups = self._groups()
        cost, calls = func.sum(usage.c.cost), func.count()
        top = select(*(each.label(f"g{at}") for at, each in enumerate(groups)))
        top = top.select_from(group_source(self._group_by)).where(*self._conditions).group_by(*groups)
        top = top.order_by(func.coalesce(cost, literal_column("0")).desc(), calls.desc(), *groups)
        best = top.limit(bindparam("limit")).offset(literal_column("0")).cte("best")
        same = and_(*(best.c[f"g{at}"].is_not_distinct_from(each) for at, each in enumerate(columns)))
        return query.where(select(literal_column("1")).select_from(best).where(same).exists())

    def _ranked(self, groups: Sequence[ColumnElement[Any]], *, name: str) -> CTE:
        """Return the calls with their rank in their group by each measure, and how many have it.

        Only of the newest MAX_RECORDS calls: the others have no rank.
        """
        columns = [each.label(f"g{at}") for at, each in enumerate(groups)]
        age = func.row_number().over(order_by=usage.c.started_at.desc())
        columns_used = [usage.c[each] for each in ("started_at", *MEASURED, "cost", "error", "status")]
        columns_used += [usage.c.input_tokens, usage.c.output_tokens]
        source = select(*columns, *columns_used, age.label("age")).select_from(group_source(self._group_by))
        numbered = source.where(*self._conditions).cte(f"{name}_source")
        recent = numbered.c.age <= literal_column(str(MAX_RECORDS))
        partition = [numbered.c[f"g{at}"] for at in range(len(groups))]
        ranks: list[ColumnElement[Any]] = []
        for measure in MEASURED:
            value = case((recent, numbered.c[measure]), else_=literal_column("NULL"))
            rank = func.row_number().over(partition_by=partition or None, order_by=value.asc().nulls_last())
            count = func.count(value).over(partition_by=partition or None)
            ranks += [
                value.label(f"{measure}_value"),
                rank.label(f"{measure}_rank"),
                count.label(f"{measure}_count"),
            ]
        return select(numbered, *ranks).cte(name)


def summed(ranked: FromClause, groups: Sequence[ColumnElement[Any]]) -> Select[Any]:
    """Return the query of the sums and percentiles of each group."""
    has_failed = ranked.c.error.is_not(None) | (ranked.c.status == literal_column("'failed'"))
    sums: list[ColumnElement[Any]] = [
        func.count(),
        func.count().filter(has_failed),
        func.count() - func.count(ranked.c.cost),
        *(func.sum(ranked.c[name]) for name in ("cost", "input_tokens", "output_tokens")),
    ]
    for measure in MEASURED:
        names = (f"{measure}_value", f"{measure}_rank", f"{measure}_count")
        value, rank, count = (ranked.c[name] for name in names)
        sums += percentile_columns(value, rank=rank, count=count)
    return select(*groups, *sums).group_by(*groups) if groups else select(*sums)


def ranked_order(query: Select[Any]) -> Select[Any]:
    """Return the query with the dearest groups first, then those with the most calls."""
    columns = list(query.selected_columns)
    width = len(columns) - 6 - len(MEASURED) * len(PERCENTS)
    calls, cost = columns[width], columns[width + 3]
    return query.order_by(func.coalesce(cost, literal_column("0")).desc(), calls.desc(), *columns[:width])


def read_points(rows: Sequence[Row], width: int) -> dict[GroupKey, UsagePoint]:
    """Return the points in rows by their group, in the order of the rows."""
    return {tuple(row[:width]): read_point(row[width:]) for row in rows}


def read_point(sums: Sequence[Any]) -> UsagePoint:
    calls, failed, unpriced, cost, input_tokens, output_tokens, *times = sums
    first_byte, duration = times[: len(PERCENTS)], times[len(PERCENTS) :]
    return UsagePoint(
        calls=calls,
        failed=failed,
        unpriced=unpriced,
        cost=cost,
        input_tokens=int(input_tokens or 0),
        output_tokens=int(output_tokens or 0),
        first_byte=Percentiles(*first_byte),
        duration=Percentiles(*duration),
    )


def by_period(points: Mapping[GroupKey, UsagePoint]) -> dict[GroupKey, dict[int, UsagePoint]]:
    """Return points by group and then by period, the last value of their key."""
    found: dict[GroupKey, dict[int, UsagePoint]] = {}
    for key, point in points.items():
        found.setdefault(key[:-1], {})[int(key[-1])] = point
    return found


def periods_between(period: Period, *, since: float, until: float) -> range:
    """Return the numbers of the periods, counted from 1970, that `since <= time < until` touches."""
    seconds = PERIOD_SECONDS[period]
    return range(int(since // seconds), int(-(-until // seconds)))
