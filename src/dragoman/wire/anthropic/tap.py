"""Read usage and the finish from a relayed Messages answer. Source: wire notes on providers, §3 and §6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.events import Usage
from dragoman.wire.anthropic.stream_repair import EventRepair, encode_event, own_id
from dragoman.wire.anthropic.usage import read_usage
from dragoman.wire.json_codec import as_text, parse_lenient_json
from dragoman.wire.openai.document_tap import read_document
from dragoman.wire.openai.tap import invalid_frame_error
from dragoman.wire.provider_errors import (
    find_error,
    incomplete_answer_error,
    provider_error,
    restarted_answer_error,
)
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, encode_frame
from dragoman.wire.tap import AnswerDefaults, AnswerSummary, AnswerTap, join_frames
from dragoman.wire.tool_calls import CallIds

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


class AnthropicTapDelta(msgspec.Struct, gc=False):
    """The fields of a delta that are read."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class AnthropicTapMessage(msgspec.Struct, gc=False):
    """The fields of the message in `message_start` that are read."""

    model: str | None = None
    usage: Any = None
    stop_reason: str | None = None
    id: Any = None


class AnthropicTapEvent(msgspec.Struct, gc=False):
    """The fields of an event that are read."""

    type: str | None = None
    index: int | None = None
    delta: AnthropicTapDelta | None = None
    message: AnthropicTapMessage | None = None
    usage: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(AnthropicTapEvent)


