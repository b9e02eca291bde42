"""`dragoman usage`: what was used and what it cost, from the data folder or from a running hub."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO, TypeAlias
from urllib.parse import urlencode

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dragoman.cli.client import HubClient
from dragoman.cli.keys import require_data_folder
from dragoman.cli.options import DEFAULT_DATA, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, print_json, print_note, strip_controls
from dragoman.server.usage_report import (
    MAX_LIMIT,
    Json,
    build_report,
    csv_cells,
    csv_headings,
    parse_usage_query,
    to_csv,
)
from dragoman.store.store import Store

# ---- The bill: usage as it is told by a hub or a data folder, drawn as a table with bars, or written as CSV.

DEFAULT_WIDTH = 200
BAR_WIDTH = 16
EIGHTHS = " ▏▎▍▌▋▊▉"
PAGE_SIZE = 1000
Ask: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Json]]


class Place(NamedTuple):
    """A running hub, or else a data folder."""

    hub: str | None
    key: str | None
    data: Path


@asynccontextmanager
async def asking(place: Place) -> AsyncIterator[Ask]:
    """A function that answers as `GET /api/usage` does; from a data folder, about all owners."""
    if place.hub:
        async with HubClient(place.hub, place.key) as client:
            yield lambda query: client.request("GET", f"/api/usage?{urlencode(query)}")
    else:
        async with await Store.open(require_data_folder(place.data), exclusive=False) as store:
            yield lambda query: build_report(store.usage, parse_usage_query(query, time.time()))


async def fetch_report(place: Place, query: Mapping[str, str]) -> Json:
    """One answer."""
    async with asking(place) as ask:
        return await ask(query)


async def write_csv(place: Place, query: Mapping[str, str], *, limit: int | None, out: TextIO) -> None:
    """Write all rows as CSV, or as many as the limit lets."""
    async with asking(place) as ask:
        if "group_by" in query:
            found = await ask({**query, "limit": str(limit or MAX_LIMIT)})
            out.write(to_csv([csv_headings(found["groupBy"]), *map(csv_cells, found["rows"])]))
            return
        out.write(to_csv([csv_headings(())]))
        left, after = limit, dict[str, str]()
        while left != 0:
            found = await ask({**query, **after, "limit": str(min(PAGE_SIZE, left or PAGE_SIZE))})
            out.write(to_csv(map(csv_cells, found["rows"])))
            if found["next"] is None:
                return
            left, after = left and left - len(found["rows"]), {"after": found["next"]}


def print_report(report: Json) -> None:
    """The answer as a table, its totals at the end."""
    width = None if sys.stdout.isatty() else DEFAULT_WIDTH
    out = Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)
    out.print(group_table(report) if "groupBy" in report else record_table(report))
    if report.get("more") or report.get("next"):
        print_note("there are more rows; --limit shows them, --csv writes all")


def group_table(report: Json) -> Table:
    """A line a group, with a bar for its share of the money, or of the calls where nothing has a price."""
    rows, total = report["rows"], report["total"]
    measure = "cost" if total["cost"] else "calls"
    most = max((row[measure] or 0 for row in rows), default=0)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in report["groupBy"]:
        table.add_column(name.removesuffix("_id").removesuffix("_served").upper(), overflow="fold")
    table.add_column("", width=BAR_WIDTH, style="cyan", no_wrap=True)
    for name in ("COST", "CALLS", "FAILED", "IN", "OUT", "CACHED", "FIRST", "TIME"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        names = (strip_controls("-" if name is None else name) for name in row["group"].values())
        table.add_row(*names, bar(row[measure] or 0, most), *total_cells(row))
    table.add_section()
    words = ["total", *("" for _ in report["groupBy"][1:])]
    table.add_row(*words, "", *total_cells(total), style="bold")
    return table


def record_table(report: Json) -> Table:
    """A line a request, and the totals of all."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("AT", "OWNER", "DOOR", "PROVIDER", "MODEL", "STATUS"):
        table.add_column(name, overflow="fold")
    for name in ("COST", "IN", "OUT", "CACHED", "FIRST", "TIME"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["rows"]:
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(row["startedAt"]))
        model = row["modelServed"] or row["modelAsked"]
        said = (row["owner"], row["door"], row["provider"], model, row["error"] or row["status"])
        times = (format_seconds(row["firstByte"]), format_seconds(row["duration"]))
        table.add_row(
            at, *(strip_controls(word or "-") for word in said), format_cost(row), *token_cells(row), *times
        )
    table.add_section()
    cost, calls, failed, *rest = total_cells(report["total"])
    table.add_row("total", f"{calls} calls", "", "", "", f"{failed} failed", cost, *rest, style="bold")
    return table


