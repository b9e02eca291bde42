"""Several hub processes on one Postgres, and one address for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any

from tests.clients import hub as hubs
from tests.clients.hub import Hub
from tests.databases import VARIABLE
from tests.hosts.round_robin import RoundRobin
from tests.postgres_server import shared_server


@dataclass
class Cluster(Hub):
    """Hosts behind a proxy that gives each request to the next one; `process` is that of the first host."""

    hosts: list[Hub] = field(default_factory=list)
    proxy: RoundRobin = field(default_factory=lambda: RoundRobin([]), repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What a further host needs in its environment."""
    resources: ExitStack = field(default_factory=ExitStack, repr=False)

    def stop(self, how: Signals = SIGTERM) -> int:
        """End all processes; return the exit code of the first."""
        try:
            codes = [host.stop(how) for host in self.hosts]
            return codes[0]
        finally:
            self.resources.close()


def start_cluster(folder: Path, config: Mapping[str, Any], *, count: int, keyless: bool = False) -> Cluster:
    """Start `count` hosts on an empty schema, each with a data folder of its own."""
    with ExitStack() as stack:
        server = shared_server()
        url = server.url(stack.enter_context(server.schema()))
        key = "" if keyless else hubs.create_key(folder / "keys", "tester", {VARIABLE: url})
        hosts: list[Hub] = []
        for number in range(count):
            host = hubs.start(folder / f"host{number}", dict(config), key=key, environ={VARIABLE: url})
            stack.callback(host.stop)
            hosts.append(host)
        proxy = RoundRobin(ports(hosts))
        stack.callback(proxy.close)
        first = hosts[0]
        return Cluster(
            first.process,
            proxy.url,
            key,
            first.output,
            first.reader,
            hosts=hosts,
            proxy=proxy,
            environ={VARIABLE: url},
            resources=stack.pop_all(),
        )


def ports(hosts: Sequence[Hub]) -> list[int]:
    """The ports on which hosts listen."""
    return [int(host.url.rpartition(":")[2]) for host in hosts]
