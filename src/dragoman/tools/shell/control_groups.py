"""Control groups of Linux: limit the processes and the memory of a command and all its descendants."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dragoman.ids import new_id

ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
REMOVE_ATTEMPTS = 20


class ControlGroups:
    """The control groups of one command; none where the hub may not create any."""

    def __init__(self, folders: Sequence[Path], *, limits_processes: bool) -> None:
        self.folders = folders
        self.limits_processes = limits_processes

    @classmethod
    def create(cls, *, processes: int, memory: int) -> ControlGroups:
        """Create groups below the hub's own, one for each controller that allows it.

        `processes` is a count, `memory` is in bytes.
        """
        name = new_id("shell")
        parents = {
            controller: parent for line in own_groups() for controller, parent in parents_in(line).items()
        }
        groups: dict[str, Path] = {}
        for controller, limits in (
            ("pids", {"pids.max": processes}),
            ("memory", {"memory.limit_in_bytes": memory, "memory.max": memory}),
        ):
            parent = parents.get(controller) or parents.get("")
            folder = None if parent is None else make_group(parent / name, limits)
            if folder is not None:
                groups[controller] = folder
        return cls(list(dict.fromkeys(groups.values())), limits_processes="pids" in groups)

    def remove(self) -> None:
        """Remove the groups, whose processes are ending."""
        for folder in self.folders:
            for _ in range(REMOVE_ATTEMPTS):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # its last process is not gone yet
                    time.sleep(0.005)


def own_groups() -> Sequence[str]:
    """Return the groups of this process: lines `hierarchy:controllers:path`, see cgroups(7)."""
    try:
        return OWN_GROUPS.read_text().splitlines()
    except OSError:
        return ()


def parents_in(line: str) -> dict[str, Path]:
    """Return the folder of each controller in a line. Version 2 has one folder for all, under the name ``."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if not controllers:
        return {"": ROOT / path.lstrip("/")}
    return {controller: ROOT / controller / path.lstrip("/") for controller in controllers.split(",")}


def make_group(folder: Path, limits: dict[str, int]) -> Path | None:
    """Create a group and set those of the limits that it supports; None if none could be set."""
    try:
        folder.mkdir(exist_ok=True)
        present = {name: value for name, value in limits.items() if (folder / name).exists()}
        for name, value in present.items():
            (folder / name).write_text(str(value))
    except OSError:
        present = {}
    if not present:
        with suppress(OSError):
            folder.rmdir()
        return None
    return folder
