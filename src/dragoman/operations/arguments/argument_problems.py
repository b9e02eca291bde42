"""What is wrong with an argument: where, and what was expected there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

ValuePath: TypeAlias = Sequence[str | int]

ABSENT = object()


class ArgumentProblem(msgspec.Struct, frozen=True):
    """One problem; `got` is the value at the path, or ABSENT."""

    path: tuple[str | int, ...]
    expected: str
    got: Any = ABSENT


def dotted_path(path: ValuePath) -> str:
    """Return the path as `a.b[0].c`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
