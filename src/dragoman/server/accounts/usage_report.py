"""Usage reports: the query parameters, and the report as JSON values or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import msgspec

from dragoman.errors import BadRequest
from dragoman.server.http.query_parameters import parse_limit, to_camel_case
from dragoman.server.http.time_expressions import parse_past
from dragoman.session_ids import session_id_for
from dragoman.store.accounts.usage import UsageRepository
from dragoman.store.accounts.usage_report import FILTERS, GROUP_NAMES, TOKEN_COLUMNS, GroupBy, UsageReportRow
from dragoman.usage_record import UsageRecord

Json: TypeAlias = dict[str, Any]

FILTER_ALIASES = {"key": "key_id", "session": "session_id", "run": "run_id"}
GROUP_ALIASES = {**FILTER_ALIASES, "model": "model_served"}
OWN_PARAMETERS = ("group_by", "since", "until", "limit", "after", "format", "bucket", "top")
PARAMETERS = (*OWN_PARAMETERS, *FILTER_ALIASES, *FILTERS)
MAX_LIMIT = 10_000
PAGE_SIZE = 1000
DEFAULT_LIMIT = 100
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
MEASURES = ("mean_duration", "max_duration", "mean_first_byte", "max_first_byte")
TOTAL_COLUMNS = ("calls", "failed", *TOKEN_COLUMNS, "cost", "unpriced", "estimated_share", *MEASURES)
RECORD_COLUMNS = (
    *("id", "request_id", "started_at", "owner", "key_id", "door", "provider", "key_name", "model_asked"),
    *(
        "model_served",
        "status",
        "finish_reason",
        "error",
        "upstream_status",
        *TOKEN_COLUMNS,
        "estimated",
        "cost",
    ),
    *("price_model", "first_byte", "duration", "session_id", "run_id", "step", "call_id"),
)


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of usage records: totals by group, or without `group_by` single records after a cursor.

    `caller` is the owner whose clients read the report: it has their ids of their sessions.
    """

    group_by: tuple[GroupBy, ...] = ()
    since: float | None = None
    until: float | None = None
    filters: Mapping[str, str] = {}
    limit: int | None = None
    after: tuple[float, str] | None = None
    caller: str = ""

    @property
    def shared_parameters(self) -> Json:
        """Return the parameters that totals and records share."""
        return {"since": self.since, "until": self.until, "filters": self.filters}


def parse_usage_query(parameters: Mapping[str, str], now: float) -> UsageQuery:
    """Parse query parameters. BadRequest names the invalid one."""
    for name, value in parameters.items():
        if name not in PARAMETERS:
            raise BadRequest(
                f"there is no parameter {name!r}", field=name, hint=f"there are {join_names(PARAMETERS)}"
            )
        if not value and name != "group_by":
            raise BadRequest(f"{name} is empty", field=name)
    since, until, after = parameters.get("since"), parameters.get("until"), parameters.get("after")
    filters = {
        FILTER_ALIASES.get(name, name): parameters[name]
        for name in parameters
        if name in (*FILTER_ALIASES, *FILTERS)
    }
    return UsageQuery(
        group_by=parse_groups(parameters.get("group_by", "")),
        since=None if since is None else parse_past(since, now, field="since"),
        until=None if until is None else parse_past(until, now, field="until"),
        filters=filters,
        limit=parse_limit(parameters["limit"], maximum=MAX_LIMIT) if "limit" in parameters else None,
        after=None if after is None else parse_cursor(after),
    )


def parse_groups(text: str) -> tuple[GroupBy, ...]:
    """Parse group names separated by commas, without duplicates."""
    names = [GROUP_ALIASES.get(name, name) for piece in text.split(",") if (name := piece.strip())]
    for name in names:
        if name not in GROUP_NAMES:
            raise BadRequest(
                f"usage cannot be grouped by {name!r}",
                field="group_by",
                hint=f"use {join_names(GROUP_NAMES)}",
            )
    return cast(tuple[GroupBy, ...], tuple(dict.fromkeys(names)))


