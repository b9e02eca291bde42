"""Unpacking what arrives packed, piece by piece, and never beyond a limit."""

from __future__ import annotations

import zlib

from dragoman.errors import CallError

GZIP = 31  # zlib's word for a gzip header and a window of 32 KB


class Inflate:
    """A body as it comes in; `limit` is in bytes, unpacked."""

    def __init__(self, encoding: str, *, limit: int) -> None:
        self._packed = encoding.strip().lower() in ("gzip", "x-gzip")
        if not self._packed and encoding.strip().lower() not in ("", "identity"):
            raise CallError(f"the answer is packed as {encoding[:40]!r}, which was not asked for")
        self._limit = limit
        self._body = bytearray()
        self._stream = zlib.decompressobj(GZIP)
        self._begun = False  # within a member of a gzip stream

    def feed(self, data: bytes) -> bool:
        """Take a piece; False when there is more in it than the limit allows."""
        if not self._packed:
            self._body += data
        while self._packed and data and len(self._body) <= self._limit:
            data = self._unpack(data)
        return len(self._body) <= self._limit

    def end(self) -> bytes:
        """The whole body. CallError when its end is missing."""
        if self._begun:
            raise CallError("the answer ends in the middle of what it has packed")
        return bytes(self._body)

    def _unpack(self, data: bytes) -> bytes:
        """Unpack up to the limit; gives what is left to unpack."""
        self._begun = True
        try:
            self._body += self._stream.decompress(data, self._limit - len(self._body) + 1)
        except zlib.error:
            raise CallError("the answer says that it is gzip, and is not") from None
        if not self._stream.eof:
            return self._stream.unconsumed_tail
        left = self._stream.unused_data
        self._stream, self._begun = zlib.decompressobj(GZIP), False
        return left
