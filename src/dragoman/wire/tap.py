"""Read usage and the finish reason from an answer that is relayed unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Usage
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser, encode_frame
from dragoman.wire.tool_calls import sequential_ids


class AnswerTap(Protocol):
    """Reads a relayed stream. Call `feed` with every read, then `close`.

    Bytes before a failure are passed on; then `failure` is set and nothing more is passed on. `done` is true
    once the answer is complete, with its terminal element. `text_length` counts the characters that the model
    wrote.
    """

    done: bool
    failure: ProviderError | None
    model: str | None
    finish_reason: str | None
    text_length: int

    @property
    def usage(self) -> Usage | None:
        """The usage that the provider has reported so far."""

    @property
    def generation_finished(self) -> bool:
        """True when the model has finished and only the usage may still follow."""

    @property
    def pending_size(self) -> int:
        """Bytes of the frame that the next read may complete: it is decoded then."""

    def feed(self, raw: bytes) -> bytes:
        """Return the part of this read that may be sent to the client."""

    def close(self) -> bytes:
        """Return the rest at the end of the body; `failure` is set if the answer is incomplete."""


class AnswerSummary(msgspec.Struct, frozen=True):
    """Usage, model and finish reason of a relayed answer that is one document.

    `repaired` is the document to pass on instead, if the client could not read the provider's.
    """

    usage: Usage | None
    model: str | None
    finish_reason: str | None = None
    repaired: bytes | None = None


class AnswerDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a relayed answer that its server leaves out. `created` is in seconds since the epoch;
    `new_id` makes the ids of tool calls.
    """

    id: str = "chatcmpl-unnamed"
    created: int = 0
    model: str = ""
    new_id: Callable[[], str] = msgspec.field(default_factory=sequential_ids)


class RelayFrameReader:
    """Splits a relayed body into frames."""

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.failure: ProviderError | None = None
        self._parser = SSEParser(limit=limit)
        self._seen_comments = 0

    @property
    def pending_size(self) -> int:
        """Bytes of the incomplete frame that have arrived."""
        return self._parser.pending_size

    def feed(self, raw: bytes) -> Sequence[bytes]:
        """Return the frames that this read completes."""
        try:
            return self._parser.feed(raw)
        except FrameTooLong as error:
            return self._fail(error)

    def close(self) -> Sequence[bytes]:
        """Return the frame that the end of the body completes."""
        try:
            return self._parser.close()
        except FrameTooLong as error:
            return self._fail(error)

    def saw_new_comments(self) -> bool:
        """Whether the server has sent comments since the last call: a sign of life, but no progress."""
        before, self._seen_comments = self._seen_comments, self._parser.comment_count
        return self._seen_comments > before

    def _fail(self, error: FrameTooLong) -> Sequence[bytes]:
        self.failure = ProviderError(error.message, category="api_error", hint=error.hint)
        return ()


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Encode frames for the stream; named frames keep their name."""
    if not frames:
        return b""
    joined = b"\n\ndata: ".join(frames)
    if NamedFrame in set(map(type, frames)) or joined.count(b"\n") != 2 * len(frames) - 2:
        return b"".join(map(encode_frame, frames))
    return b"data: %s\n\n" % joined
