"""Measures how the hub scales over processes of one machine: `serve --workers N` on one Postgres.

For 1, 2, 4 and 8 processes: turns with a tool call, and paced chunks, per CPU-second of all hub processes. If
processes do not hinder each other, these stay what one process has. Also what Postgres itself costs: its CPU
time, transactions and inserted, updated and deleted rows a turn. The first row is one process on SQLite.

examples
  python benchmarks/scale.py                  1, 2, 4 and 8 processes, about five minutes
  python benchmarks/scale.py --workers 1,2 --quick
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

import psycopg

from benchmarks.harness.build import BUILD, compile_programs
from benchmarks.harness.load import Trial
from benchmarks.harness.probe import probe
from benchmarks.harness.servers import (
    Command,
    Place,
    Running,
    Server,
    hub_command,
    process_family,
    start,
    started,
)
from benchmarks.harness.table import align
from benchmarks.harness.workloads import Workload, workloads
from tests.postgres_server import PostgresServer

TICKS = os.sysconf("SC_CLK_TCK")
COUNTERS = """
SELECT xact_commit, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database
WHERE datname = current_database()
"""
DURABLE = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on", "shared_buffers": "128MB"}


@dataclass(frozen=True, kw_only=True)
class DatabaseUse:
    """What Postgres has done so far: seconds of CPU, commits, rows written."""

    cpu: float
    commits: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Trip:
    """One run: turns or chunks, and what they cost."""

    amount: int
    failed: int
    hub_cpu: float
    database: DatabaseUse | None
    first_chunk: float
    rss: float


class Database:
    """A Postgres of its own, with a schema for each run."""

    def __init__(self) -> None:
        self._server = PostgresServer(DURABLE)

    @contextmanager
    def url(self) -> Iterator[str]:
        """The URL of an empty schema."""
        with self._server.schema() as name:
            yield self._server.url(name)

    def use(self) -> DatabaseUse:
        """What it has done so far, all its processes together."""
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            row = connection.execute(COUNTERS).fetchone()
        assert row is not None
        return DatabaseUse(cpu=cpu_seconds(self._server.pid), commits=int(row[0]), rows=int(row[1]))

    def close(self) -> None:
        """Stop it."""
        self._server.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, its descendants, and those that have ended."""
    total = 0
    for member in process_family(pid):
        with suppress(FileNotFoundError):  # it has ended: then its parent counts it
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def resident(pid: int) -> float:
    """Return the resident memory of a process and its descendants, in MB."""
    lines = [
        line for each in process_family(pid) for line in Path(f"/proc/{each}/status").read_text().splitlines()
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1000


def scale_workloads(*, quick: bool) -> Sequence[Workload]:
    """Return the tests of `run.py` that are measured here too: turns, and paced chunks."""
    return [work for work in workloads(pace=1, quick=quick) if work.name in ("turns", "paced")]


def hub(url: str | None, workers: int) -> Command:
    """The command of a hub."""

    def command(place: Place) -> list[str]:
        more = [] if url is None else ["--database", url, "--workers", str(workers)]
        return [*hub_command(place), *more]

    return command


def run(workload: Workload, workers: int, *, database: Database | None, upstream: Running) -> Trip:
    """Start a hub, load it, and return what it did."""
    if database is None:
        return run_at(workload, hub(None, 1), database=None, upstream=upstream)
    with database.url() as url:
        return run_at(workload, hub(url, workers), database=database, upstream=upstream)


def run_at(workload: Workload, command: Command, *, database: Database | None, upstream: Running) -> Trip:
    server = Server(name="dragoman", does="the hub", dialect="ui", command=command)
    with start(server, upstream=upstream, model=workload.model) as running:
        trial = Trial(workload=workload, server=server, running=running, upstream=upstream)
        if not workload.pace:
            probe(trial)
        with trial.load() as load:
            load.warm()
            before = database.use() if database else None
            report: Any = load.report()
            after = database.use() if database else None
            rss = resident(running.pid or 0)
    hubs = [values["cpu"] for name, values in report["processes"].items() if name != "upstream"]
    amount = report["chunks"] if workload.measure == "chunks" else report["requests"]
    used = None
    if before is not None and after is not None:
        used = DatabaseUse(
            cpu=after.cpu - before.cpu, commits=after.commits - before.commits, rows=after.rows - before.rows
        )
    return Trip(
        amount=amount,
        failed=report["failed"] + report["incomplete"],
        hub_cpu=sum(hubs),
        database=used,
        first_chunk=report["first_chunk"]["p50"] / 1000,
        rss=rss,
    )


def per_second(trips: Sequence[Trip]) -> float:
    """Return the median amount per CPU-second of the hub."""
    return median(trip.amount / trip.hub_cpu for trip in trips)


def line(name: str, trips: Sequence[Trip], *, of_one: float | None) -> list[str]:
    """Return a row of the table."""
    value, last = per_second(trips), trips[-1]
    cells = [name, f"{value:,.0f}", "" if of_one is None else f"{value / of_one:.2f}"]
    use = last.database
    cells += (
        ["", "", ""]
        if use is None
        else [
            f"{1000 * use.cpu / last.amount:.2f}",
            f"{use.commits / last.amount:.2f}",
            f"{use.rows / last.amount:.1f}",
        ]
    )
    return [*cells, f"{last.first_chunk:.1f}", f"{last.rss:.0f}", str(sum(trip.failed for trip in trips))]


def main() -> None:
    """Run all, and print a table for each workload."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="1,2,4,8", help="numbers of processes (1,2,4,8)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the median counts (3)")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    options = parser.parse_args()
    counts = [int(number) for number in options.workers.split(",")]
    repeat = 1 if options.quick else options.repeat
    compile_programs()
    database = Database()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="scale-") as folder,
            started([str(BUILD / "upstream")], log=Path(folder) / "output") as upstream,
        ):
            for workload in scale_workloads(quick=options.quick):
                print_table(workload, counts, repeat=repeat, database=database, upstream=upstream)
    finally:
        database.close()


def print_table(
    workload: Workload, counts: Sequence[int], *, repeat: int, database: Database, upstream: Running
) -> None:
    """Measure one workload in rounds over all numbers of processes, and print its table."""
    unit = "chunk" if workload.measure == "chunks" else "turn"
    plans: dict[str, tuple[int, Database | None]] = {"SQLite, 1 process": (1, None)}
    plans |= {f"Postgres, {count} process{'es' if count > 1 else ''}": (count, database) for count in counts}
    trips: dict[str, list[Trip]] = {name: [] for name in plans}
    for _ in range(repeat):
        for name, (count, where) in plans.items():
            trips[name].append(run(workload, count, database=where, upstream=upstream))
            print(
                f"{workload.name}: {name}: {per_second(trips[name][-1:]):,.0f}", file=sys.stderr, flush=True
            )
    one = per_second(trips[next(name for name in plans if name.startswith("Postgres"))])
    head = ["hub", f"{unit}s per CPU-second", "of one process", f"Postgres CPU ms a {unit}"]
    head += [f"commits a {unit}", f"rows a {unit}", "ms to the first chunk", "MB", "failed"]
    rows = [
        line(name, each, of_one=one if name.startswith("Postgres") else None) for name, each in trips.items()
    ]
    print(f"## {workload.title}\n", *align([head, *rows]), "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
