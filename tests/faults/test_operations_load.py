"""Calls at a fixed rate over HTTP, MCP and a spoke: none is lost, memory stays flat."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.calls.asks import by_http, by_mcp
from benchmarks.calls.paced import run
from tests.faults.operations_hub import spoke
from tests.faults.process import Process, started, write_config
from tests.faults.test_operations_crash import get, has
from tests.waiting import LIMIT

TOOLS = Path(__file__).parents[2] / "benchmarks" / "calls" / "tools.py"
RATE, SPOKE_RATE, SECONDS = 500, 200, 1.5
GROWN = 10.0  # MB


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def load(hub: Process, request: str, *, wanted: str, rate: int) -> None:
    """So many calls a second, all answered as they should be, in memory that does not grow."""
    place = {"port": hub.http.base_url.port, "pid": hub.process.pid, "connections": 16}
    pace = {"rate": rate, "seconds": SECONDS, "late": LIMIT}
    found = await run({**place, **pace, "request": request, "wanted": wanted})
    count = int(rate * SECONDS)
    assert (found["sent"], found["answered"], found["wrong"]) == (count, count, 0)
    assert found["memory"][-1][1] - found["memory"][3][1] < GROWN, found["memory"]


@pytest.mark.promise("calls-load")
async def test_calls_over_all_endpoints_are_all_answered_in_flat_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIN_LOG", str(tmp_path / "log"))
    config = write_config(tmp_path, [], operations=[str(TOOLS)])
    async with started(config, tmp_path / "hub") as hub, spoke(str(hub.http.base_url)):
        await has(hub, "far.add", "bench.add")
        for tool, rate in (("bench.add", RATE), ("bench.put", RATE), ("far.add", SPOKE_RATE)):
            await load(hub, by_http(tool, "none"), wanted='"result":3', rate=rate)
        await load(hub, by_mcp("bench.add", "none"), wanted='\\"result\\":3', rate=RATE)
        for status in ("running", "pending", "failed"):
            assert (await get(hub, f"/api/calls?status={status}"))["calls"] == []
