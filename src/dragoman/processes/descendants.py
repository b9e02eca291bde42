"""What a process has started, found by a mark in its environment: also what left its group or outlived it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
MAX_ROUNDS = 5  # for what is started while the others are ended


def signal_marked(mark: str, number: signal.Signals) -> int:
    """Signal the group of each process whose environment holds the mark; how many processes there were.

    None are found where the system shows no environments (other than Linux). The mark must belong to a
    session of its own: the groups of those who inherit it are then nobody else's.
    """
    found = 0
    for pid in marked(mark.encode()):
        found += 1
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(os.getpgid(pid), number)
    return found


def end_marked(mark: str) -> None:
    """End them all at once."""
    for _ in range(MAX_ROUNDS):
        if not signal_marked(mark, signal.SIGKILL):
            return


def marked(mark: bytes) -> Iterator[int]:
    """The processes with the mark, as far as we may look into them. Those that have ended have none."""
    with suppress(OSError):
        for folder in PROC.iterdir():
            if folder.name.isdigit() and mark in _environ(folder):
                yield int(folder.name)


def _environ(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:  # it has gone, or belongs to somebody else
        return b""
