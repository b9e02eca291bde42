"""Orphans: ends what a hub that was killed has started. A program by itself, without the hub's modules.

On its input are lines such as `+12 NAME=mark` and `-12`: process groups that begin, with a mark that all they
start has in its environment, and groups that have ended. When the input ends, those that are left get a
moment, for their own input has ended too; then SIGTERM, then SIGKILL, also for what has left the group.
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
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # they are meant for the hub
    started = load_sibling("descendants")
    left = read_groups(sys.stdin.buffer)
    for seconds, then in ((GRACE_SECONDS, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL)):
        wait_for_exit(left, seconds, started=started)
        for group, mark in left.items():
            signal_group(group, then)
            started.signal_marked(mark, then)
    for mark in left.values():
        started.end_marked(mark)


def load_sibling(name: str) -> Any:
    """A module that stands beside this one, by its file: its folder has names that Python's own have too."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_groups(lines: Iterable[bytes]) -> dict[int, str]:
    """The groups that have begun and not ended by the end of the input, with their marks."""
    held: dict[int, str] = {}
    for line in lines:
        group, _, mark = line[1:].decode().strip().partition(" ")
        if line.startswith(b"+"):
            held[int(group)] = mark
        else:
            held.pop(int(group), None)
    return held


def wait_for_exit(groups: Mapping[int, str], seconds: float, *, started: Any) -> None:
    """Wait until they are gone, with all that has their marks, or no longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(
        signal_group(group, 0) or any(started.marked(mark.encode())) for group, mark in groups.items()
    ):
        time.sleep(POLL_SECONDS)


def signal_group(group: int, number: int) -> bool:
    """Whether there is such a group, which gets this signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
