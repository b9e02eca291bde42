"""Operations whose effects are lines of a file, one of which waits while another file is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dragoman.operations.definitions.decorator import operation


def mark(line: str) -> str:
    """Append a line to the file of marks, in one write: several processes append to it."""
    with Path(os.environ["MARKS"]).open("a") as file:
        file.write(f"{line}\n")
    return line


@operation("held", effect="once")
def note(word: str) -> str:
    """Note a word."""
    return mark(f"note {word}")


@operation("held", effect="once")
def pay(word: str) -> str:
    """Pay for a word."""
    line = mark(f"pay {word}")
    while Path(f"{os.environ['MARKS']}.held").exists():
        time.sleep(0.02)
    return line


@operation("held", effect="once", approval=True)
def sign(word: str) -> str:
    """Sign a word, once a person has allowed it."""
    return mark(f"sign {word}")
