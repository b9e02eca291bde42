"""What was measured on the gateways, as Markdown tables for people and as JSON for programs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.gateways.peer_files import Size
from benchmarks.gateways.tasks import UNITS, Task
from benchmarks.gateways.trial import Result
from benchmarks.harness.table import BEHIND, BUSY, align, number

Column = tuple[str, Callable[[Result], float]]
COLUMNS: Mapping[str, Sequence[Column]] = {
    "requests": [("ms an answer, p50", lambda result: result.p50 / 1000)],
    "chunks": [
        ("connections", lambda result: result.connections),
        ("ms from upstream to client, p99", lambda result: result.delay_p99 / 1000),
    ],
    "latency": [("p50, µs", lambda result: result.p50), ("p99, µs", lambda result: result.p99)],
    "memory": [("streams", lambda result: result.open), ("MiB in all", lambda r: r.rss_kib / 1024)],
    "cold": [("CPU-seconds", lambda result: result.server_cpu)],
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A gateway's results for one task, or why there are none; others are compared with a reference."""

    peer: str
    reference: bool
    results: Sequence[Result] = ()
    absent: str | None = None

    @property
    def value(self) -> float:
        """The median of the runs."""
        return median(result.value for result in self.results)

    @property
    def whole(self) -> bool:
        """Whether every answer of every run was there and held all its chunks."""
        return all(result.whole for result in self.results)


def table(task: Task, rows: Sequence[Row]) -> str:
    """One task's table, a row for each gateway, and notes on what was absent, short, behind or busy."""
    present = [row for row in rows if not row.absent]
    references = [row for row in present if row.reference]
    columns = COLUMNS[task.measure]
    head = ["gateway", "median", "lowest to highest", *(f"× {row.peer}" for row in references)]
    head += [*(title for title, _ in columns), "CPU of gateway, upstream, load"]
    lines = [head, *(_cells(row, references, columns=columns) for row in present)]
    notes = [f"- {row.peer}: {note}" for row in rows for note in _notes(task, row)]
    runs = max((len(row.results) for row in present), default=0)
    title = f"## {task.title}\n\n{UNITS[task.measure]}; median of {runs}\n"
    return "\n".join([title, *align(lines), "", *notes])


def sizes(found: Mapping[str, Size]) -> str:
    """The table of installation sizes."""
    lines = [["gateway", "MB", "packages"]]
    lines += [[name, number(size.megabytes), str(size.packages)] for name, size in found.items()]
    title = "## install size\n\nwithout the interpreter and without bytecode, less is better\n"
    return "\n".join([title, *align(lines), ""])


def as_json(task: Task, rows: Sequence[Row]) -> Mapping[str, Any]:
    """The same with every run."""
    fields = [asdict(row) | ({} if row.absent else {"value": row.value, "whole": row.whole}) for row in rows]
    return {"task": asdict(task), "unit": UNITS[task.measure], "rows": fields}


def _cells(row: Row, references: Sequence[Row], *, columns: Sequence[Column]) -> list[str]:
    values = sorted(result.value for result in row.results)
    shares = [median(share) for share in zip(*(result.shares for result in row.results), strict=True)]
    return [
        row.peer,
        number(row.value),
        f"{number(values[0])} to {number(values[-1])}",
        *(number(row.value / other.value) if row.value and other.value else "" for other in references),
        *(number(median(read(result) for result in row.results) or None) for _, read in columns),
        " ".join(f"{share:.0%}" for share in shares),
    ]


def _notes(task: Task, row: Row) -> Iterator[str]:
    if row.absent:
        yield f"ABSENT: {row.absent}"
        return
    if not row.whole:
        failed, short = (sum(getattr(r, name) for r in row.results) for name in ("failed", "incomplete"))
        unwritten = sum(max(0, r.answers - r.rows) for r in row.results if r.rows is not None)
        yield f"INCOMPLETE: {failed} answers failed, {short} were short, {unwritten} not written down"
    if task.measure == "chunks":
        due = min(task.pace * result.connections for result in row.results)
        rate = median(result.chunks / result.seconds for result in row.results)
        if rate < BEHIND * due:
            yield f"did not keep the pace: {rate:,.0f} of {due:,} chunks a second"
    if task.measure == "memory" and any(result.open < 0.95 * result.connections for result in row.results):
        yield f"only {min(result.open for result in row.results)} streams were open"
    busy = max(max(result.shares[1:]) for result in row.results)
    if busy > BUSY and task.measure in ("requests", "chunks"):
        yield f"upstream or load generator had {busy:.0%} of the CPU"
