"""Spokes in their own processes, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def process(
    hub: str, id: str, log: Path, *, key: str = "key-a"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that serves tests/spokes/tools.py; killed at the end if it still runs."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.spokes.tools_process", hub, id, key),
        cwd=ROOT,
        env={**os.environ, "SPOKE_LOG": str(log)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGKILL)
        await running.wait()


def words(log: Path, ending: str) -> int:
    """How many lines of the log end with this."""
    return sum(line.endswith(ending) for line in log.read_text().splitlines()) if log.exists() else 0


def lines(log: Path, ending: str) -> list[int]:
    """The processes that wrote lines with this ending."""
    return [int(line.split()[0]) for line in log.read_text().splitlines() if line.endswith(ending)]
