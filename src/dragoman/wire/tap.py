"""Read usage and the finish reason from an answer that is relayed unchanged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Usage
from dragoman.wire.encoder import KEEP_ALIVE
from dragoman.wire.provider_errors import too_long_error
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser, encode_frame
from dragoman.wire.tool_calls import sequential_ids


class AnswerSummary(msgspec.Struct, frozen=True):
    """Usage, model and finish reason of a relayed answer that is one document.

    `repaired` is the document to pass on instead, if the client could not read the provider's.
    """

    usage: Usage | None
    model: str | None
    finish_reason: str | None = None
    repaired: bytes | None = None


class AnswerDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values for fields of a relayed answer that its server leaves out.

    `created` is in unix seconds; `new_id` creates the ids of tool calls.
    """

    id: str = "chatcmpl-unnamed"
    created: int = 0
    model: str = ""
    new_id: Callable[[], str] = msgspec.field(default_factory=sequential_ids)


class AnswerTap(ABC):
    """Reads a relayed stream. Call `feed` with every read, then `close`.

    Bytes before a failure are passed on; then `failure` is set and nothing more is passed on. `done` is true
    once the answer is complete, with its terminal element. `text_length` counts the characters that the model
    wrote.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.done = False
        self.failure: ProviderError | None = None
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.text_length = 0
        self._started = False
        self._parser = SSEParser(limit=limit)
        self._seen_comments = 0

    @property
    @abstractmethod
    def usage(self) -> Usage | None:
        """The usage that the provider has reported so far."""

    @property
    def generation_finished(self) -> bool:
        """True when the model has finished and only the usage may still follow."""
        return self.finish_reason is not None

    @property
    def pending_size(self) -> int:
        """Bytes of the incomplete frame, which is decoded when it is complete."""
        return self._parser.pending_size

    def _is_over(self) -> bool:
        return self.done or self.failure is not None

    def feed(self, raw: bytes) -> bytes:
        """Return the part of this read that may be sent to the client; a comment if it had only comments."""
        if self.done or self.failure is not None:
            return b""
        try:
            frames = self._parser.feed(raw)
        except FrameTooLong as error:
            frames = self._fail_frame(error)
        passed = self._forward(frames) if frames else b""
        if passed or self._parser.comment_count == self._seen_comments:
            return passed
        self._seen_comments = self._parser.comment_count
        return KEEP_ALIVE

    def close(self) -> bytes:
        """Return the rest at the end of the body; `failure` is set if the answer is incomplete."""
        if self._is_over():
            return b""
        try:
            frames = self._parser.close()
        except FrameTooLong as error:
            frames = self._fail_frame(error)
        passed = self._forward(frames, last=True)
        return passed if self._is_over() else passed + self._end()

    @abstractmethod
    def _forward(self, frames: Sequence[bytes], *, last: bool = False) -> bytes:
        """Read frames and encode those that may be passed on. The last one of a stream may be truncated."""

    @abstractmethod
    def _end(self) -> bytes:
        """Set `done` or `failure` at the end of the body; return bytes to add for the client."""

    def _fail_frame(self, error: FrameTooLong) -> list[bytes]:
        """Set `failure` for a frame that is too long; return the frames to read, none."""
        self.failure = too_long_error(error)
        return []


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Encode frames for the stream; named frames keep their name."""
    if not frames:
        return b""
    joined = b"\n\ndata: ".join(frames)
    if NamedFrame in set(map(type, frames)) or joined.count(b"\n") != 2 * len(frames) - 2:
        return b"".join(map(encode_frame, frames))
    return b"data: %s\n\n" % joined
