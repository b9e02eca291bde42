"""Usage as others read it: what can be asked of the records, and the answer as JSON values or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import msgspec

from dragoman.errors import BadRequest
from dragoman.store.report import FILTERS, GROUPS, TOKENS, Group, Line
from dragoman.store.usage import UsageRecord, UsageRecords

# ---- Moments and spans as people write them: `7d`, `90min`, `2026-11-22`, `2026-11-22T10:30`.

SPAN = re.compile(r"(\d{1,5})\s*(s|min|h|d|w)")
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
LIKE_SPAN = "a span reads like 90min, 24h, 7d or 4w"
LIKE_MOMENT = f"{LIKE_SPAN}; a moment like 2026-11-22 or 2026-11-22T10:30Z, in UTC unless it says otherwise"


def read_span(text: str, *, field: str | None = None) -> float:
    """The span in seconds. BadRequest."""
    found = SPAN.fullmatch(text.strip())
    if found is None:
        raise BadRequest(f"{text!r} is no span of time", field=field, hint=LIKE_SPAN)
    return float(int(found[1]) * UNITS[found[2]])


def read_past(text: str, now: float, *, field: str | None = None) -> float:
    """A moment in unix seconds; a span is that long ago. BadRequest."""
    return _read(text, now, sign=-1, field=field)


def read_future(text: str, now: float, *, field: str | None = None) -> float:
    """A moment in unix seconds; a span is that far ahead. BadRequest."""
    return _read(text, now, sign=1, field=field)


def _read(text: str, now: float, *, sign: int, field: str | None) -> float:
    if SPAN.fullmatch(text.strip()):
        return now + sign * read_span(text)
    plain = text.strip()
    try:  # in a query, the `+` of an offset stands for a blank
        moment = datetime.fromisoformat(plain.replace(" ", "+") if "T" in plain else plain)
    except ValueError:
        raise BadRequest(f"{text!r} is no moment", field=field, hint=LIKE_MOMENT) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


Json: TypeAlias = dict[str, Any]

SHORT = {"key": "key_id", "session": "session_id", "run": "run_id"}
SHORT_GROUPS = {**SHORT, "model": "model_served"}
PARAMETERS = ("group_by", "since", "until", "limit", "after", "format", *SHORT, *FILTERS)
MOST = 10_000
PAGE = 1000
USUAL = 100
FORMULA = ("=", "+", "-", "@", "\t", "\r")
MEASURES = ("mean_duration", "max_duration", "mean_first_byte", "max_first_byte")
SUMS = ("calls", "failed", *TOKENS, "cost", "unpriced", "estimated_share", *MEASURES)
RECORD = (
    *("id", "request_id", "started_at", "owner", "key_id", "door", "provider", "key_name", "model_asked"),
    *("model_served", "status", "finish_reason", "error", "upstream_status", *TOKENS, "estimated", "cost"),
    *("price_model", "first_byte", "duration", "session_id", "run_id", "step", "call_id"),
)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the usage records; without `group_by`, the records themselves, after a place."""

    group_by: tuple[Group, ...] = ()
    since: float | None = None
    until: float | None = None
    filters: Mapping[str, str] = {}
    limit: int | None = None
    after: tuple[float, str] | None = None

    @property
    def bounds(self) -> Json:
        """The parameters that all queries of it share."""
        return {"since": self.since, "until": self.until, "filters": self.filters}


def read_question(query: Mapping[str, str], now: float) -> Question:
    """The question in the parameters of a query. BadRequest names the one that is wrong."""
    for name, value in query.items():
        if name not in PARAMETERS:
            raise BadRequest(
                f"there is no parameter {name!r}", field=name, hint=f"there are {listed(PARAMETERS)}"
            )
        if not value and name != "group_by":
            raise BadRequest(f"{name} is empty", field=name)
    since, until, after = query.get("since"), query.get("until"), query.get("after")
    filters = {SHORT.get(name, name): query[name] for name in query if name in (*SHORT, *FILTERS)}
    return Question(
        group_by=read_groups(query.get("group_by", "")),
        since=None if since is None else read_past(since, now, field="since"),
        until=None if until is None else read_past(until, now, field="until"),
        filters=filters,
        limit=read_limit(query.get("limit")),
        after=None if after is None else read_place(after),
    )


