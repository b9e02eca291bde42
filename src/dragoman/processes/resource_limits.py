"""Start programs with resource limits and control groups, which their descendants inherit."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LAUNCHER = Path(__file__).with_name("rlimit_program.py")

FILTER_DESCRIPTOR = 9


def with_limits(
    arguments: Sequence[str],
    limits: Mapping[str, int],
    *,
    groups: Sequence[Path] = (),
    seccomp_filter: bytes = b"",
) -> list[str]:
    """Return the command that starts a program with limits. `arguments[0]` is the path of the program.

    `limits` are named as in the `resource` module (`RLIMIT_CPU`); `groups` are the folders of the control
    groups that it joins. The program can read `seccomp_filter` from FILTER_DESCRIPTOR.
    """
    settings = {
        "groups": [str(group) for group in groups],
        "limits": dict(limits),
        "filter": seccomp_filter.hex(),
        "descriptor": FILTER_DESCRIPTOR,
    }
    return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(settings), *arguments]
