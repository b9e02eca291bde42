"""How many examples, kills and rounds a test does: few in `make test`, many in `make soak`."""

from __future__ import annotations

import os

PROFILE = os.environ.get("TEST_PROFILE", "quick")


def rounds(*, quick: int, thorough: int) -> int:
    """How often a test does what it repeats."""
    return thorough if PROFILE == "thorough" else quick
