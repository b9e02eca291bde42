"""Limit processes: a stand-alone program that limits itself and then becomes another program.

Arguments: JSON with the limits, the control groups to join, and a seccomp filter that the program reads from
a descriptor (`resource_limits.with_limits`); then the program with its arguments. Its descendants inherit
limits and groups.

Imports nothing of the hub, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path


def main() -> None:
    """Join the groups, set the limits, run the program."""
    settings = json.loads(sys.argv[1])
    for group in settings["groups"]:
        Path(group, "cgroup.procs").write_text("0")  # 0 is the process that writes
    if settings["filter"]:
        pass_filter(bytes.fromhex(settings["filter"]), settings["descriptor"])
    for name, value in settings["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell is wanted


def pass_filter(program: bytes, descriptor: int) -> None:
    """Let the program read a seccomp filter from a descriptor. A filter fits into the buffer of a pipe."""
    reader, writer = os.pipe()
    os.write(writer, program)
    os.close(writer)
    os.dup2(reader, descriptor)


if __name__ == "__main__":
    main()
