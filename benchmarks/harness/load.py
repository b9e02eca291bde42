"""The load generator, load.c, as a process: what it is told and what it reports."""

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.build import BUILD
from benchmarks.harness.servers import Running, Server
from benchmarks.harness.workloads import Workload

PATHS = {"ui": "/api/chat", "openai": "/v1/chat/completions"}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One workload, given to one server that runs."""

    workload: Workload
    server: Server
    running: Running
    upstream: Running

    @property
    def path(self) -> str:
        """Where the server's door is."""
        return PATHS[self.server.dialect]

    def load(self) -> "Load":
        """Load the server as the workload says."""
        return Load(self, connections=self.workload.connections, seconds=self.workload.seconds)


class Load:
    """A load generator that runs; leaving it ends it."""

    def __init__(self, trial: Trial, *, connections: int, seconds: float) -> None:
        self._command = _command(trial, connections=connections, seconds=seconds)

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


def _command(trial: Trial, *, connections: int, seconds: float) -> list[str]:
    workload = trial.workload
    watched = {f"server{place}": pid for place, pid in enumerate(trial.running.pids)}
    options: list[tuple[str, object]] = [
        ("-p", trial.running.port),
        ("-u", trial.path),
        ("-c", connections),
        ("-r", workload.opened_per_second),
        ("-w", workload.warmup),
        ("-d", seconds),
        *(("-P", f"{name}={pid}") for name, pid in {"upstream": trial.upstream.pid, **watched}.items()),
    ]
    for ask in workload.asks(trial.server.dialect):
        options += [("-b", ask.body), ("-x", ask.chunks)]
    early = ["-o"] if workload.opened_per_second else []
    return [str(BUILD / "load"), *early, *(str(word) for option in options for word in option)]
