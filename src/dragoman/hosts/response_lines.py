"""Lines of a streamed response of another host."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.errors import WireError

MAX_LINE = 256 * 1024 * 1024  # bytes; the longest lines contain a whole message or a tool's output


class ResponseLines:
    """Splits a response into lines, however its bytes are cut, in time linear to their number."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the lines that these bytes complete, without those that are empty. Raises WireError."""
        self._rest += data
        if len(self._rest) > self._limit:
            raise WireError(f"a line of another host has more than {self._limit} bytes")
        if b"\n" not in data:
            return ()
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [line for line in lines if line]
