"""Find and signal a process's descendants by a mark in their environment.

A descendant may leave its process group or outlive its parent; the environment is inherited in both cases.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
MAX_ROUNDS = 5  # further rounds end what was started during the one before


def signal_marked(mark: str, number: signal.Signals) -> int:
    """Signal the process group of each process whose environment contains `mark`; return how many matched.

    Returns 0 where the system does not expose environments (anything but Linux). The marked process must lead
    its own session, so that no unrelated process shares a group with its descendants.
    """
    count = 0
    for pid in marked(mark.encode()):
        count += 1
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(os.getpgid(pid), number)
    return count


def end_marked(mark: str) -> None:
    """Send SIGKILL to all marked processes, until none is left."""
    for _ in range(MAX_ROUNDS):
        if not signal_marked(mark, signal.SIGKILL):
            return


def marked(mark: bytes) -> Iterator[int]:
    """Yield the ids of the processes with the mark whose environment is readable; zombies have none."""
    with suppress(OSError):
        for folder in PROC.iterdir():
            if folder.name.isdecimal() and mark in _environ(folder):
                yield int(folder.name)


def _environ(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:  # it has exited, or belongs to another user
        return b""
