"""Programs with limits of their own: what they start inherits them."""

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
    """Return the arguments that start a program, given by its path, with limits.

    `limits` are named as in the `resource` module; `groups` are the control groups that it joins.
    It reads the `seccomp_filter` from FILTER_DESCRIPTOR.
    """
    wanted = {
        "groups": [str(each) for each in groups],
        "limits": dict(limits),
        "filter": seccomp_filter.hex(),
        "descriptor": FILTER_DESCRIPTOR,
    }
    return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(wanted), *arguments]
