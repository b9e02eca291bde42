"""Find and signal a process's descendants: its group, and all processes with a mark in their environment.

A descendant may leave its process group or outlive its parent; the environment is inherited in both cases.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO

PROC = "/proc"
MAX_ROUNDS = 5  # further rounds end the processes that were started during the one before
GRACE_SECONDS = 1.0
TERM_SECONDS = 1.0
POLL_SECONDS = 0.02


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
    with suppress(OSError), os.scandir(PROC) as folders:
        for folder in folders:
            if folder.name.isdecimal() and mark in _environ(folder.path):
                yield int(folder.name)


def _environ(folder: str) -> bytes:
    try:
        with FileIO(f"{folder}/environ") as file:
            return file.readall()
    except OSError:  # it has exited, or belongs to another user
        return b""


def end_groups(groups: Mapping[int, str]) -> None:
    """End process groups and their descendants. `groups` has the mark of each group by its id.

    They get GRACE_SECONDS to exit (their own input has ended too), then SIGTERM, then SIGKILL.
    """
    for seconds, number in ((GRACE_SECONDS, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL)):
        wait_for_groups(groups, seconds)
        for group, mark in groups.items():
            signal_group(group, number)
            signal_marked(mark, number)
    for mark in groups.values():
        end_marked(mark)


def wait_for_groups(groups: Mapping[int, str], seconds: float) -> None:
    """Wait up to `seconds` until the groups and all marked processes have exited."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(
        signal_group(group, 0) or any(marked(mark.encode())) for group, mark in groups.items()
    ):
        time.sleep(POLL_SECONDS)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
