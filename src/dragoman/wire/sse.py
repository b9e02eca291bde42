"""Server-sent events: parse socket reads into frames, and encode frames.

Parsing follows WHATWG (LF, CRLF or lone CR; one space after the colon is removed; the data lines of a frame
are joined by LF), with three additions for real servers: a frame at the end of the stream counts without its
blank line, a bare `error: {...}` field is a frame, and so is a raw `{"error"...` line.
"""

from __future__ import annotations

import re

from dragoman.errors import FrameTooLong

MAX_FRAME_BYTES = 16_000_000  # images have some megabytes
MAX_EMPTY_BYTES = 16_000_000  # of consecutive comments and frames without data
DONE_FRAME = b"data: [DONE]\n\n"

_BOM = b"\xef\xbb\xbf"
_DATA_PREFIX = b"data: "
_DATA_SEPARATOR = b"\n\n" + _DATA_PREFIX
# Comments and blank lines where a frame begins. Possessive, so that millions of lines need no backtracking.
_SKIPPED = re.compile(rb"(?:(?<=\n\n)|\A)(?:(?::[^\n]*+)?\n)++")


class NamedFrame(bytes):
    """The data of a frame that has an `event:` name, or of a bare `error` field."""

    event: str

    def __new__(cls, data: bytes, event: str) -> NamedFrame:
        self = super().__new__(cls, data)
        self.event = event
        return self

    def __repr__(self) -> str:
        return f"NamedFrame({bytes(self)!r}, {self.event!r})"


def encode_frame(payload: bytes) -> bytes:
    """Encode the payload as one frame, with its name if it is a `NamedFrame`.

    A line break in the payload starts another data line.
    """
    name = b"event: " + payload.event.encode() + b"\n" if isinstance(payload, NamedFrame) else b""
    if b"\n" in payload or b"\r" in payload:
        payload = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return name + b"data: " + payload + b"\n\n"


def encode_comment(text: str) -> bytes:
    """Encode a comment, which clients ignore; it keeps an idle connection open."""
    return b": " + " ".join(text.splitlines()).encode() + b"\n\n"


class SSEParser:
    """Parses a byte stream into frames, however the bytes are split across reads.

    A frame is the bytes of its data; one with an event name is a `NamedFrame`. `comment_count` counts comment
    lines, which show only that the server is alive. Raises FrameTooLong for a frame of more than `limit`
    bytes, also before its end has arrived, and for `MAX_EMPTY_BYTES` without a frame that has data.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.comment_count = 0
        self.pending_size = 0
        """Bytes of the incomplete frame that have arrived."""
        self._limit = limit
        self._empty_size = 0
        self._pending: list[bytes] = []  # reads of the incomplete frame
        self._started = False
        self._after_cr = False

    def feed(self, raw: bytes) -> list[bytes]:
        """Return the frames that this read completes."""
        if (  # the fast path: a read of whole frames with one data line each
            self._started
            and raw.startswith(_DATA_PREFIX)
            and raw.endswith(b"\n\n")
            and b"\r" not in raw
            and not (self._pending or self._after_cr)
            and len(raw) <= self._limit
        ):
            frames_data = raw[len(_DATA_PREFIX) : -2].split(_DATA_SEPARATOR)
            if raw.count(b"\n") == 2 * len(frames_data):
                return frames_data
        raw = self._normalise(raw)
        if not raw:
            return []
        end = raw.rfind(b"\n\n")
        pending = self._pending
        if pending:
            straddles = raw.startswith(b"\n") and pending[-1].endswith(b"\n")
            if end < 0 and not straddles:
                return self._buffer(raw)
            pending.append(raw)
            raw = b"".join(pending)
            self._clear_buffer()
            end = raw.rfind(b"\n\n")
        if end < 0:
            return self._buffer(raw)
        if end + 2 < len(raw):
            self._buffer(raw[end + 2 :])
        return self._split_frames(raw[:end])

    def close(self) -> list[bytes]:
        """Return the frame that the end of the stream completes, if any."""
        raw = b"".join(self._pending)
        self._clear_buffer()
        return self._split_frames(raw.rstrip(b"\n")) if raw else []

    def _normalise(self, raw: bytes) -> bytes:
        """Convert line ends to LF and remove the stream's byte order mark."""
        if self._after_cr and raw:
            raw = raw.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in raw:
            self._after_cr = raw.endswith(b"\r")
            raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return raw if self._started else self._strip_bom(raw)

    def _strip_bom(self, raw: bytes) -> bytes:
        raw = b"".join(self._pending) + raw
        self._clear_buffer()
        if len(raw) < len(_BOM) and _BOM.startswith(raw):
            self._pending = [raw] if raw else []
            return b""
        self._started = True
        return raw.removeprefix(_BOM)

    def _buffer(self, raw: bytes) -> list[bytes]:
        self.pending_size += len(raw)
        if self.pending_size > self._limit + 1:  # the line end of the last line does not count
            self._raise_too_long()
        self._pending.append(raw)
        return []

    def _clear_buffer(self) -> None:
        self._pending = []
        self.pending_size = 0

    def _raise_too_long(self) -> None:
        self._clear_buffer()
        raise FrameTooLong(
            f"a frame of the event stream is longer than {self._limit} bytes",
            hint="the server does not send an event stream, or the limit is too low",
        )

    def _split_frames(self, raw: bytes) -> list[bytes]:
        """Return the frames in bytes that end where a frame ends."""
        if raw.startswith(_DATA_PREFIX) and len(raw) <= self._limit:
            frames_data = raw.split(_DATA_SEPARATOR)
            if raw.count(b"\n") == 2 * len(frames_data) - 2:  # the fast path: one data line per frame
                frames_data[0] = frames_data[0][len(_DATA_PREFIX) :]
                return frames_data
        frames: list[bytes] = []
        size = len(raw)
        for text in self._skip_comments(raw).split(b"\n\n"):
            if len(text) > self._limit:
                self._raise_too_long()
            self._parse_frame(text, frames)
        self._empty_size = 0 if any(frames) else self._empty_size + size
        if self._empty_size > MAX_EMPTY_BYTES:
            raise FrameTooLong(
                f"{MAX_EMPTY_BYTES} bytes of the event stream have no data",
                hint="the server sends nothing but comments",
            )
        return frames

    def _skip_comments(self, raw: bytes) -> bytes:
        """Count all comments; return the bytes without those between frames: there may be millions."""
        self.comment_count += raw.count(b"\n:") + raw.startswith(b":")
        has_many = raw.startswith((b":", b"\n")) or b"\n\n:" in raw or b"\n\n\n" in raw
        return _SKIPPED.sub(b"", raw) if has_many else raw

    def _parse_frame(self, text: bytes, frames: list[bytes]) -> None:
        data: list[bytes] = []
        event: bytes | None = None
        for line in text.split(b"\n"):
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif name == b"event":
                event = value.removeprefix(b" ")
            elif _is_error_field(name):
                frames.append(NamedFrame(value.strip() if name == b"error" else line, "error"))
        joined = b"\n".join(data)
        if event and (data or event == b"error"):
            frames.append(NamedFrame(joined, event.decode(errors="replace")))
        elif data:
            frames.append(joined)


def _is_error_field(name: bytes) -> bool:
    return name == b"error" or name.replace(b" ", b"") == b'{"error"'
