"""Measures the gateway beside nginx, a raw relay, LiteLLM and the Node gateway, in one run.

Absolute figures change with the machine and with what else it does; only the ratios inside one run say
something. Work is counted per CPU-second of the gateway, all its processes together. The upstream and the
load generator are C programs; each table shows how much CPU they took. Every answer is checked.

tests
  json       chat.completions, JSON in and JSON out: requests
  relay      an OpenAI stream passed on, unpaced and paced: chunks
  translate  OpenAI client and Anthropic upstream, and the other way about: chunks
  latency    what the gateway adds for one client, whole answers and first chunks
  memory     what an open stream adds, at 2,000 streams
  cold       from the start of the process to its first answer
  size       what an installation takes on disk

gateways
  direct, nginx, raw relay     the limits: no keys, no usage
  dragoman                     a hub key, usage rows with costs (counted after each run)
  dragoman, budget             the same with limits and a budget
  LiteLLM, Portkey             as they are started by their own documents
One that cannot be installed, does not start or answers wrongly is listed as ABSENT with the reason.

examples
  python benchmarks/gateway.py                              everything, about half an hour
  python benchmarks/gateway.py --quick                      everything once and short
  python benchmarks/gateway.py --only json --gateways nginx,dragoman

The tables go to standard output as Markdown, every single run into benchmarks/results/ as JSON.
"""

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from benchmarks.gateways.peer_files import Size
from benchmarks.gateways.peers import Peer, peers
from benchmarks.gateways.sheet import Row, as_json, sizes, table
from benchmarks.gateways.tasks import GROUPS, Task, tasks
from benchmarks.gateways.trial import Result, measure
from benchmarks.harness.build import BUILD, HERE, Absent, compile_programs
from benchmarks.harness.servers import Running, started
from benchmarks.harness.table import number


def main() -> None:
    """Run what the command line asks for; exit code 1 when the hub's work was not whole."""
    options = _parse()
    _raise_limits()
    compile_programs()
    everyone = pick(options.gateways)
    absent = dict(_install(everyone))
    print(f"# Gateways\n\n{_describe()}\n")
    print(*(f"- {peer.name}: {peer.does}" for peer in everyone), "", sep="\n", flush=True)
    done: list[Mapping[str, Any]] = []
    if "size" in options.only:
        found = dict(_sizes(everyone, absent))
        print(sizes(found), flush=True)
        done.append({name: asdict(size) for name, size in found.items()})
    chosen = tasks(streams=options.streams, pace=options.pace, quick=options.quick)
    whole = True
    with upstream_server() as upstream:
        for task in (task for task in chosen if task.group in options.only):
            rows = run(task, everyone, upstream=upstream, absent=dict(absent), repeat=options.repeat)
            print(table(task, rows), "", sep="\n", flush=True)
            done.append(as_json(task, rows))
            whole = whole and all(row.whole and not row.absent for row in rows if "dragoman" in row.peer)
    _write(done)
    sys.exit(0 if whole else 1)


@contextmanager
def upstream_server() -> Iterator[Running]:
    """The model server behind all of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        yield stack.enter_context(started([str(BUILD / "upstream")], log=folder / "output"))


def run(
    task: Task, everyone: Sequence[Peer], *, upstream: Running, absent: dict[str, str], repeat: int
) -> Sequence[Row]:
    """All gateways in turn, as often as asked, so that the machine's moods meet all alike."""
    results: dict[str, list[Result]] = {peer.name: [] for peer in everyone}
    for _ in range(repeat):
        floor = 0.0
        for peer in everyone:
            if peer.name in absent or not _fits(task, peer):
                continue
            try:
                result = measure(task, peer, upstream=upstream)
            except Absent as reason:
                absent[peer.name] = str(reason)
                continue
            if task.measure == "latency":
                floor = floor or result.p50  # the first one is asked directly
                result = replace(result, value=result.p50 - floor)
            print(f"{task.name}: {peer.name}: {number(result.value)}", file=sys.stderr, flush=True)
            results[peer.name].append(result)
    return [
        Row(
            peer=peer.name,
            reference=peer.reference,
            results=results[peer.name],
            absent=absent.get(peer.name),
        )
        for peer in everyone
        if _fits(task, peer)
    ]


def pick(names: str) -> Sequence[Peer]:
    """The gateways whose names contain these words; all without any. Direct ones always."""
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    everyone = peers()
    for name in wanted:
        if not any(name in peer.name.lower() for peer in everyone):
            sys.exit(f"no gateway is called {name!r}; there are: {', '.join(p.name for p in everyone)}")
    return [
        peer
        for peer in everyone
        if not wanted or peer.command is None or any(name in peer.name.lower() for name in wanted)
    ]


def _fits(task: Task, peer: Peer) -> bool:
    if peer.command is None:
        return task.measure == "latency"
    if task.group not in peer.groups:
        return False
    return peer.translates or task.door == task.upstream


def _install(everyone: Sequence[Peer]) -> Iterator[tuple[str, str]]:
    for peer in everyone:
        try:
            if peer.install:
                peer.install()
        except Absent as reason:
            yield peer.name, str(reason)


def _sizes(everyone: Sequence[Peer], absent: Mapping[str, str]) -> Iterator[tuple[str, Size]]:
    for peer in everyone:
        try:
            if peer.size is not None and peer.name not in absent:
                yield peer.name, peer.size()
        except Absent:
            continue


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups = [*GROUPS, "size"]
    parser.add_argument("--only", choices=groups, action="append", help="one test; may be repeated")
    parser.add_argument(
        "--gateways", metavar="NAME,…", default="", help="only gateways whose names contain these"
    )
    parser.add_argument("--repeat", type=int, help="runs of each, of which the median counts (3)")
    parser.add_argument("--quick", action="store_true", help="short runs, one of each unless said: a look")
    parser.add_argument("--streams", type=int, default=2000, help="streams of the memory test (2000)")
    parser.add_argument("--pace", type=int, default=1, help="chunks a second in each of them (1)")
    options = parser.parse_args()
    options.only = options.only or groups
    options.repeat = options.repeat or (1 if options.quick else 3)
    return options


def _raise_limits() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _describe() -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{now}, {os.cpu_count()} cores, Python {platform.python_version()}, load average before {load}"


def _write(done: Sequence[Mapping[str, Any]]) -> None:
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    path = results / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-gateway.json"
    path.write_text(json.dumps({"machine": _describe(), "tests": done}, indent=1))
    print(f"every run: {path.name} in {results.name}/", file=sys.stderr)


if __name__ == "__main__":
    main()
