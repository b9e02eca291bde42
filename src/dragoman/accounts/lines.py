"""Lines on disk: appended whole, read again after a crash, set apart while they are worked off. Blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

APART = ".replayed"


class Size(NamedTuple):
    """How much waits."""

    rows: int
    bytes: int


class Lines:
    """A file of lines. What is set apart to be worked off lies beside it, while new lines come in here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._apart = path.with_name(path.name + APART)

    def size(self) -> Size:
        """How much there is in all."""
        here, apart = measure(self._path), measure(self._apart)
        return Size(here.rows + apart.rows, here.bytes + apart.bytes)

    def append(self, lines: Sequence[bytes]) -> None:
        """Add whole lines, on disk on return; OSError when it takes none of them."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                    write(file.fileno(), b"\n")  # what a crash cut off stays a line of its own
                write(file.fileno(), b"".join(lines))
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def set_apart(self) -> Size | None:
        """Set apart what there is; how much that is, None when there is nothing.

        What was set apart before and not removed comes first.
        """
        if not self._apart.exists():
            if not measure(self._path).rows:
                return None
            self._path.replace(self._apart)
        return measure(self._apart)

    def apart(self) -> Iterator[bytes]:
        """The lines that were set apart."""
        with self._apart.open("rb") as file:
            yield from file

    def remove(self) -> None:
        """Remove what was set apart."""
        self._apart.unlink(missing_ok=True)


def measure(path: Path) -> Size:
    if not path.exists():
        return Size(0, 0)
    with path.open("rb") as file:
        return Size(sum(1 for line in file if line.strip()), path.stat().st_size)


def write(file: int, content: bytes) -> None:
    """All of it, also when the system takes it in pieces."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