def parse_cursor(text: str) -> tuple[float, str]:
    """Parse the cursor of a page, `next` of the page before."""
    moment, _, id = text.partition("~")
    try:
        return float(moment), id
    except ValueError:
        raise BadRequest(
            f"{text!r} is not a valid cursor", field="after", hint="use `next` of a response"
        ) from None


async def build_report(records: UsageRepository, query: UsageQuery) -> Json:
    """Return `rows` and their `total`; `more` or the cursor `next` says that there are further rows."""
    total = await records.report(**query.shared_parameters)
    bounds = {"since": query.since, "until": query.until, "total": totals_to_json(total[0])}
    if query.group_by:
        limit = query.limit or PAGE_SIZE
        lines = await records.report(query.group_by, **query.shared_parameters, limit=limit + 1)
        rows = [row_to_json(line, query.caller) for line in lines[:limit]]
        return {"groupBy": query.group_by, "rows": rows, "more": len(lines) > limit, **bounds}
    limit = query.limit or DEFAULT_LIMIT
    found = await records.list(**query.shared_parameters, after=query.after, limit=limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return {
        "rows": [record_to_json(record, query.caller) for record in found[:limit]],
        "next": None if last is None else f"{last.started_at!r}~{last.id}",
        **bounds,
    }


async def export_csv(records: UsageRepository, query: UsageQuery) -> AsyncGenerator[str, None]:
    """Yield the rows as CSV, one page at a time; all rows unless the query has a limit."""
    head: list[Sequence[Any]] = [csv_headings(query.group_by)]
    if query.group_by:
        lines = await records.report(
            query.group_by, **query.shared_parameters, limit=query.limit or MAX_LIMIT
        )
        yield to_csv([*head, *(csv_cells(row_to_json(line, query.caller)) for line in lines)])
        return
    left, after, full = query.limit, query.after, True
    while full and left != 0:
        size = PAGE_SIZE if left is None else min(PAGE_SIZE, left)
        found = await records.list(**query.shared_parameters, after=after, limit=size)
        yield to_csv([*head, *(csv_cells(record_to_json(record, query.caller)) for record in found)])
        head, full = [], len(found) == size
        left = None if left is None else left - size
        after = (found[-1].started_at, found[-1].id) if found else after


def row_to_json(line: UsageReportRow, caller: str) -> Json:
    """Return the sums of a group as JSON values."""
    group = dict(line.group)
    if "session_id" in group:
        group["session_id"] = session_id_for(caller, group["session_id"])
    return {"group": group, **totals_to_json(line)}


def totals_to_json(line: UsageReportRow) -> Json:
    """Return the sums of a row as JSON values."""
    return {
        "calls": line.calls,
        "failed": line.failed,
        "usage": msgspec.to_builtins(line.tokens),
        "cost": line.cost,
        "unpriced": line.unpriced,
        "estimatedShare": line.estimated,
        **{to_camel_case(name): getattr(line, name) for name in MEASURES},
    }


def record_to_json(record: UsageRecord, caller: str) -> Json:
    """Return a record as JSON values, with the caller's id of its session."""
    own = {
        to_camel_case(name): getattr(record, name)
        for name in UsageRecord.__struct_fields__
        if name != "tokens"
    }
    own["sessionId"] = session_id_for(caller, record.session_id)
    return {**own, "usage": msgspec.to_builtins(record.tokens)}


def csv_headings(group_by: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns."""
    return (*group_by, *TOTAL_COLUMNS) if group_by else RECORD_COLUMNS


def csv_cells(row: Json) -> list[Any]:
    """Return a row in the order of the headings; unknown values are empty."""
    group = row.get("group")
    values = {**row, **row["usage"]}
    if group is not None:
        return [*group.values(), *(values.get(to_camel_case(name)) for name in TOTAL_COLUMNS)]
    at = datetime.fromtimestamp(row["startedAt"], UTC).isoformat(timespec="milliseconds")
    values |= {"startedAt": at, "estimated": values.get("estimated", False)}
    return [values.get(to_camel_case(name)) for name in RECORD_COLUMNS]


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows([escape_formula(cell) for cell in row] for row in rows)
    return text.getvalue()


def escape_formula(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would evaluate as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_PREFIXES) else cell


def join_names(names: Iterable[str]) -> str:
    return ", ".join(names)
