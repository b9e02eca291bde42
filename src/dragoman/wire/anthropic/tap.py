"""A tap on a relayed Messages answer. Source: wire notes on providers, §3 and §6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.wire.dialect import KEEP_ALIVE
from dragoman.wire.failures import failure, find
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.openai.tap import broken, read_document
from dragoman.wire.sse import LIMIT, Named
from dragoman.wire.tap import Frames, Whole, join, unfinished

_FAILED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EVENTS = frozenset(
    {
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    }
)
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class Delta(msgspec.Struct, gc=False):
    """What is looked at in a delta."""

    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Message(msgspec.Struct, gc=False):
    """What is looked at in the message that a stream begins with."""

    model: str | None = None
    usage: Any = None
    stop_reason: str | None = None


class Event(msgspec.Struct, gc=False):
    """What is looked at in an event."""

    type: str | None = None
    delta: Delta | None = None
    message: Message | None = None
    usage: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(Event)


class MessageTap:
    """See `Tap`. `message_stop` goes on only behind a stop reason."""

    def __init__(self, *, limit: int = LIMIT) -> None:
        self.done = False
        self.failure: ProviderError | None = None
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.said = 0
        self._frames = Frames(limit=limit)
        self._counts: dict[str, Any] = {}
        self._begun = False

    @property
    def usage(self) -> Usage | None:
        """What was counted last; the counts of the beginning where the end is silent.

        Before the end, what the beginning counted of the output says nothing of what came since.
        """
        if self.finish_reason is not None:
            return count(self._counts)
        return count({name: value for name, value in self._counts.items() if name != "output_tokens"})

    @property
    def finishing(self) -> bool:
        """See `Tap`."""
        return self.finish_reason is not None

    def feed(self, raw: bytes) -> bytes:
        """See `Tap`."""
        if self.failure is not None or self.done:
            return b""
        said = join(self._look(self._frames.feed(raw)))
        self._splits()
        return said or (KEEP_ALIVE if self._frames.alive() else b"")

    def close(self) -> bytes:
        """See `Tap`."""
        said = b""
        if self.failure is None and not self.done:
            said = join(self._look(self._frames.close()))
            self._splits()
        if self.failure is None and not self.done:
            self.failure = unfinished(self._begun)
        return said

    def _splits(self) -> None:
        if self.failure is None:
            self.failure = self._frames.failure

    def _look(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        for at, frame in enumerate(frames):
            event = read(frame)
            if event is None:
                if not _skipped(frame):
                    self.failure = broken(frame)
                    return frames[:at]
                continue
            if misnamed(frame, event):
                frames = [*frames[:at], Named(frame, event.type or ""), *frames[at + 1 :]]
            if event.type == "content_block_delta" and event.delta is not None:
                delta = event.delta
                self.said += len(delta.text or delta.thinking or delta.partial_json or "")
            elif not self._note(event, frame):
                return frames[:at]
            elif self.done:
                return frames[: at + 1]
        return frames

    def _note(self, event: Event, frame: bytes) -> bool:
        """Take an event in; False when it is an error, or an end that is none."""
        kind = event.type
        if event.error or kind == "error" or (isinstance(frame, Named) and frame.event == "error"):
            self.failure = failure(event.error or found(frame))
            return False
        if event.message is not None:
            self._begun = True
            self.model = event.message.model
            self._stop(event.message.stop_reason)
            self._count(event.message.usage)
        if kind == "message_delta":
            self._stop(event.delta.stop_reason if event.delta else None)
            self._count(event.usage)
        elif kind == "message_stop":
            if self.finish_reason is None:
                self.failure = unfinished(self._begun)
                return False
            self.done = True
        return True

    def _stop(self, reason: str | None) -> None:
        self.finish_reason = reason or self.finish_reason

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts |= {name: value for name, value in usage.items() if value is not None}


def read(frame: bytes) -> Event | None:
    """The event in a frame; None when it is no JSON object."""
    try:
        return _decoder.decode(frame)
    except _FAILED:
        return patient(frame)


def patient(frame: bytes) -> Event | None:
    """The same for fields of other types than they should have."""
    try:
        value = chunks.loose(frame)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    kind, delta, message = value.get("type"), value.get("delta"), value.get("message")
    delta = delta if isinstance(delta, dict) else {}
    message = message if isinstance(message, dict) else None
    return Event(
        type=kind if isinstance(kind, str) else None,
        delta=Delta(
            text=chunks.text(delta.get("text")),
            thinking=chunks.text(delta.get("thinking")),
            partial_json=chunks.text(delta.get("partial_json")),
            stop_reason=chunks.text(delta.get("stop_reason")),
        ),
        message=None
        if message is None
        else Message(
            chunks.text(message.get("model")), message.get("usage"), chunks.text(message.get("stop_reason"))
        ),
        usage=value.get("usage"),
        error=value.get("error") or (find(value) if kind is None else None),
    )


def misnamed(frame: bytes, event: Event) -> bool:
    """Whether an event has no name, or another one than its type: clients, which go by it, lose it."""
    return event.type in _EVENTS and (frame.event if isinstance(frame, Named) else None) != event.type


def _skipped(frame: bytes) -> bool:
    """Whether a frame that is no JSON may be passed over: `[DONE]` of some gateways, or a heartbeat."""
    if isinstance(frame, Named):
        return frame.event == "ping" or frame.strip() in (b"", b"[DONE]")
    return frame.strip() in (b"", b"[DONE]")


def found(frame: bytes) -> Any:
    """The error in a frame."""
    try:
        value = chunks.loose(frame)
    except ValueError:
        return frame.decode(errors="replace")
    return find(value) or value


def count(usage: Any) -> Usage | None:
    """A Messages `usage` in the hub's words: the prompt is the sum of what was cached and what was not."""
    if not isinstance(usage, dict):
        return None
    read = {name: value for name in _COUNTS if type(value := usage.get(name)) is int and value >= 0}
    if not any(read.values()):
        return None
    parts = [read[name] for name in _COUNTS if name != "output_tokens" and name in read]
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


def read_message(raw: bytes) -> Whole:
    """What a whole Message says of itself; ProviderError when it is none, or has no end."""
    value = read_document(raw, "type")
    if value.get("type") == "error" or not isinstance(value.get("content"), list):
        raise failure(find(value) or "the answer has no content")
    model, reason = value.get("model"), value.get("stop_reason")
    if not isinstance(reason, str) or not reason:
        raise unfinished(True)
    return Whole(count(value.get("usage")), model if isinstance(model, str) else None, reason)