def total_cells(row: Json) -> list[str]:
    """The figures of a group: money, calls, tokens, mean times."""
    times = (format_seconds(row["meanFirstByte"]), format_seconds(row["meanDuration"]))
    return [format_cost(row), f"{row['calls']:,}", f"{row['failed']:,}", *token_cells(row), *times]


def token_cells(row: Json) -> list[str]:
    usage = row["usage"]
    about = "~" if usage.get("estimated") else ""
    counts = [usage.get(name) for name in ("inputTokens", "outputTokens", "cachedInputTokens")]
    return ["-" if count is None else f"{about}{count:,}" for count in counts]


def format_cost(row: Json) -> str:
    if row["cost"] is None:
        return "-"
    cost = row["cost"]
    said = "< $0.0001" if 0 < cost < 0.00005 else f"${cost:,.4f}"
    return f"≥ {said}" if row.get("unpriced") else said


def format_seconds(span: float | None) -> str:
    return "-" if span is None else f"{span:.2f} s"


def bar(value: float, maximum: float) -> str:
    """A bar as long as the value is of the most, in eighths of a character."""
    eighths = round(8 * BAR_WIDTH * value / maximum) if maximum else 0
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


EPILOG = examples(
    ("dragoman usage", "the last 30 days by model, from .dragoman"),
    ("dragoman usage --by day,owner --since 7d", "a week, by day and owner"),
    (
        "dragoman usage --by key --since 2026-11-01 --until 2026-12-01 --csv > november.csv",
        "for a spreadsheet",
    ),
    ("dragoman usage --requests --since 1h", "each request of the last hour"),
    ("dragoman usage --hub http://127.0.0.1:8000", "yours, from a running hub"),
)


By: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="WHAT,...",
        help="What to sum up by: owner, key, provider, model, model_asked, door, status, day, hour, session,"
        " run.",
    ),
]
Since: TypeAlias = Annotated[
    str, typer.Option(metavar="WHEN", help="From when: 24h, 7d, or 2026-11-01 (UTC); all for all.")
]
Until: TypeAlias = Annotated[str | None, typer.Option(metavar="WHEN", help="Up to when, exclusively.")]
Owner: TypeAlias = Annotated[str | None, typer.Option(help="Only this owner's.")]
Model: TypeAlias = Annotated[str | None, typer.Option(help="Only of this model, asked or served.")]
KeyId: TypeAlias = Annotated[str | None, typer.Option(metavar="ID", help="Only of this key.")]
Requests: TypeAlias = Annotated[bool, typer.Option("--requests", help="Each request by itself, no sums.")]
Limit: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="How many rows at most; 50 in a table.")
]
AsCsv: TypeAlias = Annotated[bool, typer.Option("--csv", help="CSV, for spreadsheets.")]


def usage(
    *,
    by: By = "model",
    since: Since = "30d",
    until: Until = None,
    owner: Owner = None,
    model: Model = None,
    key_id: KeyId = None,
    requests: Requests = False,
    limit: Limit = None,
    csv: AsCsv = False,
    json: AsJson = False,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
) -> None:
    """Show what was used and what it cost.

    IN counts whole prompts, CACHED what of them the provider had in its cache. A cost after ≥ lacks calls
    whose price is unknown; ~ marks counts that hold estimates.
    """

    query: dict[str, Any] = {"since": since, "until": until, "owner": owner, "model": model, "key": key_id}
    query = {name: value for name, value in query.items() if value is not None and value != "all"}
    query |= {} if requests else {"group_by": by}
    place = Place(hub, key, data=data)
    if csv:
        asyncio.run(write_csv(place, query, limit=limit, out=sys.stdout))
        return
    found = asyncio.run(fetch_report(place, {**query, "limit": str(limit or 50)}))
    if json:
        print_json(found)
        return
    if not found["total"]["calls"]:
        print_note("nothing was used in this time; --since all shows everything")
        return
    print_report(found)
