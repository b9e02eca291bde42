"""Usage reports as tables for the terminal, with bars for the shares."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from dragoman.cli.terminal import bar, format_seconds, print_note, strip_controls

Json: TypeAlias = Mapping[str, Any]

DEFAULT_WIDTH = 200
GAP = 2  # columns between two cells
MARGIN = 2  # columns that the box itself takes


class Column(NamedTuple):
    """A column of a report. A terminal that is too narrow omits the one with the highest `drop` first."""

    name: str
    drop: int = 0  # 0: always shown
    right: bool = True


FIGURES = (
    Column("COST"),
    Column("CALLS"),
    Column("FAILED", 3),
    Column("IN", 1),
    Column("OUT", 1),
    Column("CACHED", 5),
    Column("FIRST", 6),
    Column("TIME", 4),
)
BAR = Column("", 2, right=False)
RECORD_COLUMNS = (
    Column("AT", 1, right=False),
    Column("OWNER", right=False),
    Column("DOOR", 3, right=False),
    Column("PROVIDER", 4, right=False),
    Column("MODEL", right=False),
    Column("STATUS", right=False),
    Column("COST"),
    Column("IN", 2),
    Column("OUT", 2),
    Column("CACHED", 6),
    Column("FIRST", 7),
    Column("TIME", 5),
)


def print_report(report: Json) -> None:
    """Print the report as a table, with totals at the end. Names what does not fit into the terminal."""
    width = None if sys.stdout.isatty() else DEFAULT_WIDTH
    out = Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)
    columns, rows = group_rows(report) if "groupBy" in report else record_rows(report)
    table, omitted = fit_table(columns, rows, width=out.width)
    out.print(table)
    if omitted:
        print_note(
            f"not shown in {out.width} columns: {', '.join(omitted)}; --json and --csv have everything"
        )
    if report.get("more") or report.get("next"):
        print_note("there are more rows; --limit shows them, --csv writes all")


def fit_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int
) -> tuple[Table, list[str]]:
    """Build a table no wider than `width`, its last row the total; also return the columns left out."""
    shown = list(range(len(columns)))
    omitted: list[str] = []
    cells = [[column.name for column in columns], *rows]
    widths = [max(cell_len(row[index]) for row in cells) for index in range(len(columns))]
    while sum(widths[index] + GAP for index in shown) - GAP + MARGIN > width:
        index = max(shown, key=lambda index: columns[index].drop)
        if columns[index].drop == 0:
            break  # the cells of the columns that are left wrap
        shown.remove(index)
        omitted += [columns[index].name] if columns[index].name else []
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index in shown:
        column = columns[index]
        justify: Literal["right", "left"] = "right" if column.right else "left"
        style = "cyan" if column is BAR else None
        table.add_column(
            column.name, justify=justify, style=style, no_wrap=column.right or column is BAR, overflow="fold"
        )
    for row in rows[:-1]:
        table.add_row(*(row[index] for index in shown))
    table.add_section()
    table.add_row(*(rows[-1][index] for index in shown), style="bold")
    return table, omitted


def group_rows(report: Json) -> tuple[list[Column], list[list[str]]]:
    """Return the columns and cells of groups, with bars for their share of the cost, or of the calls."""
    rows, total = report["rows"], report["total"]
    measure = "cost" if total["cost"] else "calls"
    most = max((row[measure] or 0 for row in rows), default=0)
    names = (name.removesuffix("_id").removesuffix("_served").upper() for name in report["groupBy"])
    columns = [*(Column(name, right=False) for name in names), BAR, *FIGURES]
    cells = []
    for row in rows:
        group = (strip_controls("-" if name is None else name) for name in row["group"].values())
        cells.append([*group, bar(row[measure] or 0, most), *total_cells(row)])
    words = ["total", *("" for _ in report["groupBy"][1:])]
    cells.append([*words, "", *total_cells(total)])
    return columns, cells


def record_rows(report: Json) -> tuple[list[Column], list[list[str]]]:
    """Return the columns and cells of single requests, with totals."""
    cells = []
    for row in report["rows"]:
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(row["startedAt"]))
        model = row["modelServed"] or row["modelAsked"]
        words = (row["owner"], row["door"], row["provider"], model, row["error"] or row["status"])
        times = (format_seconds(row["firstByte"]), format_seconds(row["duration"]))
        text = (strip_controls(word or "-") for word in words)
        cells.append([at, *text, format_cost(row), *token_cells(row), *times])
    cost, calls, failed, *rest = total_cells(report["total"])
    cells.append(["total", f"{calls} calls", "", "", "", f"{failed} failed", cost, *rest])
    return list(RECORD_COLUMNS), cells


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
