"""The operations that come with the hub: time, arithmetic, and files to look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dragoman.operations.function import from_function
from dragoman.operations.operation import Operation
from dragoman.tools import clock as clocks
from dragoman.tools import files
from dragoman.tools.calculator import calculate


def builtin(root: Path | None = None, *, clock: Callable[[], float] = time.time) -> list[Operation]:
    """All built-in operations; `files.*` only when there is a folder to show. `clock` gives unix seconds."""
    shown = files.operations(root) if root is not None else []
    return [from_function(calculate, "math", effect="read", timeout=5), *clocks.operations(clock), *shown]
