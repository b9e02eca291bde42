"""A child process that leads a group of its own: whether it has gone, and how all of it is ended."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

POLL_SECONDS = 0.01  # seconds between two looks whether it is still there


async def wait_for_exit(process: asyncio.subprocess.Process, timeout: float) -> bool:
    """Whether it ends in time. Polls, for asyncio's wait() waits for the pipes of grandchildren too."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while process.returncode is None and loop.time() < end:  # noqa: ASYNC110 - nothing tells it
        await asyncio.sleep(POLL_SECONDS)
    return process.returncode is not None


def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to it and all that it started; nothing, when none of them is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close our ends of its pipes, which grandchildren may hold open."""
    transport = getattr(process, "_transport", None)  # nothing public does it
    if transport is not None:
        transport.close()
