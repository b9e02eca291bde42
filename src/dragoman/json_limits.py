"""Limits on the shape of a JSON body, checked while it arrives.

A decoder holds the event loop for as long as it decodes, and what comes after it takes time for each value.
So the values and the depth of a body are counted before it is decoded, chunk by chunk: each chunk takes a few
milliseconds at most, and a body with too many values is refused before all of it has arrived.
"""

from __future__ import annotations

from itertools import accumulate

from dragoman.errors import BadRequest, TooLarge

MAX_VALUES = 100_000
MAX_DEPTH = 200  # encoders add levels of their own to what the decoder just managed
SLICE = 65_536  # bytes of a body that are counted at once
SMALL = 16_384  # bytes of a body that cannot have many values
# As numbers: `count` first takes bytes for a number, and fails with an exception.
BRACE, BRACKET = b"{["
COUNTED = b",:{["
_STEPS = bytes(1 if byte in b"{[" else 255 if byte in b"}]" else 0 for byte in range(256))
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")


class JsonShape:
    """Counts the values and names, and the depth, of a JSON text in chunks. It need not be valid."""

    def __init__(self, *, max_values: int = MAX_VALUES, max_depth: int = MAX_DEPTH) -> None:
        self.values = 1
        self.depth = 0
        self.deepest = 0
        self._max_values = max_values
        self._max_depth = max_depth
        self._in_string = False
        self._pending = b""  # a backslash at the end of a chunk

    def feed(self, chunk: bytes) -> None:
        """Count a chunk. TooLarge for too many values, BadRequest for too many levels."""
        outside = self._outside_strings(chunk)
        self.values += sum(map(outside.count, COUNTED))
        if self.values > self._max_values:
            raise TooLarge(
                f"the request body has more than {self._max_values} JSON values and names",
                hint="send less at once, or raise limits.values in dragoman.yaml",
            )
        brackets = outside.translate(_STEPS, _NO_BRACKETS)
        if brackets:
            depths = list(accumulate(memoryview(brackets).cast("b"), initial=self.depth))
            self.depth = depths[-1]
            peak = max(depths)
            self.deepest = max(self.deepest, peak)
            if self.deepest > self._max_depth:
                raise BadRequest(f"the request body is nested deeper than {self._max_depth} levels")

    def feed_all(self, body: bytes) -> None:
        """Count a text that is there as a whole, in short calls: each of them holds the interpreter."""
        for start in range(0, len(body), SLICE):
            self.feed(body[start : start + SLICE])

    def _outside_strings(self, chunk: bytes) -> bytes:
        """Return what is not in a string."""
        if self._pending:
            chunk, self._pending = self._pending + chunk, b""
        if b"\\" in chunk:
            chunk = chunk.replace(b"\\\\", b"")
            if chunk.endswith(b"\\"):
                chunk, self._pending = chunk[:-1], b"\\"
            chunk = chunk.replace(b'\\"', b"")
        pieces = chunk.split(b'"')
        outside = pieces[1::2] if self._in_string else pieces[::2]
        self._in_string ^= len(pieces) % 2 == 0
        return b"".join(outside)


def may_exceed(body: bytes) -> bool:
    """Return whether a body that has arrived in one piece has to be counted."""
    return len(body) > SMALL or body.count(BRACE) + body.count(BRACKET) > MAX_DEPTH


def check_shape(body: bytes, *, max_values: int = MAX_VALUES) -> None:
    """Check a JSON text that is there as a whole. TooLarge, BadRequest."""
    if may_exceed(body):
        JsonShape(max_values=max_values).feed_all(body)
