"""Cut a file that arrives in chunks into its lines, or the objects of its JSON array.

Of a file of hundreds of megabytes no more than one piece is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dragoman.errors import BadRequest, TooLarge

_BRACKET = re.compile(rb"[][{}]")
_BETWEEN = re.compile(rb"[\s,]*")


def split_lines(chunks: Iterable[bytes], *, max_size: int) -> Iterator[bytes]:
    """Yield the lines, without their ends. Raises TooLarge for one of more than `max_size` bytes."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        if rest:
            yield b"".join(parts)
            yield from rest[:-1]
            parts, size = [rest[-1]], len(rest[-1])
        if size > max_size:
            raise TooLarge(f"a line of the file has more than {max_size} bytes")
    if last := b"".join(parts):
        yield last


def split_array(chunks: Iterable[bytes], *, max_size: int) -> Iterator[bytes]:
    """Yield the objects of a JSON array. Raises BadRequest for another one, or one that is cut off.

    Raises TooLarge for an object of more than `max_size` bytes. The objects need not be valid JSON.
    """
    splitter = ArraySplitter(max_size=max_size)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    splitter.end()


class ArraySplitter:
    """Finds the objects of a JSON array by their brackets."""

    def __init__(self, *, max_size: int) -> None:
        self._max_size = max_size
        self._depth = 0
        self._has_ended = False
        self._in_string = False
        self._pending = b""  # a backslash at the end of a chunk
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the objects that end in a chunk."""
        chunk, outside = self._without_strings(chunk)
        start = done = 0
        for bracket in _BRACKET.finditer(outside):
            at = bracket.start()
            if self._depth <= 1:
                self._check_between(outside[done:at], bracket[0])
                start = at
            self._depth += 1 if bracket[0] in b"{[" else -1
            done = at + 1
            if self._depth == 1 and bracket[0] == b"}":
                self._add(chunk[start:done])
                yield b"".join(self._parts)
                self._parts, self._size = [], 0
        if self._depth > 1:
            self._add(chunk[start:])
        else:
            self._check_between(outside[done:], b"")

    def end(self) -> None:
        """Raise BadRequest when the array has not ended."""
        if not self._has_ended or self._in_string:
            raise BadRequest("the file is cut off, or is not a JSON array of conversations")

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._max_size:
            raise TooLarge(f"a conversation of the file has more than {self._max_size} bytes")

    def _check_between(self, outside: bytes, bracket: bytes) -> None:
        """Check what is not in an object, and the bracket behind it."""
        allowed = b"" if self._has_ended else b"[" if self._depth == 0 else b"{]"
        is_allowed = not bracket or bracket in allowed
        if _BETWEEN.fullmatch(outside) is None or not is_allowed:
            raise BadRequest("the file is not a JSON array of conversations")
        self._has_ended = self._has_ended or bracket == b"]"

    def _without_strings(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Return a chunk that ends in no escape, and the same with blanks in place of its strings."""
        chunk, self._pending = self._pending + chunk, b""
        hidden = chunk
        if b"\\" in chunk:
            if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
                chunk, self._pending = chunk[:-1], b"\\"
            hidden = chunk.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
        pieces = hidden.split(b'"')
        outside = [
            b" " * len(piece) if self._in_string ^ bool(index % 2) else piece
            for index, piece in enumerate(pieces)
        ]
        self._in_string ^= len(pieces) % 2 == 0
        return chunk, b'"'.join(outside)