def read_groups(text: str) -> tuple[Group, ...]:
    """Names with commas between them, each once."""
    names = [SHORT_GROUPS.get(name, name) for piece in text.split(",") if (name := piece.strip())]
    for name in names:
        if name not in GROUPS:
            raise BadRequest(
                f"nothing can be grouped by {name!r}", field="group_by", hint=f"it can by {listed(GROUPS)}"
            )
    return cast(tuple[Group, ...], tuple(dict.fromkeys(names)))


def read_limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST):
        raise BadRequest(f"limit must be 1 to {MOST}, not {text!r}", field="limit")
    return int(text)


def read_place(text: str) -> tuple[float, str]:
    """Where a page begins, as the page before has told in `next`."""
    moment, _, id = text.partition("~")
    try:
        return float(moment), id
    except ValueError:
        raise BadRequest(
            f"{text!r} is no place to go on from", field="after", hint="take `next` of an answer"
        ) from None


async def answer(records: UsageRecords, question: Question) -> Json:
    """`rows` and their `total`; where there are more, `more` says so or `next` where to go on."""
    total = await records.report(**question.bounds)
    told = {"since": question.since, "until": question.until, "total": summed(total[0])}
    if question.group_by:
        limit = question.limit or PAGE
        lines = await records.report(question.group_by, **question.bounds, limit=limit + 1)
        rows = [{"group": dict(line.group), **summed(line)} for line in lines[:limit]]
        return {"groupBy": question.group_by, "rows": rows, "more": len(lines) > limit, **told}
    limit = question.limit or USUAL
    found = await records.rows(**question.bounds, after=question.after, limit=limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return {
        "rows": [recorded(record) for record in found[:limit]],
        "next": None if last is None else f"{last.started_at!r}~{last.id}",
        **told,
    }


async def export(records: UsageRecords, question: Question) -> AsyncGenerator[str, None]:
    """The rows as CSV, a page of them at a time, and all of them unless the question has a limit."""
    head: list[Sequence[Any]] = [headings(question.group_by)]
    if question.group_by:
        lines = await records.report(question.group_by, **question.bounds, limit=question.limit or MOST)
        yield to_csv([*head, *(cells({"group": dict(line.group), **summed(line)}) for line in lines)])
        return
    left, after, full = question.limit, question.after, True
    while full and left != 0:
        size = PAGE if left is None else min(PAGE, left)
        found = await records.rows(**question.bounds, after=after, limit=size)
        yield to_csv([*head, *(cells(recorded(record)) for record in found)])
        head, full = [], len(found) == size
        left = None if left is None else left - size
        after = (found[-1].started_at, found[-1].id) if found else after


def summed(line: Line) -> Json:
    """The sums of a line, as JSON values."""
    return {
        "calls": line.calls,
        "failed": line.failed,
        "usage": msgspec.to_builtins(line.tokens),
        "cost": line.cost,
        "unpriced": line.unpriced,
        "estimatedShare": line.estimated,
        **{camel(name): getattr(line, name) for name in MEASURES},
    }


def recorded(record: UsageRecord) -> Json:
    """A record as JSON values."""
    own = {camel(name): getattr(record, name) for name in UsageRecord.__struct_fields__ if name != "tokens"}
    return {**own, "usage": msgspec.to_builtins(record.tokens)}


def headings(group_by: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns."""
    return (*group_by, *SUMS) if group_by else RECORD


def cells(row: Json) -> list[Any]:
    """A row of an answer, in the order of the headings; what is not known is empty."""
    group = row.get("group")
    known = {**row, **row["usage"]}
    if group is not None:
        return [*group.values(), *(known.get(camel(name)) for name in SUMS)]
    at = datetime.fromtimestamp(row["startedAt"], UTC).isoformat(timespec="milliseconds")
    known |= {"startedAt": at, "estimated": known.get("estimated", False)}
    return [known.get(camel(name)) for name in RECORD]


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """The rows as CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows([harmless(cell) for cell in row] for row in rows)
    return text.getvalue()


def harmless(cell: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe, and so is text to it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)
