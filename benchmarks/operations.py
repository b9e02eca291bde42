"""Measures what a call costs: in process, over HTTP and MCP, through a spoke, beside a plain FastMCP server.

inside   calls of an empty operation in one process: a bare function, hub.call with a ledger in memory or in
         SQLite
paced    --rate calls a second for --seconds, each a batch of one: at the hub's own door, at /mcp as of the
         newest revision and in a session of an older one; --spoke-rate through a spoke in its own process
most     as many as are answered, with 32 connections for a few seconds; FastMCP's server beside them

Every answer is checked. The hub is `dragoman serve` with a key, and writes each call down twice in SQLite.

examples
  python benchmarks/operations.py                        everything, about six minutes
  python benchmarks/operations.py --seconds 5            the same in a minute and a half
  python benchmarks/operations.py --only paced --doors http
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from benchmarks.calls.asks import NUMBERS, batch, by_http, by_mcp, by_session
from benchmarks.calls.places import Place, environment, hub, paced, peer
from benchmarks.harness.build import HERE, Absent
from benchmarks.harness.table import align, number
from benchmarks.search_data.engines import PEER_PYTHON, install_peers, version_of

WANTED = {"http": '"result":3', "mcp": "3", "session": "3", "spoke": '"result":3'}
CONNECTIONS = 32
HEAD = [
    "door",
    "a second",
    "of",
    "wrong",
    "p50 ms",
    "p99 ms",
    "MB at 10 %",
    "MB at the end",
    "CPU hub",
    "CPU load",
]


def main() -> None:
    """Run what the command line asks for, and print it as Markdown."""
    options = parse()
    print(f"# Operations\n\n{describe()}\n")
    if "inside" in options.only:
        print(inside(options.count), flush=True)
    if "paced" in options.only:
        print(f"## So many a second, {options.seconds:g} s each\n")
        print(*align([HEAD, *rows(options)]), "", sep="\n", flush=True)
    if "most" in options.only:
        print(f"## As many as are answered, {options.most:g} s each\n")
        print(*align([HEAD, *most(options)]), "", sep="\n", flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["inside", "paced", "most"])
    parser.add_argument("--doors", nargs="+", default=list(WANTED), choices=list(WANTED))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each paced row")
    parser.add_argument("--most", type=float, default=5.0, help="seconds for each row of the most")
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--spoke-rate", type=int, default=200)
    parser.add_argument("--count", type=int, default=8_000, help="calls in process")
    return parser.parse_args()


def describe() -> str:
    """When and where."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{when}, {os.cpu_count()} cores, Python {platform.python_version()}, load before {load}"


def inside(count: int) -> str:
    """Calls in a process of their own, and their share of a bare function's."""
    command = [sys.executable, "-m", "benchmarks.calls.inside", str(count)]
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment(), capture_output=True, text=True, check=True
    )
    found: Mapping[str, tuple[float, float]] = json.loads(done.stdout)
    least = found["memory bench.add"][1]
    lines = [["in process", "a second", "a CPU-second", "× memory"]]
    lines += [[name, number(a), number(cpu), number(cpu / least)] for name, (a, cpu) in found.items()]
    return "\n".join(["## In process\n", *align(lines), ""])


def rows(options: argparse.Namespace) -> Iterator[Sequence[str]]:
    """Each door at its rate, with a hub of its own."""
    for door in options.doors:
        rate = options.spoke_rate if door == "spoke" else options.rate
        yield measure(door, rate=rate, seconds=options.seconds)


def most(options: argparse.Namespace) -> Iterator[Sequence[str]]:
    """Each door as fast as it goes, and the peer's."""
    for door in options.doors:
        yield measure(door, rate=0, seconds=options.most)
    try:
        install_peers()
        with peer(PEER_PYTHON, HERE / "peers" / "fastmcp" / "server.py") as place:
            request = by_session(place.port, "/mcp", "", tool="add", input=NUMBERS)
            found = paced(place, request, wanted="3", rate=0, seconds=options.most, connections=CONNECTIONS)
            yield row(f"FastMCP {version_of('fastmcp')}, session, no ledger", found, rate=0)
    except Absent as error:
        yield ["FastMCP", f"ABSENT: {error}", *[""] * (len(HEAD) - 2)]


def measure(door: str, *, rate: int, seconds: float) -> Sequence[str]:
    """One door of a fresh hub."""
    with hub() as place:
        found = paced(
            place,
            ask(door, place),
            wanted=WANTED[door],
            rate=rate,
            seconds=seconds,
            connections=CONNECTIONS,
        )
    return row(door, found, rate=rate)


def ask(door: str, place: Place) -> str:
    """The request that is sent."""
    match door:
        case "mcp":
            return by_mcp("bench.add", place.key)
        case "session":
            return by_session(place.port, "/mcp", place.key, tool="hub_call", input=batch("bench.add"))
        case "spoke":
            return by_http("far.add", place.key)
        case _:
            return by_http("bench.add", place.key)


def row(name: str, found: Mapping[str, Any], *, rate: int) -> Sequence[str]:
    """A line of the table."""
    seconds, memory = found["seconds"], found["memory"]
    lost = found["sent"] - found["answered"] + found["wrong"]
    return [
        name,
        number(found["answered"] / seconds),
        number(rate) if rate else "",
        str(lost),
        number(found["p50"]),
        number(found["p99"]),
        number(memory[1][1]),
        number(memory[-1][1]),
        f"{found['server_cpu'] / seconds:.0%}",
        f"{found['cpu'] / seconds:.0%}",
    ]


if __name__ == "__main__":
    main()
