"""Measures the hub beside a bare process, and prints one table against the last landed figures: `make bench`.

Figures change with the machine and with what else it does, so what is stored, in `landed.json`, are ratios
to a process of a few lines that does the same work in the same run: the bare transform for stored chats, the
raw relay for the gateway. A figure that is more than 10 % worse than the landed one is marked.

Every figure is the median of three runs, for memory of one. Latency is measured with open arrivals at 70 %
of the requests a second that each server answers in a closed loop, from when each request was due.

examples
  python benchmarks/landed.py                     the table, in less than ten minutes
  python benchmarks/landed.py --only turns,json
  python benchmarks/landed.py --save              and store the ratios as the landed ones
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from benchmarks.gateways import peers, trial
from benchmarks.gateways.running import cpu_of
from benchmarks.gateways.running import started as gateway_started
from benchmarks.gateways.tasks import Task, tasks
from benchmarks.harness.build import BUILD, HERE, Absent, compile_programs
from benchmarks.harness.measure import measure
from benchmarks.harness.servers import Running, Server, servers, start, started
from benchmarks.harness.table import align, number
from benchmarks.harness.workloads import Workload, workloads
from benchmarks.remote_viewer import viewer_delays
from benchmarks.scale import Database, scale_workloads
from benchmarks.scale import run as run_scaled
from benchmarks.takeover import measure as measure_takeovers
from benchmarks.takeover import quantile as value_at

LANDED = HERE / "landed.json"
WORSE = 0.10
LOAD = 0.7
TAIL_SECONDS = 8.0
TAIL_CONNECTIONS = 64
REST_SECONDS = 2.0
CHATS = ("turns", "unpaced", "paced", "first", "memory")
GATEWAY = ("json", "relay", "relay-paced")
TAKEOVER_KILLS = 20
VIEWER_CHUNKS, VIEWER_INTERVAL = 200, 0.02
NAMES = (*CHATS, *GATEWAY, "tail", "start", "hosts")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured of the hub, and of the bare process; `more` is better, or less."""

    name: str
    title: str
    hub: float
    bare: float
    more: bool

    @property
    def ratio(self) -> float:
        """The hub's share of what the bare process does."""
        return self.hub / self.bare if self.bare else 0.0

    def change(self, landed: float | None) -> float | None:
        """By how much the ratio is better than the landed one."""
        if not landed or not self.ratio:
            return None
        return self.ratio / landed - 1 if self.more else landed / self.ratio - 1


