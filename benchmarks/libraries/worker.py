"""One library at work, in a process of its own: worker LIBRARY turns|memory|script; prints what it measured.

Runs with the interpreter that has the library, and needs nothing else but the standard library.
"""

import argparse
import asyncio
import gc
import json
import resource
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.libraries.task import INSTRUCTIONS, Ran, check

WARM = 1.0  # seconds at most
PAGE = resource.getpagesize()
Turn = Callable[[], Awaitable[None]]


def main() -> None:
    """Do what the command line says."""
    options = parse()
    library = import_module(options.library)
    match options.task:
        case "turns":
            found = asyncio.run(turns(library, options))
        case "memory":
            found = asyncio.run(memory(library, options))
        case _:
            found = asyncio.run(script(library, options))
    print(json.dumps(found))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("task", choices=["turns", "memory", "script"])
    parser.add_argument("--url", help="an OpenAI-compatible server; without one a script is played")
    parser.add_argument("--name", default="", help="the model's name there")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=10_000, help="agents")
    parser.add_argument("--own-tool", action="store_true", help="each agent has a tool of its own")
    parser.add_argument("--used", action="store_true", help="each agent has taken a turn")
    parser.add_argument("--traced", action="store_true", help="ask tracemalloc instead of the system")
    return parser.parse_args()


def made(library: Any, options: argparse.Namespace, ran: Ran) -> Turn:
    """One turn that is checked: its answer, and that the tool ran for it."""
    model = library.remote(options.url, options.name) if options.url else library.scripted()
    agent = library.agent(model, library.tool(ran), INSTRUCTIONS)
    take = library.stream if options.stream else library.run
    streamed = options.stream or getattr(library, "STREAMS_ALWAYS", False)

    async def turn() -> None:
        check(await take(agent), scripted=not options.url, streamed=streamed)

    return turn


async def turns(library: Any, options: argparse.Namespace) -> dict[str, float]:
    """Turns for some seconds, so many at a time; the time is that of a turn among its fellows."""
    ran = Ran()
    turn = made(library, options, ran)
    await several(turn, options.at_once, until=time.perf_counter() + WARM)
    gc.collect()
    ran.times = 0
    began, used, before = time.perf_counter(), time.process_time(), resident()
    taken = await several(turn, options.at_once, until=began + options.seconds)
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    assert ran.times == len(taken), f"the tool ran {ran.times} times in {len(taken)} turns"
    taken.sort()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "turns": len(taken),
        "wall": wall,
        "cpu": cpu,
        "p50": taken[len(taken) // 2],
        "p99": taken[len(taken) * 99 // 100],
        "grown": resident() - before,
        "peak": peak,
    }


async def several(turn: Turn, at_once: int, *, until: float) -> list[float]:
    """Turns, all of a round begun at the same moment, until it is time; how long each took, in seconds."""
    taken: list[float] = []

    async def one(began: float) -> None:
        await turn()
        taken.append(time.perf_counter() - began)

    while not taken or time.perf_counter() < until:
        began = time.perf_counter()
        if at_once == 1:
            await one(began)
        else:
            await asyncio.gather(*(one(began) for _ in range(at_once)))
    return taken


async def memory(library: Any, options: argparse.Namespace) -> dict[str, float]:
    """What idle agents take, in bytes each, and how long it takes to make them all."""
    ran = Ran()
    model, shared = library.scripted(), library.tool(ran)
    first = library.agent(model, shared, INSTRUCTIONS)
    check(await library.run(first), scripted=True, streamed=False)
    gc.collect()
    if options.traced:
        tracemalloc.start()
    before, began = resident(), time.process_time()
    agents = []
    for number in range(options.count):
        tool = library.tool(ran) if options.own_tool else shared
        agents.append(library.agent(model, tool, f"{INSTRUCTIONS} You are number {number}."))
        if options.used:
            check(await library.run(agents[-1]), scripted=True, streamed=False)
    cpu = time.process_time() - began
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] if options.traced else resident() - before
    return {"count": len(agents), "each": grown / len(agents), "cpu": cpu}


async def script(library: Any, options: argparse.Namespace) -> dict[str, float]:
    """One turn: what a small script does. Its cost is seen from outside."""
    await made(library, options, Ran())()
    return {"modules": 1.0}


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


if __name__ == "__main__":
    main()
