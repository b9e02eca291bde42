"""What was measured, as Markdown tables for people and as JSON for programs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.harness.measure import Result
from benchmarks.harness.workloads import UNITS, Workload

BUSY = 0.3
"""A share of the CPU above which the upstream or the load generator is said to have been busy."""

BEHIND = 0.95
"""A share of the chunks due below which a server is said not to have kept the pace."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A server's results for one workload, or why there are none; others are compared with a reference."""

    server: str
    reference: bool
    results: Sequence[Result] = ()
    absent: str | None = None

    @property
    def value(self) -> float:
        """The median of the runs."""
        return median(result.value for result in self.results)

    @property
    def complete(self) -> bool:
        """Whether every answer of every run was there and held all its chunks."""
        return not any(result.failed or result.incomplete for result in self.results)


Column = tuple[str, Callable[[Result], float]]
DELAY: Column = ("ms from upstream to client, p99", lambda result: result.delay_p99 / 1000)
FIRST: Column = ("ms to the first chunk, p50", lambda result: result.first_chunk / 1000)
WHOLE: Column = ("ms an answer, p50", lambda result: result.response / 1000)
ADDED: Column = ("µs added to a direct answer", lambda result: result.added)
OPEN: Column = ("streams open", lambda result: result.open)


def table(workload: Workload, rows: Sequence[Row]) -> str:
    """One workload's table, a row for each server, and notes on what was absent, short, behind or busy."""
    present = [row for row in rows if not row.absent]
    references = [row for row in present if row.reference]
    columns = _columns(workload)
    head = ["server", "median", "lowest to highest", *(f"× {row.server}" for row in references)]
    head += [*(title for title, _ in columns), "CPU of server, upstream, load"]
    lines = [head, *(_cells(row, references, columns=columns) for row in present)]
    notes = [f"- {row.server}: {note}" for row in rows for note in _notes(workload, row)]
    runs = max((len(row.results) for row in present), default=0)
    title = f"## {workload.title}\n\n{UNITS[workload.measure]}; median of {runs}\n"
    return "\n".join([title, *align(lines), "", *notes])


def as_json(workload: Workload, rows: Sequence[Row]) -> Mapping[str, Any]:
    """The same with every run."""
    fields = [
        asdict(row) | ({} if row.absent else {"value": row.value, "complete": row.complete}) for row in rows
    ]
    return {"workload": asdict(workload), "unit": UNITS[workload.measure], "rows": fields}


def number(value: float | None) -> str:
    """Digits enough to compare, and thousands set apart; a dash where nothing was measured."""
    if value is None:
        return "–"
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def _columns(workload: Workload) -> Sequence[Column]:
    match workload.measure:
        case "chunks":
            return [DELAY] if workload.pace else [FIRST]
        case "turns":
            return [WHOLE]
        case "memory":
            return [OPEN, DELAY]
        case "first":
            return [ADDED]


def _cells(row: Row, references: Sequence[Row], *, columns: Sequence[Column]) -> list[str]:
    values = sorted(result.value for result in row.results)
    shares = [median(share) for share in zip(*(result.shares for result in row.results), strict=True)]
    return [
        row.server,
        number(row.value),
        f"{number(values[0])} to {number(values[-1])}",
        *(number(row.value / other.value) if row.value and other.value else "" for other in references),
        *(number(median(read(result) for result in row.results) or None) for _, read in columns),
        " ".join(f"{share:.0%}" for share in shares),
    ]


def _notes(workload: Workload, row: Row) -> Iterator[str]:
    if row.absent:
        yield f"ABSENT: {row.absent}"
        return
    if not row.complete:
        failed = sum(result.failed for result in row.results)
        short = sum(result.incomplete for result in row.results)
        yield f"INCOMPLETE: {failed} answers failed, {short} were short; its figures say nothing"
    if workload.measure != "memory" and not all(result.value for result in row.results):
        yield "nothing came back within a window; the machine was too busy for it"
    due = workload.pace * workload.connections
    rate = median(result.chunks / result.seconds for result in row.results)
    if workload.measure == "chunks" and rate < BEHIND * due:
        yield f"did not keep the pace: {rate:,.0f} of {due:,} chunks a second"
    wanted = workload.connections - workload.connections // 10
    if workload.measure == "memory" and any(result.open < wanted for result in row.results):
        yield f"not all of the {wanted} streams were open after {workload.warmup:.0f} s"
    busy = max(max(result.shares[1:]) for result in row.results)
    if busy > BUSY:
        yield f"upstream or load generator had {busy:.0%} of the CPU"


def align(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a Markdown table, the first one its head."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for place, line in enumerate(lines):
        pairs = zip(line[1:], widths[1:], strict=True)
        yield f"| {' | '.join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in pairs)])} |"
        if place == 0:
            rules = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
            yield f"|{'|'.join(rules)}|"
