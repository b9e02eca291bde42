"""The progress of a long command."""

from __future__ import annotations


class Progress:
    """Takes the progress and shows nothing. The command line draws it."""

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of `total` rows or bytes."""

    def advance(self, count: int) -> None:
        """Count rows or bytes of the stage as done."""
