"""Orphan cleanup: a stand-alone program that ends the processes of a hub that was killed.

The watchdog runs it. Its input has lines such as `+12 NAME=mark`, which registers a process group and the
mark in the environment of its descendants, and `-12`, which removes the group. End of input means that the
hub is gone, and the remaining groups are ended (`descendants.end_groups`).

Imports nothing of the hub, and of the standard library only what it needs until its input ends: hubs start it
with their first child process, and nearly all of them end it unused. `_signal` is the part of `signal`
without its enumerations, which take longer to load than the interpreter.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import sys

TYPE_CHECKING = False  # as in `typing`, which is not loaded
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def main() -> None:
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)  # a terminal sends them to the hub's whole group
    groups = read_groups(sys.stdin.buffer)
    if groups:
        load_sibling("descendants").end_groups(groups)


def load_sibling(name: str) -> Any:
    """Load a module of this folder by its file.

    The folder is not put on sys.path, where its modules could shadow those of the standard library.
    """
    from importlib.util import module_from_spec, spec_from_file_location  # late: see above
    from pathlib import Path  # late: see above

    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = module_from_spec(spec)
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


if __name__ == "__main__":
    main()
