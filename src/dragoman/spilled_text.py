"""The beginning of a long text in a file, so that an answer of megabytes does not stay in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

PIECE = 262_144  # characters of text that are read at once
HEAD = 16_384  # characters at the beginning of a text that stay in memory


class TextFile(Protocol):
    """Keeps bytes. A protocol, since folding does no I/O: see `store/sessions/spill_file.py`."""

    def append(self, raw: bytes) -> int:
        """Write bytes at the end; return their offset. Raises OSError."""

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes that were written. Raises OSError."""


class TextRange(NamedTuple):
    """Characters of a spilled text, read on demand."""

    spilled: SpilledText
    start: int
    end: int

    def read(self) -> str:
        """Return the text."""
        return self.spilled.read(self.start, self.end)


TextPieces: TypeAlias = "Sequence[str | TextRange]"
"""A text in pieces, some of which are in a file."""


def is_on_disk(pieces: TextPieces) -> bool:
    """Return whether reading the text reads a file."""
    return any(isinstance(piece, TextRange) for piece in pieces)


def read_pieces(pieces: TextPieces) -> str:
    """Return the whole text, in any thread. Raises OSError."""
    return "".join(piece if isinstance(piece, str) else piece.read() for piece in pieces)


class WrittenPiece(NamedTuple):
    """A text in a file: its characters, its place and its bytes."""

    length: int
    offset: int
    size: int


def write_text(file: TextFile, text: str) -> list[WrittenPiece]:
    """Write a text in pieces, in any thread. Raises OSError."""
    written: list[WrittenPiece] = []
    for at in range(0, len(text), PIECE):
        piece = text[at : at + PIECE]
        raw = piece.encode("utf-8", "surrogatepass")
        written.append(WrittenPiece(len(piece), file.append(raw), len(raw)))
    return written


class SpilledText:
    """The first `length` characters of a text. They are only appended to. `head` is its beginning."""

    __slots__ = ("_file", "_offsets", "_sizes", "_starts", "head", "length")

    def __init__(self, file: TextFile, *, head: str = "") -> None:
        self._file = file
        self.head = head
        self._starts: list[int] = []  # of each piece: its first character, its place and bytes in the file
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self.length = 0

    def append(self, pieces: Iterable[WrittenPiece]) -> None:
        """Append what `write_text` has written to the file."""
        for piece in pieces:
            self._starts.append(self.length)
            self._offsets.append(piece.offset)
            self._sizes.append(piece.size)
            self.length += piece.length

    def read(self, start: int, end: int) -> str:
        """Return the characters from `start` to `end`. Raises OSError."""
        end = min(end, self.length)
        if start >= end:
            return ""
        if end <= len(self.head):
            return self.head[start:end]
        texts: list[str] = []
        first = bisect_right(self._starts, start) - 1
        for at in range(first, len(self._starts)):
            if self._starts[at] >= end:
                break
            raw = self._file.read(self._offsets[at], self._sizes[at])
            text = raw.decode("utf-8", "surrogatepass")
            texts.append(text[max(0, start - self._starts[at]) : end - self._starts[at]])
        return "".join(texts)

    def pieces(self, start: int, end: int) -> TextPieces:
        """Return the characters from `start` to `end` without reading the file."""
        return [self.head[start:end]] if end <= len(self.head) else self.ranges(start, end)

    def ranges(self, start: int, end: int | None = None) -> list[TextRange]:
        """Return the characters from `start` to `end` in ranges of at most `PIECE` characters."""
        last = self.length if end is None else min(end, self.length)
        pieces = zip(self._starts, [*self._starts[1:], self.length], strict=False)
        return [
            TextRange(self, max(start, piece_start), min(last, piece_end))
            for piece_start, piece_end in pieces
            if piece_end > start and piece_start < last
        ]
