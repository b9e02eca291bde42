"""A temporary file for the older text of a long answer; see `spilled_text.py`.

It has no name and disappears with its process. Reads and writes are synchronous: all callers are in threads
(see `offload_disk`).
"""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from functools import partial
from pathlib import Path

from dragoman.fold import KEPT_IN_MEMORY, SPILLED_FROM, Fold
from dragoman.offload import offload_disk
from dragoman.spilled_text import write_text

log = logging.getLogger(__name__)


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


class AnswerSpill:
    """Moves the older text of a long answer from memory to a file; it stays in memory on a full disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: SpillFile | None = None
        self._failed = False

    async def spill(self, fold: Fold) -> None:
        """Move older text to the file, if the answer is long.

        Only the caller waits for the disk. It may not add to the fold meanwhile.
        """
        if fold.size < SPILLED_FROM or self._failed:
            return
        try:
            file = self._file
            if file is None:
                file = self._file = await offload_disk(partial(SpillFile, self._folder))
            for block in fold.long_blocks():
                text = block.older_text(keep=KEPT_IN_MEMORY)
                block.spill(file, await offload_disk(partial(write_text, file, text)))
        except OSError as error:
            self._failed = True
            log.warning("the answer %s stays in memory as a whole: %s", fold.id, error)