def main() -> None:
    """Measure, print the table, and store it if asked."""
    options = parse()
    compile_programs()
    began = time.monotonic()
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        started([str(BUILD / "upstream")], log=Path(folder) / "output") as upstream,
    ):
        for figure in measured(options.only, upstream=upstream, repeat=options.repeat):
            figures.append(figure)
            print(f"{figure.title}: {number(figure.hub)}", file=sys.stderr, flush=True)
    landed = json.loads(LANDED.read_text()) if LANDED.exists() else {}
    print(table(figures, landed))
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    if options.save:
        LANDED.write_text(json.dumps(landed | stored(figures), indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME,…", default=",".join(NAMES), help=", ".join(NAMES))
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the median counts (3)")
    parser.add_argument("--save", action="store_true", help="store the ratios as the landed ones")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(NAMES):
        parser.error(f"{min(unknown)!r} is not a figure; there are: {', '.join(NAMES)}")
    return options


def measured(only: Sequence[str], *, upstream: Running, repeat: int) -> Iterator[Figure]:
    """Measure what is wanted, the hub and the bare process in turn."""
    hub = next(server for server in servers() if server.name == "dragoman")
    bare = next(server for server in servers() if server.name == "bare transform")
    for workload in workloads(pace=1, quick=False):
        if workload.name in only:
            runs = 1 if workload.measure == "memory" else repeat
            yield chat_figure(workload, hub, bare, upstream=upstream, repeat=runs)
    gateway = {task.name: task for task in tasks(streams=1, pace=1, quick=False)}
    for name in GATEWAY:
        if name in only:
            yield gateway_figure(gateway[name], upstream=upstream, repeat=repeat)
    if "tail" in only:
        yield from tail_figures(gateway["json"], upstream=upstream)
        yield from tail_figures(first_chunk_task(gateway["relay"]), upstream=upstream)
    if "start" in only:
        yield from start_figures(hub, bare, upstream=upstream, repeat=repeat)
    if "hosts" in only:
        yield from host_figures(upstream=upstream)


def host_figures(*, upstream: Running) -> Iterator[Figure]:
    """Yield what hosts cost that share a Postgres: beside one on SQLite where that does the same."""
    [turns] = [work for work in scale_workloads(quick=True) if work.name == "turns"]
    database = Database()
    try:
        trips = [run_scaled(turns, 1, database=each, upstream=upstream) for each in (database, None)]
    finally:
        database.close()
    values = [trip.amount / trip.hub_cpu for trip in trips]
    title = "stored turns on Postgres, beside SQLite, per CPU-s"
    yield Figure(name="turns-postgres", title=title, hub=values[0], bare=values[1], more=True)
    if (used := trips[0].database) is not None:
        commits = used.commits / trips[0].amount
        yield Figure(name="commits", title="transactions of a turn", hub=commits, bare=0.0, more=False)
    late = asyncio.run(viewer_delays(VIEWER_CHUNKS, VIEWER_INTERVAL))
    title = "a chunk at a viewer of another host, later by p50 ms"
    yield Figure(name="viewer", title=title, hub=median(late), bare=0.0, more=False)
    seconds = measure_takeovers(TAKEOVER_KILLS)
    for share, label in ((0.5, "p50"), (0.95, "p95")):
        title = f"kill -9 of a host until its model is asked elsewhere, {label} s"
        value = value_at(seconds, share)
        yield Figure(name=f"takeover-{label}", title=title, hub=value, bare=0.0, more=False)


def in_turn(repeat: int, *measurements: Callable[[], float]) -> list[float]:
    """Return the median of each measurement, taken in turn."""
    rounds = [[one() for one in measurements] for _ in range(repeat)]
    return [median(values) for values in zip(*rounds, strict=True)]


def chat_figure(workload: Workload, hub: Server, bare: Server, *, upstream: Running, repeat: int) -> Figure:
    def run(server: Server) -> float:
        result = measure(workload, server, upstream=upstream)
        if result.failed or result.incomplete:
            raise SystemExit(f"{server.name}: {result.failed} failed, {result.incomplete} incomplete")
        return result.value

    ours, theirs = in_turn(repeat, partial(run, hub), partial(run, bare))
    title = {
        "turns": "stored turns with a tool call, per CPU-s",
        "unpaced": "stored chunks, unpaced, per CPU-s",
        "paced": "stored chunks at 20/s, per CPU-s",
        "memory": "memory of a stored stream, KiB",
        "first": "first stored chunk, one client, p50 µs",
    }[workload.name]
    more = workload.measure in ("chunks", "turns")
    return Figure(name=workload.name, title=title, hub=ours, bare=theirs, more=more)


def peer(name: str) -> peers.Peer:
    return next(each for each in peers.peers() if each.name == name)


def gateway_figure(task: Task, *, upstream: Running, repeat: int) -> Figure:
    def run(name: str) -> float:
        result = trial.measure(task, peer(name), upstream=upstream)
        if not result.whole:
            raise SystemExit(f"{task.name}: answers of {name} were not whole")
        return result.value

    ours, theirs = in_turn(repeat, partial(run, "dragoman"), partial(run, "raw relay"))
    title = {
        "json": "gateway: JSON requests, per CPU-s",
        "relay": "gateway: chunks passed on, unpaced, per CPU-s",
        "relay-paced": "gateway: chunks passed on at 20/s, per CPU-s",
    }[task.name]
    return Figure(name=task.name, title=title, hub=ours, bare=theirs, more=True)


def first_chunk_task(relay: Task) -> Task:
    """Return a task of short streams, of which the first chunk is measured."""
    return replace(relay, name="first-chunk", chunks=1, connections=16)


def tail_figures(task: Task, *, upstream: Running) -> Iterator[Figure]:
    """Yield p99 and p99.9 of answers, or of first chunks, at 70 % of what each server can do."""
    kind = "first_chunk" if task.stream else "response"
    reports: list[Mapping[str, Any]] = []
    for name in ("dragoman", "raw relay"):
        with gateway_started(peer(name), task, upstream=upstream) as ready:
            with trial.Load(ready, connections=16, seconds=2.0, upstream=upstream) as full:
                report = full.report()
            rate = LOAD * report["requests"] / report["seconds"]
            options: dict[str, Any] = {"connections": TAIL_CONNECTIONS, "seconds": TAIL_SECONDS}
            with trial.Load(ready, upstream=upstream, rate=rate, **options) as part:
                reports.append(part.report()[kind])
    what = "first chunk of a stream" if task.stream else "JSON answer"
    for quantile, label in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
        yield Figure(
            name=f"tail-{task.name}-{quantile}",
            title=f"gateway at {LOAD:.0%} load: {what}, {label} µs",
            hub=reports[0][quantile],
            bare=reports[1][quantile],
            more=False,
        )


def start_figures(hub: Server, bare: Server, *, upstream: Running, repeat: int) -> Iterator[Figure]:
    """Yield the CPU from start to ready, and the resident memory at rest."""

    def run(server: Server) -> tuple[float, float]:
        with start(server, upstream=upstream, model="bench-n1-r0-tool0") as running:
            cpu = sum(cpu_of(pid) for pid in running.pids)
            time.sleep(REST_SECONDS)
            return cpu, resident_mb(running)

    rounds = [(run(hub), run(bare)) for _ in range(repeat)]
    for index, name, title in ((0, "start", "start to ready, CPU s"), (1, "rest", "memory at rest, MB")):
        ours, theirs = (median(values[who][index] for values in rounds) for who in (0, 1))
        yield Figure(name=name, title=title, hub=ours, bare=theirs, more=False)


def resident_mb(running: Running) -> float:
    lines = [line for pid in running.pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def table(figures: Sequence[Figure], landed: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table."""
    lines = [["measured", "hub", "bare process", "ratio", "landed ratio", "change", ""]]
    for figure in figures:
        before = landed.get(figure.name, {}).get("ratio")
        change = figure.change(before)
        lines.append(
            [
                figure.title,
                number(figure.hub),
                number(figure.bare) if figure.bare else "–",
                number(figure.ratio) if figure.bare else "–",
                number(before),
                "–" if change is None else f"{change:+.0%}",
                "worse: say why" if change is not None and change < -WORSE else "",
            ]
        )
    return "\n".join(align(lines))


def stored(figures: Sequence[Figure]) -> dict[str, Any]:
    """Return what is kept of the figures."""
    return {
        figure.name: {"ratio": float(f"{figure.ratio:.4g}"), "hub": float(f"{figure.hub:.4g}")}
        for figure in figures
    }


if __name__ == "__main__":
    try:
        main()
    except Absent as reason:
        sys.exit(str(reason))
