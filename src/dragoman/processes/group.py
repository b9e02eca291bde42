"""Wait for, signal and detach from a child process that leads its own process group."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

POLL_SECONDS = 0.01


async def wait_for_exit(process: asyncio.subprocess.Process, timeout: float) -> bool:
    """Return whether the process exits within `timeout` seconds.

    Polls, because asyncio's wait() also waits until grandchildren close the pipes.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while process.returncode is None and loop.time() < end:  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(POLL_SECONDS)
    return process.returncode is not None


def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to the process group; do nothing if the group no longer exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close our ends of its pipes, which grandchildren may keep open."""
    transport = getattr(process, "_transport", None)  # asyncio has no public way
    if transport is not None:
        transport.close()
