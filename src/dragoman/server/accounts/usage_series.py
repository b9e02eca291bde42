"""Usage over time: the query parameters, and the series as JSON values without gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast, get_args

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.server.accounts.usage_report import UsageQuery
from dragoman.server.http.query_parameters import parse_limit, to_camel_case
from dragoman.session_ids import session_id_for
from dragoman.store.accounts.usage import query_filters
from dragoman.store.accounts.usage_report import PERIOD_SECONDS
from dragoman.store.accounts.usage_series import (
    Percentiles,
    Period,
    UsagePoint,
    UsageSeries,
    UsageSeriesRepository,
    periods_between,
)

Json: TypeAlias = dict[str, Any]
DEFAULT_RANGE = 86_400.0  # seconds before now, unless the query says since when
MAX_PERIODS = 1_000
MAX_GROUPS = 2  # groups in one query
MAX_ROWS = 1_000
DEFAULT_ROWS = 100
MAX_CHARTED = 50
DEFAULT_CHARTED = 8
SUMS = ("calls", "failed", "unpriced", "input_tokens", "output_tokens")
NO_CALLS = UsagePoint()


class SeriesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of usage over time: `rows` groups at most, of which the first `charted` have points."""

    period: Period
    usage: UsageQuery
    since: float
    until: float
    now: float
    rows: int
    charted: int

    def as_report(self) -> UsageQuery:
        """Return the query of the report with a row for each period and group, without empty ones."""
        groups = (self.period, *self.usage.group_by)
        return replace(self.usage, group_by=groups, since=self.since, until=self.until)


def parse_series_query(parameters: Mapping[str, str], usage: UsageQuery, *, now: float) -> SeriesQuery:
    """Parse `bucket` and `top`; the rest is that of the report. BadRequest."""
    period = parameters["bucket"]
    if period not in get_args(Period):
        raise BadRequest(f"{period!r} is not a bucket", field="bucket", hint="use hour or day")
    if len(usage.group_by) > MAX_GROUPS or {"hour", "day"} & set(usage.group_by):
        raise BadRequest(
            f"with a bucket, usage is grouped by at most {MAX_GROUPS} other things", field="group_by"
        )
    until = now if usage.until is None else usage.until
    since = until - DEFAULT_RANGE if usage.since is None else usage.since
    if since >= until:
        raise BadRequest("since must be before until", field="since")
    bucket = cast(Period, period)
    if len(periods_between(bucket, since=since, until=until)) > MAX_PERIODS:
        raise BadRequest(
            f"from since to until there are more than {MAX_PERIODS} of the bucket {bucket!r}",
            field="bucket",
            hint="use bucket=day, or ask for a shorter time",
        )
    top = parameters.get("top")
    return SeriesQuery(
        period=bucket,
        usage=usage,
        since=since,
        until=until,
        now=now,
        rows=min(usage.limit or DEFAULT_ROWS, MAX_ROWS),
        charted=DEFAULT_CHARTED if top is None else parse_limit(top, maximum=MAX_CHARTED, field="top"),
    )


async def build_series(records: UsageSeriesRepository, query: SeriesQuery) -> Json:
    """Return the total and the largest groups, with one point for each period; empty ones are 0 or null."""
    params = query_filters(query.since, query.until, filters=query.usage.filters)
    found = await records.read(
        query.period, query.usage.group_by, params=params, groups=query.rows, charted=query.charted
    )
    periods = periods_between(query.period, since=query.since, until=query.until)
    caller = query.usage.caller
    rows = [
        series_to_json(each, periods if at < query.charted else None, caller=caller)
        for at, each in enumerate(found.groups)
    ]
    return {
        "bucket": query.period,
        "groupBy": query.usage.group_by,
        "since": query.since,
        "until": query.until,
        "asOf": query.now,
        "times": [number * PERIOD_SECONDS[query.period] for number in periods],
        "total": series_to_json(found.whole, periods, caller=caller),
        "rows": rows,
        "more": found.more,
        "sampled": found.sampled,
    }


def series_to_json(series: UsageSeries, periods: Sequence[int] | None, *, caller: str) -> Json:
    """Return the sums of a group; with `periods`, also its points."""
    group = dict(series.group)
    if "session_id" in group:
        group["session_id"] = session_id_for(caller, group["session_id"])
    shown: Json = {"group": group, **msgspec.to_builtins(series.total)}
    if periods is not None:
        points = [series.points.get(number, NO_CALLS) for number in periods]
        shown["points"] = {
            **{to_camel_case(name): [getattr(point, name) for point in points] for name in SUMS},
            "cost": [point.cost or 0.0 for point in points],
            "firstByte": percentile_lists([point.first_byte for point in points]),
            "duration": percentile_lists([point.duration for point in points]),
        }
    return shown


def percentile_lists(points: Sequence[Percentiles]) -> Json:
    """Return a list of values for each percentile."""
    return {name: [getattr(point, name) for point in points] for name in Percentiles.__struct_fields__}