class AnthropicTap(AnswerTap):
    """See `AnswerTap`. `message_stop` is passed on only after a stop reason."""

    def __init__(self, *, defaults: AnswerDefaults | None = None, limit: int = MAX_FRAME_BYTES) -> None:
        super().__init__(limit=limit)
        self._counts: dict[str, Any] = {}
        self._repair = EventRepair((defaults or AnswerDefaults()).new_id)
        self._id: Any = None

    @property
    def usage(self) -> Usage | None:
        """The counts of `message_delta`, else those of `message_start`.

        Before the finish, the output count of `message_start` is ignored: it does not cover what followed.
        """
        if self.finish_reason is not None:
            return read_usage(self._counts)
        return read_usage({name: value for name, value in self._counts.items() if name != "output_tokens"})

    def _forward(self, frames: Sequence[bytes], *, last: bool = False) -> bytes:
        return join_frames(self._inspect(frames))

    def _end(self) -> bytes:
        if self.finish_reason is None:
            self.failure = incomplete_answer_error(started=self._started)
            return b""
        self.done = True
        return encode_frame(NamedFrame(b'{"type":"message_stop"}', "message_stop"))  # the SDKs wait for it

    def _inspect(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Return the frames to pass on, up to a failure."""
        passed_frames: list[bytes] = []
        for received in without_done(frames):
            event = read_event(received)
            if event is None:
                if not _is_ignorable(received):
                    self.failure = invalid_frame_error(received)
                    break
                passed_frames += [received] if is_ping(received) else []
                continue
            frame = NamedFrame(received, event.type or "") if has_wrong_name(received, event) else received
            if self._count_delta(event):
                passed_frames.append(frame)
                continue
            if not self._record(event, frame):
                break
            passed_frames += self._repair_frame(event, frame)
            if self.done:
                break
        return passed_frames

    def _count_delta(self, event: AnthropicTapEvent) -> bool:
        """Count the text of a delta; return whether it can be passed on as it is."""
        delta = event.delta
        if delta is None or event.type != "content_block_delta":
            return False
        text = delta.text or delta.thinking or delta.partial_json
        if not text:
            return False
        self.text_length += len(text)
        return delta.type is not None and event.index is not None and event.index == self._repair.open_index

    def _repair_frame(self, event: AnthropicTapEvent, frame: bytes) -> Sequence[bytes]:
        """Return the frames to pass on instead of one: the same if the SDKs can read it."""
        if event.type not in _EVENT_TYPES:
            return (frame,)
        value = parse_event(frame)
        repaired = self._repair.repair(value)
        if len(repaired) == 1 and repaired[0] is value:
            return (frame,)
        return [NamedFrame(encode_event(each), each["type"]) for each in repaired]

    def _record(self, event: AnthropicTapEvent, frame: bytes) -> bool:
        """Record an event; False if it is an error, or an end without a stop reason."""
        event_type = event.type
        if event.error or event_type == "error" or (isinstance(frame, NamedFrame) and frame.event == "error"):
            self.failure = provider_error(event.error or frame_error(frame))
            return False
        if event.message is not None:
            if self._repair.has_blocks and event.message.id != self._id:
                self.failure = restarted_answer_error()
                return False
            self._id = event.message.id
            self._started = True
            self.model = event.message.model or None
            self._record_stop_reason(event.message.stop_reason)
            self._record_usage(event.message.usage)
        if event_type == "message_delta":
            self._record_stop_reason(event.delta.stop_reason if event.delta else None)
            self._record_usage(event.usage)
        elif event_type == "message_stop":
            if self.finish_reason is None:
                self.failure = incomplete_answer_error(started=self._started)
                return False
            self.done = True
        return True

    def _record_stop_reason(self, reason: str | None) -> None:
        self.finish_reason = reason or self.finish_reason

    def _record_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts |= {name: value for name, value in usage.items() if value is not None}


def parse_event(frame: bytes) -> dict[str, Any]:
    """Return the object in a frame that `read_event` could read."""
    try:
        value = msgspec.json.decode(frame)
    except _DECODE_ERRORS:
        value = parse_lenient_json(frame, keeps_halves=True)
    return value if isinstance(value, dict) else {}


def read_event(frame: bytes) -> AnthropicTapEvent | None:
    """Return the event in a frame; None if it is not a JSON object."""
    try:
        return _decoder.decode(frame)
    except _DECODE_ERRORS:
        return lenient_event(frame)


def lenient_event(frame: bytes) -> AnthropicTapEvent | None:
    """Parse an event whose fields may have any type."""
    try:
        value = parse_lenient_json(frame)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    event_type, delta, message = value.get("type"), value.get("delta"), value.get("message")
    delta = delta if isinstance(delta, dict) else {}
    message = message if isinstance(message, dict) else None
    return AnthropicTapEvent(
        type=event_type if isinstance(event_type, str) else None,
        delta=AnthropicTapDelta(
            text=as_text(delta.get("text")),
            thinking=as_text(delta.get("thinking")),
            partial_json=as_text(delta.get("partial_json")),
            stop_reason=as_text(delta.get("stop_reason")),
        ),
        message=None
        if message is None
        else AnthropicTapMessage(
            as_text(message.get("model")),
            message.get("usage"),
            as_text(message.get("stop_reason")),
            message.get("id"),
        ),
        usage=value.get("usage"),
        error=value.get("error") or (find_error(value) if event_type is None else None),
    )


def has_wrong_name(frame: bytes, event: AnthropicTapEvent) -> bool:
    """Return whether an event's name is missing or differs from its type: clients dispatch on the name."""
    return (
        event.type in _EVENT_TYPES and (frame.event if isinstance(frame, NamedFrame) else None) != event.type
    )


def without_done(frames: Sequence[bytes]) -> Sequence[bytes]:
    """Return the frames without the `[DONE]` of some gateways, which Anthropic's SDKs cannot read."""
    if not any(b"[DONE]" in frame for frame in frames):
        return frames
    return [frame for frame in frames if frame.strip() not in (b"[DONE]", b'"[DONE]"')]


def _is_ignorable(frame: bytes) -> bool:
    """Return whether invalid JSON can be skipped: an empty frame, or a vendor's own event (a heartbeat)."""
    if isinstance(frame, NamedFrame):
        return frame.event not in _EVENT_TYPES and frame.event != "error"
    return frame.strip() in (b"", b"null")


def is_ping(frame: bytes) -> bool:
    """Return whether a frame is Anthropic's own heartbeat, with any data."""
    return isinstance(frame, NamedFrame) and frame.event == "ping"


def frame_error(frame: bytes) -> Any:
    """Return the error in a frame: an error body, or the frame's value or text."""
    try:
        value = parse_lenient_json(frame)
    except ValueError:
        return frame.decode(errors="replace")
    return find_error(value) or value


def read_message(raw: bytes, defaults: AnswerDefaults | None = None) -> AnswerSummary:
    """Read a Message document. Raises ProviderError if it is invalid or incomplete."""
    value = read_document(raw, "type")
    if value.get("type") == "error" or not isinstance(value.get("content"), list):
        raise provider_error(find_error(value) or "the answer has no content")
    model, reason = value.get("model"), value.get("stop_reason")
    if not isinstance(reason, str) or not reason:
        raise incomplete_answer_error()
    repaired = _with_unique_ids(value, CallIds((defaults or AnswerDefaults()).new_id))
    return AnswerSummary(
        read_usage(value.get("usage")),
        model if isinstance(model, str) else None,
        reason,
        None if repaired is value else encode_event(repaired),
    )


def _with_unique_ids(message: dict[str, Any], ids: CallIds) -> dict[str, Any]:
    """Return a message whose calls have distinct ids: the same object if they already do."""
    fields = [
        own_id(block, ids) if isinstance(block, dict) and block.get("type") == "tool_use" else {}
        for block in message["content"]
    ]
    if not any(fields):
        return message
    content = [
        {**block, **more} if more else block for block, more in zip(message["content"], fields, strict=True)
    ]
    return {**message, "content": content}
