"""A temporary file for the older text of a long answer; see `spilled_text.py`.

It has no name and is gone with its process. Reads are synchronous: what was written a moment ago is in the
page cache.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path


class SpillFile:
    """A file that the texts of one answer share. Raises OSError where the disk accepts nothing."""

    def __init__(self, folder: Path) -> None:
        self._fd, name = tempfile.mkstemp(prefix="answer-", dir=folder)
        weakref.finalize(self, os.close, self._fd)
        Path(name).unlink()
        self._size = 0

    def append(self, raw: bytes) -> int:
        """Write bytes at the end; return their offset. Raises OSError."""
        offset, written = self._size, 0
        while written < len(raw):
            written += os.pwrite(self._fd, raw[written:] if written else raw, offset + written)
        self._size = offset + written
        return offset

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes that were written. Raises OSError."""
        return os.pread(self._fd, size, offset)
