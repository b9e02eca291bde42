"""A whole run: every workload on every server, in rounds, so that the machine's moods meet all alike."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.build import BUILD, Absent
from benchmarks.harness.measure import Result, measure
from benchmarks.harness.servers import Running, Server, started
from benchmarks.harness.table import Row, number
from benchmarks.harness.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What is measured, and how often."""

    workloads: Sequence[Workload]
    servers: Sequence[Server]
    repeat: int

    def run(self) -> Iterator[tuple[Workload, Sequence[Row]]]:
        """Each workload with its rows as soon as it is done."""
        absent = dict(_prepare(self.servers))
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            upstream = stack.enter_context(started([str(BUILD / "upstream")], log=folder / "output"))
            for workload in self.workloads:
                yield workload, self._rows(workload, upstream, absent=dict(absent))

    def _rows(self, workload: Workload, upstream: Running, *, absent: dict[str, str]) -> Sequence[Row]:
        servers = [
            server
            for server in self.servers
            if workload.group in server.groups and (server.command or workload.measure == "first")
        ]
        results: dict[str, list[Result]] = {server.name: [] for server in servers}
        for _ in range(self.repeat):
            for name, result in _round(workload, servers, upstream=upstream, absent=absent):
                results[name].append(result)
        return [
            Row(
                server=server.name,
                reference=server.reference,
                results=results[server.name],
                absent=absent.get(server.name),
            )
            for server in servers
        ]


def _prepare(servers: Sequence[Server]) -> Iterator[tuple[str, str]]:
    for server in servers:
        try:
            if server.prepare:
                server.prepare()
        except Absent as reason:
            yield server.name, str(reason)


def _round(
    workload: Workload, servers: Sequence[Server], *, upstream: Running, absent: dict[str, str]
) -> Iterator[tuple[str, Result]]:
    """Every server once; who turns out to be absent is noted, and not asked again."""
    floor = 0.0
    for server in servers:
        if server.name in absent:
            continue
        try:
            result = measure(workload, server, upstream=upstream)
        except Absent as reason:
            absent[server.name] = str(reason)
            continue
        floor = floor or result.first_chunk  # the first one is asked directly, if it is of this test
        result = replace(result, added=result.first_chunk - floor)
        print(f"{workload.name}: {server.name}: {number(result.value)}", file=sys.stderr, flush=True)
        yield server.name, result
