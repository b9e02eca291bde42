"""A spoke under load: nothing lost, memory flat."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dragoman.operations import Context
from tests.spokes.hubs import House, house
from tests.spokes.processes import process

RATE, SECONDS, WARM = 200, 4, 800
PAGE = os.sysconf("SC_PAGE_SIZE")


def memory(pid: int) -> float:
    """What a process holds, in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * PAGE / 1e6


async def paced(hub: House, count: int, *, rate: float) -> list[str]:
    """The results of so many calls, begun so many a second."""
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def one(number: int) -> str:
        await asyncio.sleep(begin + number / rate - loop.time())
        outcome = await hub.calls.call("far.echo", {"value": f"{number} {'x' * 500}"}, context=Context())
        return str(outcome.unwrap()).split()[0]

    return await asyncio.gather(*(one(number) for number in range(count)))


@pytest.mark.promise("spoke-load")
async def test_200_calls_a_second_go_through_a_spoke_without_loss_in_flat_memory(tmp_path: Path) -> None:
    async with house() as hub, process(hub.url, "one", tmp_path / "log") as spoke:
        await hub.has("far.echo")
        hub.ledger._max_calls = 100
        await paced(hub, WARM, rate=1_000)
        before = memory(os.getpid()), memory(spoke.pid)
        count = RATE * SECONDS
        assert await paced(hub, count, rate=RATE) == [str(number) for number in range(count)]
        grown = memory(os.getpid()) - before[0], memory(spoke.pid) - before[1]
        assert max(grown) < 8, grown
        assert hub.running() == []
        assert hub.board.status()[0]["calls"] == 0
