"""Measures agents that have others work for them: many runs at once in one process, each with a sub-agent.

Each run asks its model, which calls a sub-agent, whose model answers in words of 20 ms; then another run
takes its place. Scripts play the models, so that nothing but the agents is measured.

examples
  python benchmarks/subagents.py                           200 at once for 30 s
  python benchmarks/subagents.py --runs 50 --seconds 5
"""

import argparse
import asyncio
import gc
import os
import time
from pathlib import Path
from statistics import quantiles

import msgspec

from dragoman import Agent, ScriptedModel
from dragoman.agent.result import Result
from dragoman.providers.scripted import Step

PAGE = os.sysconf("SC_PAGE_SIZE")
WORDS = ["word "] * 10
DELAY = 0.02  # seconds between words


class Count(msgspec.Struct):
    """What came of the runs."""

    took: list[float]
    wrong: int = 0


def main() -> None:
    """Run what the command line asks for, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="how many at once")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long")
    options = parser.parse_args()
    asyncio.run(measure(options.runs, options.seconds))


async def measure(runs: int, seconds: float) -> None:
    """Keep so many runs going for so long."""
    count, alone, before = Count([]), Count([]), len(asyncio.all_tasks())
    await again(time.monotonic() + 1, alone)
    end, began = time.monotonic() + seconds, time.process_time()
    watching = asyncio.ensure_future(watch(seconds))
    await asyncio.gather(*(again(end, count) for _ in range(runs)))
    used = time.process_time() - began
    cuts = quantiles(count.took, n=100)
    print(f"{len(count.took)} runs of {runs} at once in {seconds:g} s, {count.wrong} wrong")
    print(
        f"latency ms: p50 {1e3 * cuts[49]:.0f}, p99 {1e3 * cuts[98]:.0f}; alone {1e3 * min(alone.took):.0f}"
    )
    print(f"CPU ms a run: {1e3 * used / len(count.took):.2f}")
    print("MB at 10 %, 50 %, the end:", ", ".join(f"{each:.0f}" for each in await watching))
    print(f"tasks left: {len(asyncio.all_tasks()) - before}")


async def watch(seconds: float) -> list[float]:
    """The memory of this process at a tenth of the time, at the half, and shortly before the end."""
    found = []
    for part in (0.1, 0.4, 0.45):
        await asyncio.sleep(part * seconds)
        gc.collect()
        found.append(memory())
    return found


def memory() -> float:
    """What this process takes, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


async def again(end: float, count: Count) -> None:
    """One run after the other."""
    while time.monotonic() < end:
        began = time.perf_counter()
        result = await one()
        count.took.append(time.perf_counter() - began)
        count.wrong += (result.exit_reason, result.text) != ("success", "Done.")


async def one() -> Result:
    """A run with a sub-agent."""
    worker = Agent(ScriptedModel([step(WORDS)]), name="worker")
    model = ScriptedModel([("agents_worker", {"prompt": "Work."}), step(["Done."])])
    async with Agent(model, operations=[worker.as_operation("Works.")]) as agent:
        return await agent.spawn("Go.").result


def step(text: list[str]) -> Step:
    return Step(text=text, delay=DELAY)


if __name__ == "__main__":
    main()
