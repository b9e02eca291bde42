"""Orphans: ends the MCP servers of a hub that was killed. A program by itself, without the hub's modules.

On its input are lines such as `+12` and `-12`: process groups that begin and that have ended. When the input
ends, those that are left get a moment, for their own input has ended too; then SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE_SECONDS = 1.0
TERM_SECONDS = 1.0
POLL_SECONDS = 0.02


def main() -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # they are meant for the hub
    left = read(sys.stdin.buffer)
    for seconds, then in ((GRACE_SECONDS, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL)):
        wait(left, seconds)
        for group in left:
            send(group, then)


def read(lines: Iterable[bytes]) -> set[int]:
    """The groups that have begun and not ended by the end of the input."""
    held: set[int] = set()
    for line in lines:
        (held.add if line.startswith(b"+") else held.discard)(int(line[1:]))
    return held


def wait(groups: set[int], seconds: float) -> None:
    """Wait until they are gone, or no longer."""
    end = time.monotonic() + seconds
    while any(send(group, 0) for group in groups) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def send(group: int, number: int) -> bool:
    """Whether there is such a group, which gets this signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
