"""The progress bar of `dragoman database`."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from dragoman.cli.terminal import make_console
from dragoman.store.maintenance.progress import Progress


class ProgressBar(Progress):
    """Draws one bar for each stage on stderr, if that is a terminal."""

    def __init__(self) -> None:
        self._bars = RichProgress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=make_console(sys.stderr),
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start(self, stage: str, total: int) -> None:
        """Begin the bar of a stage."""
        self._task = self._bars.add_task(stage, total=total or None)

    def advance(self, count: int) -> None:
        """Move the bar on."""
        if self._task is not None:
            self._bars.advance(self._task, count)
