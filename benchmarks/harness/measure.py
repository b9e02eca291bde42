"""Gives one server one workload and says what came of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.load import Load, Trial
from benchmarks.harness.probe import probe
from benchmarks.harness.servers import Running, Server, start
from benchmarks.harness.workloads import Workload

SETTLE = 2.0
"""Seconds that streams have been open before their memory is read."""

FOREVER = 600.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run of a workload on a server: `value` is in the workload's unit, CPU in seconds, times in µs."""

    value: float
    answers: int
    failed: int
    incomplete: int
    chunks: int
    open: int
    seconds: float
    first_chunk: float
    added: float = 0.0
    response: float
    delay_p99: float
    server_cpu: float
    upstream_cpu: float
    load_cpu: float
    server_rss_kib: int

    @property
    def shares(self) -> Sequence[float]:
        """What the server, the upstream and the load generator had of all the CPU time in the window."""
        used = (self.server_cpu, self.upstream_cpu, self.load_cpu)
        whole = sum(used) or 1.0
        return [cpu / whole for cpu in used]


def measure(workload: Workload, server: Server, *, upstream: Running) -> Result:
    """Start the server afresh, check one answer, load it; `build.Absent` when it cannot be used."""
    with start(server, upstream=upstream, model=workload.model) as running:
        trial = Trial(workload=workload, server=server, running=running, upstream=upstream)
        if not workload.pace:
            probe(trial)
        if workload.measure == "memory":
            return _measure_memory(trial)
        with trial.load() as load:
            return _result(trial, load.report())


def _measure_memory(trial: Trial) -> Result:
    """What a stream adds, from a tenth of them to all: so what the first requests load is left out."""
    few = trial.workload.connections // 10
    with Load(trial, connections=few, seconds=FOREVER) as first:
        first.warm()
        time.sleep(SETTLE)
        before = _rss(trial.running.pids)
        with Load(trial, connections=trial.workload.connections - few, seconds=SETTLE) as rest:
            result = _result(trial, rest.report())
    return replace(result, value=(result.server_rss_kib - before) / max(1, result.open))


def _rss(pids: Sequence[int]) -> int:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def _result(trial: Trial, report: Any) -> Result:
    processes = dict(report["processes"])
    upstream = processes.pop("upstream")
    cpu = sum(process["cpu"] for process in processes.values())
    answers = report["requests"] // len(trial.workload.asks(trial.server.dialect))
    values = {
        "chunks": report["chunks"] / cpu if cpu else 0.0,
        "turns": answers / cpu if cpu else 0.0,
        "memory": 0.0,
        "first": report["first_chunk"]["p50"],
    }
    return Result(
        value=values[trial.workload.measure],
        answers=answers,
        failed=report["failed"],
        incomplete=report["incomplete"],
        chunks=report["chunks"],
        open=report["open"],
        seconds=report["seconds"],
        first_chunk=report["first_chunk"]["p50"],
        response=report["response"]["p50"],
        delay_p99=report["delay"]["p99"],
        server_cpu=cpu,
        upstream_cpu=upstream["cpu"],
        load_cpu=report["load_cpu"],
        server_rss_kib=sum(process["rss_kib"] for process in processes.values()),
    )
