"""Usage reports as tables for the terminal, with bars for the shares."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dragoman.cli.terminal import print_note, strip_controls

Json: TypeAlias = Mapping[str, Any]

DEFAULT_WIDTH = 200
BAR_WIDTH = 16
EIGHTHS = " ▏▎▍▌▋▊▉"


def print_report(report: Json) -> None:
    """Print the report as a table, with totals at the end."""
    width = None if sys.stdout.isatty() else DEFAULT_WIDTH
    out = Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)
    out.print(group_table(report) if "groupBy" in report else record_table(report))
    if report.get("more") or report.get("next"):
        print_note("there are more rows; --limit shows them, --csv writes all")


def group_table(report: Json) -> Table:
    """Build a table of groups, with bars for their share of the cost, or of the calls without prices."""
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
    """Build a table of requests, with totals."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("AT", "OWNER", "DOOR", "PROVIDER", "MODEL", "STATUS"):
        table.add_column(name, overflow="fold")
    for name in ("COST", "IN", "OUT", "CACHED", "FIRST", "TIME"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["rows"]:
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(row["startedAt"]))
        model = row["modelServed"] or row["modelAsked"]
        cells = (row["owner"], row["door"], row["provider"], model, row["error"] or row["status"])
        times = (format_seconds(row["firstByte"]), format_seconds(row["duration"]))
        table.add_row(
            at, *(strip_controls(word or "-") for word in cells), format_cost(row), *token_cells(row), *times
        )
    table.add_section()
    cost, calls, failed, *rest = total_cells(report["total"])
    table.add_row("total", f"{calls} calls", "", "", "", f"{failed} failed", cost, *rest, style="bold")
    return table


def total_cells(row: Json) -> list[str]:
    """Return the figures of a group: cost, calls, tokens, mean times."""
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
    amount = "< $0.0001" if 0 < cost < 0.00005 else f"${cost:,.4f}"
    return f"≥ {amount}" if row.get("unpriced") else amount


def format_seconds(span: float | None) -> str:
    return "-" if span is None else f"{span:.2f} s"


def bar(value: float, maximum: float) -> str:
    """Return a bar for the share of `value` in `maximum`, in eighths of a character."""
    eighths = round(8 * BAR_WIDTH * value / maximum) if maximum else 0
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
