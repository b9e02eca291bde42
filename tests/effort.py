"""How much a test does: few examples, kills and rows of a table in `make test`, all in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

PROFILE = os.environ.get("TEST_PROFILE", "quick")
T = TypeVar("T")


def rounds(*, quick: int, thorough: int) -> int:
    """How often a test does what it repeats."""
    return thorough if PROFILE == "thorough" else quick


def rows(table: Sequence[T], *, quick: int) -> Sequence[T]:
    """The rows of a table that a test goes through: every `quick`-th in `make test`, which has to meet each
    kind of row; all of them in `make soak`.
    """
    return table if PROFILE == "thorough" else table[::quick]
