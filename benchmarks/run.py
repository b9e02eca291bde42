"""Measures the hub beside a raw relay and named peers, in one run, and prints how they compare.

Absolute figures change with the machine and with what else it does; only the ratios inside one run say
something. Work is counted per CPU-second of the server, all its processes together: that holds while the
machine is busy. The upstream and the load generator are C programs; each table shows how much CPU they took.

tests
  stream   chunks in OpenAI's form into AI SDK frames: unpaced (many come in a read), and paced (20 a second)
  turns    agent turns with a tool call (two model steps); the hub keeps every turn, the others keep nothing
  memory   what an open stream adds, at 1,000 streams
  first    the time that a server adds to the first chunk

servers
  raw relay         bytes in, bytes out; in a turn the client asks for both steps itself
  bare transform    the least that turns chunks into frames and runs the tool call
  dragoman          the hub of this source tree, sessions and journal on
  dragoman, Postgres  the same on a Postgres that is started for it; turns and first only
  AI SDK            Node, streamText to a UI message stream
  Pydantic AI       its Vercel AI adapter
A server that cannot be installed, does not start or answers wrongly is listed as ABSENT with the reason.

examples
  python benchmarks/run.py                              everything, ten to fifteen minutes
  python benchmarks/run.py --quick                      everything once and short, about three minutes
  python benchmarks/run.py --only stream --servers raw,dragoman
  python benchmarks/run.py --only memory --pace 20      as busy streams, if the machine carries them

The tables go to standard output as Markdown, every single run into benchmarks/results/ as JSON.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from benchmarks.harness.build import HERE, compile_programs
from benchmarks.harness.servers import Server, servers
from benchmarks.harness.suite import Suite
from benchmarks.harness.table import as_json, table
from benchmarks.harness.workloads import workloads


def main() -> None:
    """Run what the command line asks for; exit code 1 when the hub's work was not whole."""
    options = _parse()
    chosen = [
        work for work in workloads(pace=options.pace, quick=options.quick) if work.group in options.only
    ]
    repeat = 1 if options.quick else options.repeat
    compile_programs()
    suite = Suite(workloads=chosen, servers=_pick(options.servers), repeat=repeat)
    done, whole = [], True
    print(f"# Benchmarks\n\n{_describe()}\n")
    print(*(f"- {server.name}: {server.does}" for server in suite.servers), "", sep="\n")
    for workload, rows in suite.run():
        print(table(workload, rows), "", sep="\n", flush=True)
        done.append(as_json(workload, rows))
        whole = whole and all(row.complete and not row.absent for row in rows if row.server == "dragoman")
    _write(done)
    sys.exit(0 if whole else 1)


def _parse() -> argparse.Namespace:
    groups = ["stream", "turns", "memory", "first"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=groups, action="append", help="one test; may be repeated")
    parser.add_argument(
        "--servers", metavar="NAME,…", default="", help="only servers whose names contain these"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the median counts (3)")
    parser.add_argument(
        "--quick", action="store_true", help="one short run of each: a look, not a measurement"
    )
    parser.add_argument(
        "--pace", type=int, default=1, help="chunks a second in a stream of the memory test (1)"
    )
    options = parser.parse_args()
    options.only = options.only or groups
    return options


def _pick(names: str) -> Sequence[Server]:
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    everyone = servers()
    for name in wanted:
        if not any(name in server.name.lower() for server in everyone):
            sys.exit(
                f"no server is called {name!r}; there are: {', '.join(server.name for server in everyone)}"
            )
    return [
        server
        for server in everyone
        if not wanted or server.command is None or any(name in server.name.lower() for name in wanted)
    ]


def _describe() -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{now}, {os.cpu_count()} cores, Python {platform.python_version()}, load average before {load}"


def _write(done: Sequence[Mapping[str, Any]]) -> None:
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    path = results / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"machine": _describe(), "tests": done}, indent=1))
    print(
        f"every run: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
