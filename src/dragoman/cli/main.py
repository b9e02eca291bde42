"""The console script."""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Import the program and run it; see `program.main`. Ctrl-C ends it also during the imports."""
    try:
        gc.disable()  # imports leave little garbage, and looking for it is a tenth of a short command
        from dragoman.cli.program import main as run_program  # late: after the line above

        gc.enable()
        run_program(arguments)
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # `program.EXIT_INTERRUPTED`, which may not be there yet
