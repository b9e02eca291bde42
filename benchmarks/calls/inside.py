"""Calls in this process: a bare function, `hub.call` with a ledger in memory, and with one in SQLite."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.calls.asks import NUMBERS, batch
from benchmarks.calls.tools import add, put
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import Ledger, MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.store.store import Store

WORKERS = 16
Call = Callable[[], Awaitable[Any]]


async def bare(a: int, b: int) -> int:
    """The least that an asynchronous addition costs."""
    return a + b


async def rate(call: Call, count: int) -> tuple[float, float]:
    """How many such calls are made a second, and a CPU-second of all threads."""

    async def work() -> None:
        for _ in range(count // WORKERS):
            await call()

    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(WORKERS)))
    return count / (time.perf_counter() - began), count / (time.process_time() - used)


async def with_ledger(ledger: Ledger, tool: str, count: int) -> tuple[float, float]:
    """The rate of `hub.call` with one call in it."""
    registry = Registry(add, put)
    async with Calls(registry, ledger) as calls:
        meta = MetaTools(registry, calls)

        async def call() -> None:
            outcome = await meta.run("hub.call", batch(tool), context=Context(for_model=True))
            assert outcome.result[0]["result"] == 3

        await rate(call, count // 10)
        return await rate(call, count)


async def main(count: int) -> None:
    """Measure each, and print them."""
    found = {"bare": await rate(lambda: bare(**NUMBERS), 50 * count)}
    for tool in ("bench.add", "bench.put"):
        found[f"memory {tool}"] = await with_ledger(MemoryLedger(), tool, count)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with await Store.open(Path(folder)) as store:
            for tool in ("bench.add", "bench.put"):
                found[f"sqlite {tool}"] = await with_ledger(store.calls, tool, count)
    print(json.dumps(found))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
