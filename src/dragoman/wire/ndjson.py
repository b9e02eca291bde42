"""Newline-delimited JSON: split socket reads into blocks of complete lines."""

from __future__ import annotations

from dragoman.errors import FrameTooLong
from dragoman.wire.sse import MAX_FRAME_BYTES

BOM = b"\xef\xbb\xbf"  # byte order mark


class NdjsonSplitter:
    """Splits a byte stream after line ends (LF or CRLF), however the bytes are split across reads.

    Removes the stream's byte order mark. Lines before one of more than `limit` bytes are returned first; then
    `failure` is set.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.failure: FrameTooLong | None = None
        self.pending_size = 0
        """Bytes of the incomplete line that have arrived."""
        self._limit = limit
        self._pending: list[bytes] = []  # reads of the incomplete line
        self._started = False

    def feed(self, raw: bytes) -> bytes:
        """Return the lines that this read completes, each ending in LF."""
        if not self._started:
            raw = self._strip_bom(raw)
        end = raw.rfind(b"\n") + 1
        if not end:
            self._buffer(raw)
            return b""
        block = b"".join((*self._pending, raw[:end]))
        self._clear_buffer()
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if len(block) > self._limit:
            block = self._lines_within_limit(block)
        self._buffer(raw[end:])
        return block

    def close(self) -> bytes:
        """Return the line that the end of the stream completes, if any."""
        last = b"".join(self._pending).removesuffix(b"\r")
        self._clear_buffer()
        return self._lines_within_limit(last)

    def _strip_bom(self, raw: bytes) -> bytes:
        raw = b"".join((*self._pending, raw))
        self._clear_buffer()
        if len(raw) < len(BOM) and BOM.startswith(raw):
            self._pending = [raw] if raw else []
            return b""
        self._started = True
        return raw.removeprefix(BOM)

    def _buffer(self, raw: bytes) -> None:
        if not raw or self.failure is not None:
            return
        self._pending.append(raw)
        self.pending_size += len(raw)
        if self.pending_size > self._limit + 1:  # a trailing CR does not count
            self._fail_too_long()

    def _clear_buffer(self) -> None:
        self._pending = []
        self.pending_size = 0

    def _lines_within_limit(self, block: bytes) -> bytes:
        """Return the lines before the first one that is too long."""
        start = 0
        for line in block.split(b"\n"):
            if len(line) > self._limit:
                self._fail_too_long()
                return block[:start]
            start += len(line) + 1
        return block

    def _fail_too_long(self) -> None:
        self._clear_buffer()
        self.failure = FrameTooLong(
            f"a line of the stream is longer than {self._limit} bytes",
            hint="the server does not send an event stream, or the limit is too low",
        )
