"""Lines: whole socket reads in, blocks of complete lines out, however the bytes were cut; for NDJSON."""

from __future__ import annotations

from dragoman.errors import FrameTooLong
from dragoman.wire.sse import MAX_FRAME_BYTES

BOM = b"\xef\xbb\xbf"  # the byte order mark, which the stream may begin with


class NdjsonSplitter:
    """Cuts a byte stream behind line ends (LF or CRLF) and drops the byte order mark of the stream.

    What comes before a line of more than `limit` bytes is given out first: `failure` is set then.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.failure: FrameTooLong | None = None
        self._limit = limit
        self._pending: list[bytes] = []  # the unfinished line, as it was read
        self._pending_size = 0
        self._started = False

    def feed(self, raw: bytes) -> bytes:
        """The lines that this read completes, each with LF at its end."""
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
        """The line that the end of the stream completes, if any."""
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
        self._pending_size += len(raw)
        if self._pending_size > self._limit + 1:  # a CR at its end is not counted
            self._fail_too_long()

    def _clear_buffer(self) -> None:
        self._pending = []
        self._pending_size = 0

    def _lines_within_limit(self, block: bytes) -> bytes:
        """The lines before the first one that is too long."""
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
            hint="the server sends something else than short events, or the limit is too low",
        )
