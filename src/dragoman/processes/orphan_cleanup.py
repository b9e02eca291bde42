"""Orphan cleanup: a stand-alone program that ends the processes of a hub that was killed.

The watchdog runs it. Its input has lines such as `+12 NAME=mark`, which registers a process group and the
mark in the environment of its descendants, and `-12`, which removes the group. End of input means that the
hub is gone: the remaining groups get a moment to exit (their own input has ended too), then SIGTERM, then
SIGKILL, and so do marked descendants that left their group. Imports nothing of the hub, so that it starts
fast.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

GRACE_SECONDS = 1.0
TERM_SECONDS = 1.0
POLL_SECONDS = 0.02


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to the hub's whole group
    descendants = load_sibling("descendants")
    groups = read_groups(sys.stdin.buffer)
    for seconds, number in ((GRACE_SECONDS, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL)):
        wait_for_exit(groups, seconds, descendants=descendants)
        for group, mark in groups.items():
            signal_group(group, number)
            descendants.signal_marked(mark, number)
    for mark in groups.values():
        descendants.end_marked(mark)


def load_sibling(name: str) -> Any:
    """Load a module of this folder by its file.

    The folder is not put on sys.path, where its modules could shadow those of the standard library.
    """
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_groups(lines: Iterable[bytes]) -> dict[int, str]:
    """Return the marks of the groups that are registered and not removed when the input ends."""
    groups: dict[int, str] = {}
    for line in lines:
        group, _, mark = line[1:].decode().strip().partition(" ")
        if line.startswith(b"+"):
            groups[int(group)] = mark
        else:
            groups.pop(int(group), None)
    return groups


def wait_for_exit(groups: Mapping[int, str], seconds: float, *, descendants: Any) -> None:
    """Wait up to `seconds` until the groups and all marked processes have exited."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(
        signal_group(group, 0) or any(descendants.marked(mark.encode())) for group, mark in groups.items()
    ):
        time.sleep(POLL_SECONDS)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
