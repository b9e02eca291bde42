"""Gives one gateway one task and says what came of it."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gateways.peers import Peer
from benchmarks.gateways.running import Ready, started
from benchmarks.gateways.tasks import Task
from benchmarks.harness.build import BUILD, Absent
from benchmarks.harness.servers import Running

SETTLE = 2.0
"""Seconds that streams have been open before their memory is read."""

FOREVER = 600.0
IDLE = 10
"""How many more streams a gateway carries when hardly anything comes on them."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run of a task on a gateway: `value` is in the task's unit, CPU in seconds, times in µs."""

    value: float
    connections: int
    answers: int = 0
    failed: int = 0
    incomplete: int = 0
    chunks: int = 0
    open: int = 0
    seconds: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    delay_p99: float = 0.0
    server_cpu: float = 0.0
    upstream_cpu: float = 0.0
    load_cpu: float = 0.0
    rss_kib: int = 0
    rows: int | None = None

    @property
    def whole(self) -> bool:
        """Whether every answer was there, complete, and written down where that is done."""
        return not (self.failed or self.incomplete) and (self.rows is None or self.rows >= self.answers)

    @property
    def shares(self) -> Sequence[float]:
        """What the gateway, the upstream and the load generator had of all the CPU time in the window."""
        used = (self.server_cpu, self.upstream_cpu, self.load_cpu)
        everything = sum(used) or 1.0
        return [cpu / everything for cpu in used]


class Load:
    """A load generator that runs; leaving it ends it."""

    def __init__(
        self, ready: Ready, *, connections: int, seconds: float, upstream: Running, rate: float = 0.0
    ) -> None:
        """With a `rate`, so many requests a second are sent, whatever their answers take."""
        task = ready.place.task
        watched = {f"server{place}": pid for place, pid in enumerate(ready.running.pids)}
        options: list[tuple[str, object]] = [
            ("-p", ready.place.port),
            ("-u", task.path),
            ("-c", connections),
            ("-r", task.opened_per_second),
            ("-q", rate),
            ("-w", task.warmup),
            ("-d", seconds),
            ("-b", ready.body),
            ("-x", task.chunks),
            ("-e", task.last_words),
            *(("-H", f"{name}: {value}") for name, value in ready.ask.headers.items()),
            *(("-P", f"{name}={pid}") for name, pid in {"upstream": upstream.pid, **watched}.items()),
        ]
        early = ["-o"] if task.opened_per_second else []
        self._command = [str(BUILD / "load"), *early, *(str(word) for option in options for word in option)]

    def __enter__(self) -> "Load":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def warm(self) -> None:
        """Wait until its warm-up is over."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def report(self) -> Any:
        """Wait for its end; the JSON object of load.c."""
        return json.loads(self._process.communicate(timeout=300)[0].splitlines()[-1])


def measure(task: Task, peer: Peer, *, upstream: Running) -> Result:
    """Start the gateway afresh, check one answer, load it; `Absent` when it cannot be used."""
    if task.door != task.upstream and not peer.translates:
        raise Absent("does not translate")
    most = (peer.most or task.connections) * (IDLE if task.measure == "memory" else 1)
    connections = min(task.connections, most)
    rows: int | None = None
    with started(peer, task, upstream=upstream) as ready:
        if task.measure == "cold":
            return Result(value=ready.seconds, connections=0, server_cpu=ready.cpu)
        if task.measure == "memory":
            return _measure_memory(ready, connections, upstream=upstream)
        with Load(ready, connections=connections, seconds=task.seconds, upstream=upstream) as load:
            result = result_of(task, load.report(), connections)
        if peer.rows is not None:
            rows = _await_rows(peer, ready, result.answers)
    return replace(result, rows=rows)


def _await_rows(peer: Peer, ready: Ready, answers: int) -> int:
    """The rows of all answers, which are written behind them."""
    assert peer.rows is not None
    for _ in range(50):
        if (rows := peer.rows(ready.place)) >= answers:
            return rows
        time.sleep(0.1)
    return peer.rows(ready.place)


def _measure_memory(ready: Ready, connections: int, *, upstream: Running) -> Result:
    """What a stream adds, from a tenth of them to all: so what the first requests load is left out."""
    few = max(1, connections // 10)
    with Load(ready, connections=few, seconds=FOREVER, upstream=upstream) as first:
        first.warm()
        time.sleep(SETTLE)
        before = _rss(ready.running.pids)
        with Load(ready, connections=connections - few, seconds=SETTLE, upstream=upstream) as rest:
            result = result_of(ready.place.task, rest.report(), connections)
    return replace(result, value=(result.rss_kib - before) / max(1, result.open), open=result.open + few)


def _rss(pids: Sequence[int]) -> int:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def result_of(task: Task, report: Any, connections: int) -> Result:
    """What the load generator reports, in the task's unit."""
    processes = dict(report["processes"])
    upstream = processes.pop("upstream")
    cpu = sum(process["cpu"] for process in processes.values())
    times = report["first_chunk"] if task.stream else report["response"]
    values = {
        "requests": report["requests"] / cpu if cpu else 0.0,
        "chunks": report["chunks"] / cpu if cpu else 0.0,
        "latency": times["p50"],
    }
    return Result(
        value=values.get(task.measure, 0.0),
        connections=connections,
        answers=report["requests"],
        failed=report["failed"],
        incomplete=report["incomplete"],
        chunks=report["chunks"],
        open=report["open"],
        seconds=report["seconds"],
        p50=times["p50"],
        p99=times["p99"],
        delay_p99=report["delay"]["p99"],
        server_cpu=cpu,
        upstream_cpu=upstream["cpu"],
        load_cpu=report["load_cpu"],
        rss_kib=sum(process["rss_kib"] for process in processes.values()),
    )
