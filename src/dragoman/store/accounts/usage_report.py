"""Usage reports: sums over model calls, grouped by owner, model, day and other columns."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from sqlalchemy import ColumnElement, Double, FromClause, Select, bindparam, func, literal_column, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from dragoman.events import Usage
from dragoman.store.connection import Row, match_filter
from dragoman.store.tables.core import calls, usage

GroupBy: TypeAlias = Literal[
    "owner",
    "key_id",
    "provider",
    "model_served",
    "model_asked",
    "door",
    "status",
    "day",
    "hour",
    "session_id",
    "run_id",
    "operation",
]

GROUP_NAMES: tuple[GroupBy, ...] = get_args(GroupBy)
FILTERS = ("owner", "key_id", "provider", "model", "door", "status", "session_id", "run_id")
TOKEN_COLUMNS = tuple(name for name in Usage.__struct_fields__ if name in usage.c and name != "estimated")
PERIOD_SECONDS = {"day": 86_400, "hour": 3_600}
PERIOD_FORMATS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H:00Z"}


class IntegerPart(FunctionElement[int]):
    """The integer part of a positive number. Casts round on Postgres; some SQLite builds lack floor()."""

    inherit_cache: bool | None = True


def compile_floor(element: IntegerPart, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(floor({compiler.process(element.clauses, **options)}) AS BIGINT)"


def compile_sqlite_cast(element: IntegerPart, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS INTEGER)"


compiles(IntegerPart)(compile_floor)
compiles(IntegerPart, "sqlite")(compile_sqlite_cast)


class UsageReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a group of model calls. Means and sums skip unknown values; None if all are unknown.

    `failed` counts calls that ended with an error, `unpriced` calls without a cost. `estimated` is the
    fraction of calls whose tokens are estimates.
    """

    group: Mapping[str, str | None]
    calls: int
    failed: int
    estimated: float
    unpriced: int
    cost: float | None
    tokens: Usage
    mean_duration: float | None
    max_duration: float | None
    mean_first_byte: float | None
    max_first_byte: float | None


class UsageReport:
    """The statement of a report, and the conversion of its rows."""

    def __init__(self, group_by: Sequence[GroupBy]) -> None:
        self._group_by = tuple(dict.fromkeys(group_by))

    def select(self, filters: Collection[str]) -> Select[Any]:
        """Return the statement; its parameters are the filters and `limit`."""
        groups = [group_column(name) for name in self._group_by]
        times = [
            column for name, column in zip(self._group_by, groups, strict=True) if name in PERIOD_SECONDS
        ]
        has_failed = usage.c.error.is_not(None) | (usage.c.status == literal_column("'failed'"))
        cost = func.sum(usage.c.cost)
        sums = [
            func.count(),
            func.count().filter(has_failed),
            func.count().filter(usage.c.estimated),
            func.count() - func.count(usage.c.cost),
            cost,
            *(
                measure(usage.c[name])
                for name in ("duration", "first_byte")
                for measure in (func.avg, func.max)
            ),
            *(func.sum(usage.c[name]) for name in TOKEN_COLUMNS),
        ]
        dearest = func.coalesce(cost, literal_column("0")).desc()
        found = select(*groups, *sums).select_from(group_source(self._group_by))
        found = found.where(*filter_conditions(filters)).group_by(*groups)
        found = found.order_by(*times, dearest, func.count().desc(), *groups)
        return found.limit(bindparam("limit")).offset(literal_column("0"))

    def to_row(self, row: Row) -> UsageReportRow:
        """Convert a row of the statement."""
        groups, sums = row[: len(self._group_by)], row[len(self._group_by) :]
        calls, failed, estimated, unpriced, cost, *rest = sums
        mean_duration, max_duration, mean_first_byte, max_first_byte, *counts = rest
        return UsageReportRow(
            group={
                name: group_label(name, value) for name, value in zip(self._group_by, groups, strict=True)
            },
            calls=calls,
            failed=failed,
            estimated=estimated / calls if calls else 0.0,
            unpriced=unpriced,
            cost=cost,
            tokens=Usage(**dict(zip(TOKEN_COLUMNS, counts, strict=True)), estimated=estimated > 0),
            mean_duration=mean_duration,
            max_duration=max_duration,
            mean_first_byte=mean_first_byte,
            max_first_byte=max_first_byte,
        )


def filter_conditions(names: Collection[str]) -> list[ColumnElement[bool]]:
    """Return the conditions of filters: `since`, `until`, `model` (requested or served), or a column."""
    return [filter_condition(name, set(names)) for name in sorted(names) if name != "old_session_id"]


def filter_condition(name: str, names: Container[str]) -> ColumnElement[bool]:
    value: ColumnElement[Any] = bindparam(name)
    match name:
        case "since":
            return usage.c.started_at >= value
        case "until":
            return usage.c.started_at < value
        case "model":
            return or_(usage.c.model_served == value, usage.c.model_asked == value)
        case _:
            return match_filter(usage.c[name], names)


def group_column(name: GroupBy) -> ColumnElement[Any]:
    """Return the column of a group; days and hours are numbered from 1970.

    The operation is that of the call in which a sub-agent works.
    """
    if name == "operation":
        return calls.c.operation
    if name in PERIOD_SECONDS:
        return IntegerPart(usage.c.started_at / literal_column(str(PERIOD_SECONDS[name]), Double))
    return usage.c[name]


def group_source(names: Collection[str]) -> FromClause:
    """Return the table of usage, with the calls beside it if records are grouped by operation."""
    return usage.outerjoin(calls, calls.c.id == usage.c.call_id) if "operation" in names else usage


def group_label(name: str, value: Any) -> str | None:
    if name in PERIOD_SECONDS and value is not None:
        return datetime.fromtimestamp(value * PERIOD_SECONDS[name], UTC).strftime(PERIOD_FORMATS[name])
    return None if value is None else str(value)
