"""An operation whose effects can be counted by session: each call appends a line to a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import operation


@operation("marks", effect="once")
def add(word: str, context: Context) -> str:
    """Add a word to the file of marks, after the session."""
    line = f"{context.session_id} {word}\n"
    with Path(os.environ["MARKS"]).open("a") as file:
        file.write(line)  # one write: several processes append to the file
    time.sleep(0.02)  # so that a kill can fall between the effect and its record
    return f"added {word}"


@operation("marks", effect="read")
def look(word: str) -> str:
    """Return the word."""
    return word
