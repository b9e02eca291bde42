"""Measures a turn of an agent beside Pydantic AI, the OpenAI Agents SDK, LangGraph and Agno, in one run.

Absolute figures change with the machine and with what else it does; only the ratios inside one run say
something. A turn is two model steps with one call of an asynchronous tool between them, and an answer of 20
pieces. Each library speaks its own idiom (benchmarks/peers/agents), in a process of its own for each run,
tracing and telemetry off. Every answer is checked, and that the tool ran once for it.

tests
  scripted   turns against a model in the same process: what the library itself takes
  http       turns against an OpenAI-compatible server on the loopback, a C program; beside the same loop
             written by hand with the `openai` package
  many       200 turns at the same time
  memory     idle agents: what each takes
  import     importing the library, with and without bytecode; a script of one turn from start to end

Peers are installed from their lock file when they are first needed. One that cannot be installed, or that
answers wrongly, is listed as ABSENT with the reason.

examples
  python benchmarks/agents.py                            everything, about fifteen minutes
  python benchmarks/agents.py --quick --only http        a look
  python benchmarks/agents.py --libraries dragoman,agno
  python benchmarks/agents.py --peers DIR/bin/python     with an environment that has the peers

The tables go to standard output as Markdown, every single run into benchmarks/results/ as JSON.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from benchmarks.harness.build import BUILD, HERE, Absent, compile_programs
from benchmarks.harness.servers import started
from benchmarks.harness.table import number
from benchmarks.libraries import trial
from benchmarks.libraries.peers import Library, install_peers, libraries
from benchmarks.libraries.sheet import import_table, memory_table, rate, turn_table
from benchmarks.libraries.task import INPUT
from benchmarks.libraries.tasks import GROUPS, IDLE, TURNS

T = TypeVar("T")


class Bench:
    """A run: rounds over all libraries, so that the machine's moods meet all alike."""

    def __init__(self, options: argparse.Namespace, url: str) -> None:
        self.options = options
        self.url = url
        self.absent: dict[str, str] = {}
        self.done: dict[str, Any] = {}
        self.everyone = pick(options)
        if any(library.python != Path(sys.executable) for library in self.everyone) and not options.peers:
            self.install()

    def install(self) -> None:
        """Have the peers, or note why not."""
        try:
            install_peers()
        except Absent as reason:
            theirs = [each for each in self.everyone if each.python != Path(sys.executable)]
            self.absent.update({each.name: str(reason) for each in theirs})

    def rounds(
        self, title: str, measure: Callable[[Library], T], *, among: Sequence[Library], repeat: int
    ) -> Mapping[str, Sequence[T]]:
        """Each library's results; who turns out to be absent is noted, and not asked again."""
        found: dict[str, list[T]] = {each.name: [] for each in among}
        for _ in range(repeat):
            for library in among:
                if library.name in self.absent:
                    continue
                try:
                    found[library.name].append(measure(library))
                    print(f"{title}: {library.name}", file=sys.stderr, flush=True)
                except Absent as reason:
                    self.absent[library.name] = f"{title}: {reason}"
        return found

    def turns(self) -> None:
        """The tables of turns."""
        for task in TURNS:
            if task.group not in self.options.only:
                continue
            found = self.rounds(
                task.title,
                lambda library, task=task: trial.turns(  # type: ignore[misc]  # bound now, not later
                    library, task, url=self.url, seconds=self.options.seconds
                ),
                among=[each for each in self.everyone if task.http or not each.by_hand],
                repeat=self.options.repeat,
            )
            self.done[f"{task.title}, {task.at_once}"] = found
            print(turn_table(task, found, self.absent), flush=True)
            print(f"{task.title}: {best(found)}", file=sys.stderr, flush=True)

    def memory(self) -> None:
        """The table of idle agents."""
        among = [each for each in self.everyone if not each.by_hand]
        columns = {
            task.title: self.rounds(
                task.title,
                lambda library, task=task: trial.idle(  # type: ignore[misc]  # bound now, not later
                    library, task, count=self.options.count
                ),
                among=among,
                repeat=1,
            )
            for task in IDLE
        }
        self.done["memory"] = columns
        print(memory_table(columns, self.absent, count=self.options.count), flush=True)

    def imports(self) -> None:
        """The table of beginnings. What the first round loads is left out."""
        repeat = self.options.repeat + 1

        def rounds(title: str, measure: Callable[[Library], trial.Cost], bare: bool) -> Any:
            among = [*([trial.bare()] if bare else []), *self.everyone]
            found = self.rounds(title, measure, among=among, repeat=repeat)
            return {name: costs[1:] for name, costs in found.items()}

        columns = {
            "import": rounds("import", lambda each: trial.importing(each, compiled=True), bare=True),
            "import, nothing compiled": rounds(
                "import, nothing compiled", lambda each: trial.importing(each, compiled=False), bare=True
            ),
            "one turn over HTTP": rounds(
                "one turn", lambda each: trial.script(each, url=self.url), bare=False
            ),
        }
        self.done["import"] = {
            title: {name: [asdict(cost) for cost in costs] for name, costs in column.items()}
            for title, column in columns.items()
        }
        print(import_table(columns, self.absent), flush=True)


