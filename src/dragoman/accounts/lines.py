"""Lines on disk: appended whole, read again after a crash, set apart while they are worked off. Blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

REPLAY_SUFFIX = ".replayed"


class SpoolSize(NamedTuple):
    """How much waits."""

    rows: int
    bytes: int


class SpoolFile:
    """A file of lines. What is set apart to be worked off lies beside it, while new lines come in here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replay_path = path.with_name(path.name + REPLAY_SUFFIX)

    def size(self) -> SpoolSize:
        """How much there is in all."""
        here, apart = file_size(self._path), file_size(self._replay_path)
        return SpoolSize(here.rows + apart.rows, here.bytes + apart.bytes)

    def append(self, lines: Sequence[bytes]) -> None:
        """Add whole lines, on disk on return; OSError when it takes none of them."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                    write_all(file.fileno(), b"\n")  # what a crash cut off stays a line of its own
                write_all(file.fileno(), b"".join(lines))
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def start_replay(self) -> SpoolSize | None:
        """Set apart what there is; how much that is, None when there is nothing.

        What was set apart before and not removed comes first.
        """
        if not self._replay_path.exists():
            if not file_size(self._path).rows:
                return None
            self._path.replace(self._replay_path)
        return file_size(self._replay_path)

    def replay_lines(self) -> Iterator[bytes]:
        """The lines that were set apart."""
        with self._replay_path.open("rb") as file:
            yield from file

    def finish_replay(self) -> None:
        """Remove what was set apart."""
        self._replay_path.unlink(missing_ok=True)


def file_size(path: Path) -> SpoolSize:
    if not path.exists():
        return SpoolSize(0, 0)
    with path.open("rb") as file:
        return SpoolSize(sum(1 for line in file if line.strip()), path.stat().st_size)


def write_all(file: int, content: bytes) -> None:
    """All of it, also when the system takes it in pieces."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
