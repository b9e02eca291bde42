"""The console script."""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Import the program and run it; see `program.main`."""
    gc.disable()  # imports leave little garbage, and looking for it takes a tenth of a short command's time
    from dragoman.cli.program import main as run_program  # late: after the line above

    gc.enable()
    run_program(arguments)