def main() -> None:
    """Run what the command line asks for; exit code 1 when our own work was not right."""
    options = parse()
    compile_programs()
    print(f"# Agents\n\n{describe()}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        upstream = [str(BUILD / "upstream"), "-t", "add", "-a", json.dumps(INPUT)]
        with started(upstream, log=Path(folder) / "output") as running:
            bench = Bench(options, f"http://127.0.0.1:{running.port}/v1")
            bench.turns()
            if "memory" in options.only:
                bench.memory()
            if "import" in options.only:
                bench.imports()
    write(bench.done)
    sys.exit(1 if any("Dragoman" in name for name in bench.absent) else 0)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=GROUPS, action="append", help="one test; may be repeated")
    parser.add_argument(
        "--libraries", metavar="NAME,…", default="", help="only those whose names contain these"
    )
    parser.add_argument("--repeat", type=int, help="runs of each, of which the median counts (3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run of turns (3)")
    parser.add_argument("--count", type=int, default=10_000, help="idle agents (10,000)")
    parser.add_argument("--peers", type=Path, help="the interpreter of an environment that has the peers")
    parser.add_argument("--quick", action="store_true", help="short runs, one of each unless said: a look")
    options = parser.parse_args()
    options.only = options.only or list(GROUPS)
    options.repeat = options.repeat or (1 if options.quick else 3)
    if options.quick:
        options.seconds, options.count = 1.0, options.count // 10
    return options


def pick(options: argparse.Namespace) -> Sequence[Library]:
    """The libraries whose names contain what was asked for; all without any."""
    wanted = [name.strip().lower() for name in options.libraries.split(",") if name.strip()]
    everyone = libraries(options.peers)
    for name in wanted:
        if not any(name in each.name.lower() for each in everyone):
            sys.exit(f"no library is called {name!r}; there are: {', '.join(each.name for each in everyone)}")
    return [each for each in everyone if not wanted or any(name in each.name.lower() for name in wanted)]


def best(found: Mapping[str, Sequence[trial.Found]]) -> str:
    """All libraries with their turns a CPU-second, the best one first."""
    rates = {name: rate(each) for name, each in found.items() if each}
    ranked = sorted(rates, key=lambda name: -rates[name])
    return ", ".join(f"{name} {number(rates[name])}" for name in ranked)


def describe() -> str:
    """When and where."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{when}, {os.cpu_count()} cores, Python {platform.python_version()}, load before {load}"


def write(done: Mapping[str, Any]) -> None:
    """Every single run, as JSON."""
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    path = results / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-agents.json"
    path.write_text(json.dumps({"machine": describe(), "tests": done}, indent=1))
    print(f"every run: {path.name} in {results.name}/", file=sys.stderr)


if __name__ == "__main__":
    main()
