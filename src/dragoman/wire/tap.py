"""A tap on a relayed answer: whole frames go on unchanged; what they say of tokens and the end is noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Usage
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser


class AnswerTap(Protocol):
    """Reads a relayed stream. `feed` every read, then `close`.

    What comes before a failure goes on; `failure` is set then, and nothing goes on any more. `done` is true
    once the answer is complete, with its terminal element. `text_length` counts the characters that the
    model wrote.
    """

    done: bool
    failure: ProviderError | None
    model: str | None
    finish_reason: str | None
    text_length: int

    @property
    def usage(self) -> Usage | None:
        """What the provider has counted so far."""

    @property
    def generation_finished(self) -> bool:
        """True when the model has finished, and only its accounts are to come."""

    def feed(self, raw: bytes) -> bytes:
        """What of this read may go on to the client."""

    def close(self) -> bytes:
        """What else may, now that the body is over; `failure` is set if the answer is not complete."""


class AnswerSummary(msgspec.Struct, frozen=True):
    """What a relayed answer that came as one document says of itself."""

    usage: Usage | None
    model: str | None
    finish_reason: str | None = None


class RelayFrameReader:
    """Cuts a relayed body into frames, and joins those that may go on."""

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.failure: ProviderError | None = None
        self._splitter = SSEParser(limit=limit)
        self._seen_comments = 0

    def feed(self, raw: bytes) -> Sequence[bytes]:
        """The frames that this read completes."""
        try:
            return self._splitter.feed(raw)
        except FrameTooLong as error:
            return self._fail(error)

    def close(self) -> Sequence[bytes]:
        """The frame that the end of the body completes."""
        try:
            return self._splitter.close()
        except FrameTooLong as error:
            return self._fail(error)

    def saw_new_comments(self) -> bool:
        """Whether the server has sent comments since the last look: life, but no progress."""
        before, self._seen_comments = self._seen_comments, self._splitter.comment_count
        return self._seen_comments > before

    def _fail(self, error: FrameTooLong) -> Sequence[bytes]:
        self.failure = ProviderError(error.message, category="api_error", hint=error.hint)
        return ()


def join_frames(frames: Sequence[bytes]) -> bytes:
    """The frames as they stand in a stream; those with names keep them."""
    if not frames:
        return b""
    joined = b"\n\ndata: ".join(frames)
    if NamedFrame in set(map(type, frames)) or joined.count(b"\n") != 2 * len(frames) - 2:
        return b"".join(map(encode_relayed_frame, frames))
    return b"data: %s\n\n" % joined


def encode_relayed_frame(frame: bytes) -> bytes:
    """One frame; line breaks in it become several data lines."""
    data = frame.replace(b"\n", b"\ndata: ") if b"\n" in frame else frame
    if isinstance(frame, NamedFrame):
        return b"event: %s\ndata: %s\n\n" % (frame.event.encode(), data)
    return b"data: %s\n\n" % data


def preview(raw: bytes) -> str:
    """The beginning of what was sent, for an error."""
    return repr(raw[:80].decode(errors="replace"))


def invalid_json_error(frame: bytes) -> ProviderError:
    """The error for a frame that is no JSON."""
    return ProviderError(
        f"the provider sent what is no JSON: {preview(frame)}", category="api_error", transient=True
    )


def unfinished_error(started: bool, *, saw_done: bool = False) -> ProviderError:
    """The error for a stream that ends without its terminal element."""
    what = "ended without a finish reason" if started else "is empty"
    return ProviderError(
        f"the provider's answer {what}{' although it said [DONE]' if saw_done else ''}",
        category="network",
        transient=True,
        hint="the connection was cut, or the server hides its errors; look into its log",
    )
