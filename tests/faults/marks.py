"""An operation whose effect can be counted: each call appends a line to a file."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dragoman.operations.definitions.decorator import operation


@operation("marks", effect="once")
def add(word: str) -> str:
    """Add a word to the file of marks."""
    with Path(os.environ["MARKS"]).open("a") as file:
        file.write(word + "\n")
    time.sleep(0.05)  # so that a kill can fall between the effect and its record
    return f"added {word}"


@operation("marks", effect="once")
def die(word: str, once: str | None = None) -> None:
    """Add a word to the file of marks, and take the whole process down, if need be once a file is there."""
    add(word)
    while once is not None and not Path(once).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@operation("marks", effect="once", approval=True)
def wipe() -> str:
    """Wipe them, which somebody has to approve."""
    return add("wiped")
