"""Measures how well and how fast operations are found, beside FastMCP's and Pydantic AI's search, in one run.

quality   first hit, recall@5 and NDCG@10 on a small set of our own and on the public sets that --data has
speed     CPU ms a query at 1,000, 10,000 and 100,000 tools made of those of the sets: of questions as people
          ask them, and of keywords as models write them; what building takes, and memory

--data is a folder. What it may hold, any part of it:
  checkouts of public repositories, under their own names: fairyshine/Seal-Tools (Apache-2.0),
    icip-cas/LiveMCPBench (Apache-2.0), HowieHwong/MetaTool (MIT), ShishirPatil/gorilla (Apache-2.0),
    THUNLP-MT/StableToolBench (Apache-2.0), smart-mcp-proxy/mcpproxy-go (MIT)
  sets as files: SET.tools.json, {"tools": [{"name", "description", "schema"?, "namespace"?}]}, and
    SET.queries.jsonl, {"query", "gold": [names]} a line
Nothing of them is kept here. Each search runs in a process of its own; peers are installed from their lock.

examples
  python benchmarks/search.py                                     our own set only
  python benchmarks/search.py --data ~/sets                       everything, about fifteen minutes
  python benchmarks/search.py --data ~/sets --only quality --engines dragoman
"""

import argparse
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from benchmarks.harness.build import Absent
from benchmarks.harness.table import align, number
from benchmarks.search_data.crowd import KEYWORDS, crowd, questions
from benchmarks.search_data.engines import Engine, Ranking, engines, run
from benchmarks.search_data.figures import Quality, average, judge, percentile
from benchmarks.search_data.golden import golden
from benchmarks.search_data.pool import Pool, read_pools
from benchmarks.search_data.repositories import read_checkouts

QUESTIONS = 200


def main() -> None:
    """Run what the command line asks for, and print it as Markdown."""
    options = parse()
    pools = [golden()]
    if options.data:
        pools += [*read_checkouts(options.data), *read_pools(options.data)]
    wanted = [name for name in options.engines.lower().split(",") if name]
    chosen, absent = prepare([each for each in engines() if fits(each, wanted)])
    print(f"# Search\n\n{describe()}\n")
    print(*(f"- ABSENT: {name}: {why}" for name, why in absent.items()), "", sep="\n")
    if "quality" in options.only:
        print(quality(pools, chosen), flush=True)
    for size in options.sizes if "speed" in options.only else ():
        print(speed(pools, chosen, size), flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder with checkouts or files of public sets")
    parser.add_argument("--only", choices=["quality", "speed"], action="append", help="one part")
    parser.add_argument(
        "--engines", metavar="NAME,…", default="", help="only those whose names contain these"
    )
    parser.add_argument("--sizes", metavar="N,…", default="1000,10000,100000", help="of the test of speed")
    options = parser.parse_args()
    options.only = options.only or ["quality", "speed"]
    options.sizes = [int(each) for each in options.sizes.split(",")]
    if options.data and not options.data.is_dir():
        parser.error(f"--data: {str(options.data)!r} is not a folder")
    return options


def fits(engine: Engine, wanted: Sequence[str]) -> bool:
    """Whether an engine is one of those asked for."""
    return not wanted or any(name in engine.name.lower() for name in wanted)


def prepare(wanted: Sequence[Engine]) -> tuple[Sequence[Engine], Mapping[str, str]]:
    """The engines that can run here, and why the others cannot."""
    chosen, absent = [], {}
    for engine in wanted:
        try:
            if engine.prepare:
                engine.prepare()
            chosen.append(engine)
        except Absent as reason:
            absent[engine.name] = str(reason)
    return chosen, absent


def quality(pools: Sequence[Pool], chosen: Sequence[Engine]) -> str:
    """A table: a set a line, an engine a column; the means of the public sets last."""
    head = ["set", "tools", "queries", *(engine.name for engine in chosen)]
    lines, judged = [head], {engine.name: list[Quality]() for engine in chosen}
    for pool in pools:
        queries = [query.text for query in pool.queries]
        cells = [judge(pool.queries, run(engine, pool.tools, queries).ranked) for engine in chosen]
        for engine, found in zip(chosen, cells, strict=True):
            judged[engine.name].append(found)
        lines.append([pool.name, str(len(pool.tools)), str(len(queries)), *map(text_of, cells)])
        print(f"{pool.name}: {', '.join(map(text_of, cells))}", file=sys.stderr, flush=True)
    if len(pools) > 1:
        means = [text_of(average(judged[engine.name][1:])) for engine in chosen]
        lines.append(["mean of the public sets", "", "", *means])
    title = "## Quality\n\nfirst hit / recall@5 / NDCG@10, of 100; each set is a pool of its own\n"
    return "\n".join([title, *align(lines), ""])


def text_of(found: Quality) -> str:
    """A quality as a cell."""
    return f"{found.first:.1f} / {found.recall:.1f} / {found.ndcg:.1f}"


def speed(pools: Sequence[Pool], chosen: Sequence[Engine], size: int) -> str:
    """A table: an engine a line."""
    tools, requests = crowd(pools, size), questions(pools, QUESTIONS)
    lines = [
        [
            "search",
            "questions p50",
            "p95",
            "max",
            "keywords p50",
            "max",
            "built, s",
            "MiB",
            "add, µs",
            "remove",
        ]
    ]
    notes = []
    for engine in chosen:
        try:
            found = run(engine, tools, [*requests, *KEYWORDS])
        except Absent as reason:
            notes.append(f"- {engine.name}: {reason}")
            continue
        lines.append([engine.name, *times(found, len(requests))])
        print(f"{size}: {' '.join(lines[-1])}", file=sys.stderr, flush=True)
    title = f"## Speed over {size:,} tools\n\nCPU ms a query\n"
    return "\n".join([title, *align(lines), "", *notes, ""])


def times(found: Ranking, request_count: int) -> list[str]:
    """A ranking's cells."""
    long, short = found.taken[:request_count], found.taken[request_count:]
    figures = [percentile(long, 0.5), percentile(long, 0.95), max(long), percentile(short, 0.5), max(short)]
    changes = [number(each or None) for each in (found.add, found.remove)]
    return [*map(number, figures), number(found.built), number(found.grown), *changes]


def describe() -> str:
    """When and where this is."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{now}, {os.cpu_count()} cores, Python {platform.python_version()}, load average before {load}"


if __name__ == "__main__":
    main()
