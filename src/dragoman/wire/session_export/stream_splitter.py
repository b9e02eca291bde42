"""Cut a file that arrives in chunks into its lines, the objects of its JSON array, or its messages.

Of a file of hundreds of megabytes no more than one piece is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dragoman.errors import BadRequest, TooLarge
from dragoman.json_decoding import DECODE_ERRORS, decode_json

_BRACKET = re.compile(rb"[][{}]")
_BETWEEN = re.compile(rb"[\s,]*")
_MESSAGES = re.compile(rb'(?<!\\)"(?:messages"\s*:\s*\[|mapping"\s*:\s*\{)$')
# Before a value of an object, with blanks in place of strings.
_KEY = re.compile(rb'\s*,?\s*"\s*"\s*:\s*')

_KEY_SIZE = 200  # bytes before an array in which its key is looked for


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


def split_array(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield the objects of a JSON array in parts, each with whether it is the last one of its object.

    Raises BadRequest for an array of other things, or one that is cut off. The objects need not be valid
    JSON.
    """
    splitter = ArraySplitter()
    for chunk in chunks:
        yield from splitter.feed(chunk)
    splitter.end()


class StringMask:
    """Hides the strings of a JSON text that comes in chunks, so that brackets in them are not seen."""

    def __init__(self) -> None:
        self.in_string = False
        self._pending = b""  # a backslash at the end of a chunk

    def hide(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Return a chunk that ends in no escape, and the same with blanks in place of its strings."""
        chunk, self._pending = self._pending + chunk, b""
        hidden = chunk
        if b"\\" in chunk:
            if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
                chunk, self._pending = chunk[:-1], b"\\"
            hidden = chunk.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
        pieces = hidden.split(b'"')
        outside = [
            b" " * len(piece) if self.in_string ^ bool(index % 2) else piece
            for index, piece in enumerate(pieces)
        ]
        self.in_string ^= len(pieces) % 2 == 0
        return chunk, b'"'.join(outside)


class ArraySplitter:
    """Finds the objects of a JSON array by their brackets."""

    def __init__(self) -> None:
        self._depth = 0
        self._has_ended = False
        self._mask = StringMask()

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield the parts of objects in a chunk; see `split_array`."""
        chunk, outside = self._mask.hide(chunk)
        start = done = 0
        for bracket in _BRACKET.finditer(outside):
            at = bracket.start()
            if self._depth <= 1:
                self._check_between(outside[done:at], bracket[0])
                start = at
            self._depth += 1 if bracket[0] in b"{[" else -1
            done = at + 1
            if self._depth == 1 and bracket[0] == b"}":
                yield chunk[start:done], True
        if self._depth > 1:
            yield chunk[start:], False
        else:
            self._check_between(outside[done:], b"")

    def end(self) -> None:
        """Raise BadRequest when the array has not ended."""
        if not self._has_ended or self._mask.in_string:
            raise BadRequest("the file is cut off, or is not a JSON array of conversations")

    def _check_between(self, outside: bytes, bracket: bytes) -> None:
        """Check what is not in an object, and the bracket behind it."""
        allowed = b"" if self._has_ended else b"[" if self._depth == 0 else b"{]"
        is_allowed = not bracket or bracket in allowed
        if _BETWEEN.fullmatch(outside) is None or not is_allowed:
            raise BadRequest("the file is not a JSON array of conversations")
        self._has_ended = self._has_ended or bracket == b"]"


def split_messages(chunks: Iterable[bytes], *, max_size: int) -> Iterator[bytes]:
    """Yield the messages of a JSON object; see `MessageSplitter`. Raises BadRequest, TooLarge."""
    splitter = MessageSplitter(max_size=max_size)
    for chunk in chunks:
        for _, message in splitter.feed(chunk):
            yield message
    splitter.end()


def read_head(chunks: Iterable[bytes], *, max_size: int) -> bytes:
    """Return a JSON object without its messages; see `MessageSplitter`. Raises BadRequest, TooLarge."""
    splitter = MessageSplitter(max_size=max_size)
    for chunk in chunks:
        for _ in splitter.feed(chunk):
            pass
    splitter.end()
    return splitter.head


class MessageSplitter:
    """Finds the objects in the array `messages` of a JSON object, or in its object `mapping`.

    `head` is the object without them.
    """

    def __init__(self, *, max_size: int) -> None:
        self._max_size = max_size
        self._mask = StringMask()
        self._depth = 0
        self._is_inside = False  # the array or the mapping
        self._is_mapping = False
        self._has_messages = False
        self._head: list[bytes] = []
        self._head_size = 0
        self._last = b""  # bytes of the head, by which the array is recognized
        self._before: list[bytes] = []  # the next message, and the same without strings: its key
        self._before_outside = b""
        self._key = ""
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def head(self) -> bytes:
        """The object without its messages."""
        return b"".join(self._head)

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the messages that end in a chunk, each with its key in the mapping."""
        chunk, outside = self._mask.hide(chunk)
        done = 0
        for bracket in _BRACKET.finditer(outside):
            at, end = bracket.start(), bracket.end()
            if self._is_inside and self._depth == 2:
                self._add_before(chunk[done:at], outside[done:at])
                self._begin(bracket[0])
                done = at
            self._depth += 1 if bracket[0] in b"{[" else -1
            if self._is_inside and self._depth == 2:
                self._add(chunk[done:end])
                yield self._key, b"".join(self._parts)
                self._parts, self._size, done = [], 0, end
            elif self._depth == 2 and bracket[0] in b"{[":
                self._add_head(chunk[done:end])
                done = end
                self._enter(bracket[0])
            elif self._is_inside and self._depth == 1:
                self._is_inside = False
        if not self._is_inside:
            self._add_head(chunk[done:])
        elif self._depth == 2:
            self._add_before(chunk[done:], outside[done:])
        else:
            self._add(chunk[done:])

    def end(self) -> None:
        """Raise BadRequest when the object has not ended."""
        if self._depth or self._mask.in_string:
            raise BadRequest("the file is cut off, or is not a JSON object")

    def _enter(self, bracket: bytes) -> None:
        """Note that an array or an object begins; whether it has the messages, the key before it says."""
        if _MESSAGES.search(self._last) is None:
            return
        if self._has_messages:
            raise BadRequest("the file has two arrays of messages")
        self._is_inside = self._has_messages = True
        self._is_mapping = bracket == b"{"

    def _begin(self, bracket: bytes) -> None:
        """Check what stands before a message, or before the end of them all; keep its key."""
        raw, outside = b"".join(self._before), self._before_outside
        self._before, self._before_outside = [], b""
        is_end = bracket == (b"}" if self._is_mapping else b"]")
        pattern = _KEY if self._is_mapping and not is_end else _BETWEEN
        if pattern.fullmatch(outside) is None or not (is_end or bracket == b"{"):
            raise BadRequest("the messages of the file are not a JSON array of objects")
        if pattern is _KEY:
            self._key = _read_key(raw)

    def _add_before(self, part: bytes, outside: bytes) -> None:
        self._before.append(part)
        self._before_outside += outside
        if len(self._before_outside) > self._max_size:
            raise TooLarge(f"the file has more than {self._max_size} bytes between two messages")

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._max_size:
            raise TooLarge(f"a message of the file has more than {self._max_size} bytes")

    def _add_head(self, part: bytes) -> None:
        self._head.append(part)
        self._head_size += len(part)
        self._last = (self._last + part)[-_KEY_SIZE:]
        if self._head_size > self._max_size:
            raise TooLarge(f"the file has more than {self._max_size} bytes beside its messages")


def _read_key(raw: bytes) -> str:
    """Return the key before a value of an object. BadRequest."""
    try:
        key = decode_json(raw.strip(b" \t\r\n,").rstrip(b" \t\r\n:"))
    except DECODE_ERRORS as error:
        raise BadRequest(f"the key of a message is not valid JSON: {error}") from None
    return str(key)
