"""What a host that does nothing costs: CPU of the hub and of Postgres for it, and transactions.

`python benchmarks/idle_host.py [--seconds 30]` starts a hub on a Postgres server, waits until it has started
all it runs in the background, and prints its CPU time by thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

import psycopg

from benchmarks.harness.servers import Place, hub_command, process_family, started
from tests.postgres_server import PostgresServer

TICKS = os.sysconf("SC_CLK_TCK")
SETTLE = 8.0  # seconds until all of it has started
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


def cpu_of(stat: Path) -> float:
    """Return the CPU seconds of a process or thread; 0 for one that has ended."""
    with suppress(FileNotFoundError):
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def thread_times(pid: int) -> dict[str, float]:
    """Return the CPU seconds of each thread."""
    return {task.name: cpu_of(task / "stat") for task in Path(f"/proc/{pid}/task").iterdir()}


def database_use(server: PostgresServer) -> tuple[float, int]:
    """Return the CPU seconds of Postgres, and how many transactions it has committed."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute(COMMITS).fetchone()
    cpu = sum(cpu_of(Path(f"/proc/{pid}/stat")) for pid in process_family(server.pid))
    return cpu, int(row[0]) if row else 0


def measure(pid: int, server: PostgresServer, seconds: float) -> None:
    """Print what a hub and its database use."""
    before, (cpu, commits) = thread_times(pid), database_use(server)
    time.sleep(seconds)
    after, (cpu_after, commits_after) = thread_times(pid), database_use(server)
    spent = {name: value - before.get(name, 0.0) for name, value in after.items()}
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        if value > 0:
            print(f"thread {name:>8}  {value / seconds:7.2%} of a core")
    print(f"hub              {sum(spent.values()) / seconds:7.2%} of a core")
    print(f"Postgres         {(cpu_after - cpu) / seconds:7.2%} of a core")
    print(f"transactions     {(commits_after - commits) / seconds:7.1f} a second")


def main() -> None:
    """Start a hub, and measure it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=30.0)
    args = options.parse_args()
    server = PostgresServer({})
    try:
        with tempfile.TemporaryDirectory(prefix="idle-") as folder, server.schema() as schema:
            place = Place(upstream="http://127.0.0.1:9/v1", model="m", folder=Path(folder))
            command = [*hub_command(place), "--database", server.url(schema)]
            with started(command, log=Path(folder) / "output") as running:
                time.sleep(SETTLE)
                assert running.pid is not None
                measure(running.pid, server, args.seconds)
    finally:
        server.close()


if __name__ == "__main__":
    main()
