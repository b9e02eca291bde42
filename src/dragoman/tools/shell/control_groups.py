"""Control groups of Linux: how many processes and how much memory a command may have, all together."""

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
    """The groups of one command. Empty where the hub may not make any."""

    def __init__(self, folders: Sequence[Path], *, limits_processes: bool) -> None:
        self.folders = folders
        self.limits_processes = limits_processes

    @classmethod
    def create(cls, *, processes: int, memory: int) -> ControlGroups:
        """Create groups below the hub's own, one for each controller that allows it."""
        name = new_id("shell")
        parents = {
            controller: parent for line in own_groups() for controller, parent in parents_in(line).items()
        }
        made: dict[str, Path] = {}
        for controller, limits in (
            ("pids", {"pids.max": processes}),
            ("memory", {"memory.limit_in_bytes": memory, "memory.max": memory}),
        ):
            parent = parents.get(controller) or parents.get("")
            folder = None if parent is None else make_group(parent / name, limits)
            if folder is not None:
                made[controller] = folder
        return cls(list(dict.fromkeys(made.values())), limits_processes="pids" in made)

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
    """Return the lines that say which groups this process is in."""
    try:
        return OWN_GROUPS.read_text().splitlines()
    except OSError:
        return ()


def parents_in(line: str) -> dict[str, Path]:
    """Return the folder of each controller of a line; version 2 has one for all, under the empty name."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if not controllers:
        return {"": ROOT / path.lstrip("/")}
    return {each: ROOT / each / path.lstrip("/") for each in controllers.split(",")}


def make_group(folder: Path, limits: dict[str, int]) -> Path | None:
    """Create a group with the limits that it has; None if that is not allowed, or it has none of them."""
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
