"""The delay of a chunk at a host that does not execute the run, behind the same chunk at the host that does.

`python benchmarks/remote_viewer.py [--chunks 200] [--interval 0.05]` opens two hosts on a Postgres server.
A viewer follows a paced answer at each of them; both note when each chunk arrives.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.postgres_server import PostgresServer
from tests.serving import Served, ask, serving

MILLISECONDS = 1_000


async def arrivals(
    client: httpx2.AsyncClient, method: str, path: str, body: object = None
) -> dict[str, float]:
    """Return when each chunk of a stream arrived, by its text."""
    seen: dict[str, float] = {}
    async with client.stream(method, path, json=body) as response:
        async for line in response.aiter_lines():
            if '"text-delta"' in line:
                for word in line.split('"delta":"')[1].split('"')[0].split():
                    seen.setdefault(word, time.perf_counter())
    return seen


async def measure(first: Served, second: Served) -> list[float]:
    """Return the delay of each chunk at the second host, in seconds; those of the replay are left out."""
    origin = asyncio.ensure_future(arrivals(first.http, "POST", "/api/chat", ask("go")))
    while first.active_run() is None:  # noqa: ASYNC110 - what the hub begins
        await asyncio.sleep(0.01)
    viewer = asyncio.ensure_future(arrivals(second.http, "GET", "/api/chat/s/stream"))
    here, there = await origin, await viewer
    began = min(there.values())
    return [at - here[word] for word, at in there.items() if here[word] > began]


async def viewer_delays(chunks: int, interval: float) -> list[float]:
    """Return by how many milliseconds each chunk is later at the other host, shortest first."""
    steps = [{"text": [f"word{number} " for number in range(chunks)], "delay": interval}]
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as folder, server.schema() as schema:
            url = server.url(schema)
            async with (
                serving(Path(folder) / "a", steps, play="turns", database=url) as first,
                serving(Path(folder) / "b", steps, play="turns", database=url) as second,
            ):
                return sorted(delay * MILLISECONDS for delay in await measure(first, second))
    finally:
        server.close()


async def main() -> None:
    """Print the delays."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--chunks", type=int, default=200)
    options.add_argument("--interval", type=float, default=0.05, help="seconds between two chunks")
    args = options.parse_args()
    delays = await viewer_delays(args.chunks, args.interval)
    p50, p95 = statistics.median(delays), delays[int(len(delays) * 0.95)]
    print(f"{len(delays)} chunks: p50 {p50:.1f} ms, p95 {p95:.1f} ms, worst {delays[-1]:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())
