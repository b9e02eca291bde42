"""A tap on a relayed Messages answer. Source: wire notes on providers, §3 and §6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.wire.encoder import KEEP_ALIVE
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.openai.tap import invalid_frame_error, read_document
from dragoman.wire.provider_errors import find_error, provider_error
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame
from dragoman.wire.tap import AnswerSummary, RelayFrameReader, join_frames, unfinished_error

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EVENT_TYPES = frozenset(
    {
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    }
)
_USAGE_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class AnthropicTapDelta(msgspec.Struct, gc=False):
    """What is looked at in a delta."""

    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class AnthropicTapMessage(msgspec.Struct, gc=False):
    """What is looked at in the message that a stream begins with."""

    model: str | None = None
    usage: Any = None
    stop_reason: str | None = None


class AnthropicTapEvent(msgspec.Struct, gc=False):
    """What is looked at in an event."""

    type: str | None = None
    delta: AnthropicTapDelta | None = None
    message: AnthropicTapMessage | None = None
    usage: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(AnthropicTapEvent)


class AnthropicTap:
    """See `Tap`. `message_stop` goes on only behind a stop reason."""

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.done = False
        self.failure: ProviderError | None = None
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.text_length = 0
        self._frames = RelayFrameReader(limit=limit)
        self._counts: dict[str, Any] = {}
        self._started = False

    @property
    def usage(self) -> Usage | None:
        """What was counted last; the counts of the beginning where the end is silent.

        Before the end, what the beginning counted of the output says nothing of what came since.
        """
        if self.finish_reason is not None:
            return usage_from_counts(self._counts)
        return usage_from_counts(
            {name: value for name, value in self._counts.items() if name != "output_tokens"}
        )

    @property
    def generation_finished(self) -> bool:
        """See `Tap`."""
        return self.finish_reason is not None

    def feed(self, raw: bytes) -> bytes:
        """See `Tap`."""
        if self.failure is not None or self.done:
            return b""
        said = join_frames(self._inspect(self._frames.feed(raw)))
        self._check_frame_failure()
        return said or (KEEP_ALIVE if self._frames.saw_new_comments() else b"")

    def close(self) -> bytes:
        """See `Tap`."""
        said = b""
        if self.failure is None and not self.done:
            said = join_frames(self._inspect(self._frames.close()))
            self._check_frame_failure()
        if self.failure is None and not self.done:
            self.failure = unfinished_error(self._started)
        return said

    def _check_frame_failure(self) -> None:
        if self.failure is None:
            self.failure = self._frames.failure

    def _inspect(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        for at, frame in enumerate(frames):
            event = read_event(frame)
            if event is None:
                if not _is_ignorable(frame):
                    self.failure = invalid_frame_error(frame)
                    return frames[:at]
                continue
            if has_wrong_name(frame, event):
                frames = [*frames[:at], NamedFrame(frame, event.type or ""), *frames[at + 1 :]]
            if event.type == "content_block_delta" and event.delta is not None:
                delta = event.delta
                self.text_length += len(delta.text or delta.thinking or delta.partial_json or "")
            elif not self._record(event, frame):
                return frames[:at]
            elif self.done:
                return frames[: at + 1]
        return frames

    def _record(self, event: AnthropicTapEvent, frame: bytes) -> bool:
        """Take an event in; False when it is an error, or an end that is none."""
        kind = event.type
        if event.error or kind == "error" or (isinstance(frame, NamedFrame) and frame.event == "error"):
            self.failure = provider_error(event.error or frame_error(frame))
            return False
        if event.message is not None:
            self._started = True
            self.model = event.message.model
            self._record_stop_reason(event.message.stop_reason)
            self._record_usage(event.message.usage)
        if kind == "message_delta":
            self._record_stop_reason(event.delta.stop_reason if event.delta else None)
            self._record_usage(event.usage)
        elif kind == "message_stop":
            if self.finish_reason is None:
                self.failure = unfinished_error(self._started)
                return False
            self.done = True
        return True

    def _record_stop_reason(self, reason: str | None) -> None:
        self.finish_reason = reason or self.finish_reason

    def _record_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts |= {name: value for name, value in usage.items() if value is not None}


def read_event(frame: bytes) -> AnthropicTapEvent | None:
    """The event in a frame; None when it is no JSON object."""
    try:
        return _decoder.decode(frame)
    except _DECODE_ERRORS:
        return lenient_event(frame)


def lenient_event(frame: bytes) -> AnthropicTapEvent | None:
    """The same for fields of other types than they should have."""
    try:
        value = chunks.parse_lenient_json(frame)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    kind, delta, message = value.get("type"), value.get("delta"), value.get("message")
    delta = delta if isinstance(delta, dict) else {}
    message = message if isinstance(message, dict) else None
    return AnthropicTapEvent(
        type=kind if isinstance(kind, str) else None,
        delta=AnthropicTapDelta(
            text=chunks.as_text(delta.get("text")),
            thinking=chunks.as_text(delta.get("thinking")),
            partial_json=chunks.as_text(delta.get("partial_json")),
            stop_reason=chunks.as_text(delta.get("stop_reason")),
        ),
        message=None
        if message is None
        else AnthropicTapMessage(
            chunks.as_text(message.get("model")),
            message.get("usage"),
            chunks.as_text(message.get("stop_reason")),
        ),
        usage=value.get("usage"),
        error=value.get("error") or (find_error(value) if kind is None else None),
    )


def has_wrong_name(frame: bytes, event: AnthropicTapEvent) -> bool:
    """Whether an event has no name, or another one than its type: clients, which go by it, lose it."""
    return (
        event.type in _EVENT_TYPES and (frame.event if isinstance(frame, NamedFrame) else None) != event.type
    )


def _is_ignorable(frame: bytes) -> bool:
    """Whether a frame that is no JSON may be passed over: `[DONE]` of some gateways, or a heartbeat."""
    if isinstance(frame, NamedFrame):
        return frame.event == "ping" or frame.strip() in (b"", b"[DONE]")
    return frame.strip() in (b"", b"[DONE]")


def frame_error(frame: bytes) -> Any:
    """The error in a frame."""
    try:
        value = chunks.parse_lenient_json(frame)
    except ValueError:
        return frame.decode(errors="replace")
    return find_error(value) or value


def usage_from_counts(usage: Any) -> Usage | None:
    """A Messages `usage` in the hub's words: the prompt is the sum of what was cached and what was not."""
    if not isinstance(usage, dict):
        return None
    read = {name: value for name in _USAGE_FIELDS if type(value := usage.get(name)) is int and value >= 0}
    if not any(read.values()):
        return None
    parts = [read[name] for name in _USAGE_FIELDS if name != "output_tokens" and name in read]
    details = usage.get("output_tokens_details")
    thought = details.get("thinking_tokens") if isinstance(details, dict) else None
    prompt = sum(parts) if "input_tokens" in read else None
    output = read.get("output_tokens")
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=prompt + output if prompt is not None and output is not None else None,
        reasoning_tokens=thought if type(thought) is int else None,
        cached_input_tokens=read.get("cache_read_input_tokens"),
        cache_write_tokens=read.get("cache_creation_input_tokens"),
    )


def read_message(raw: bytes) -> AnswerSummary:
    """What a whole Message says of itself; ProviderError when it is none, or has no end."""
    value = read_document(raw, "type")
    if value.get("type") == "error" or not isinstance(value.get("content"), list):
        raise provider_error(find_error(value) or "the answer has no content")
    model, reason = value.get("model"), value.get("stop_reason")
    if not isinstance(reason, str) or not reason:
        raise unfinished_error(True)
    return AnswerSummary(
        usage_from_counts(value.get("usage")), model if isinstance(model, str) else None, reason
    )
