"""Frames: one event of an Anthropic stream as a value, read from anything that gateways call one.

`decode_chunks` is the quick way for well-behaved frames, `read_chunk` takes the rest. Source: wire notes on
providers, §2 and §6.3: what an event is stands in its `type`; its name in the event stream is a fallback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.wire import provider_errors
from dragoman.wire.openai.chunk import DECODE_ERRORS, parse_lenient_json, replace_surrogates
from dragoman.wire.sse import NamedFrame, SSEParser

_EVENT_PREFIX, _DATA_PREFIX, _DATA_OBJECT = b"event: ", b"data: ", b"\ndata: {"


class AnthropicDelta(msgspec.Struct, gc=False):
    """What a block, or the message, grows by."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Any = None
    content: Any = None  # of a compaction
    encrypted_content: Any = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None
    container: Any = None


class AnthropicChunk(msgspec.Struct, gc=False):
    """One event of the stream."""

    type: str | None = None
    index: int | None = None
    delta: AnthropicDelta | None = None
    content_block: Any = None
    message: Any = None
    usage: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(AnthropicChunk)


class AnthropicSSEParser(SSEParser):
    """Cuts a byte stream into frames, quickly where each is an `event:` line and a `data:` line.

    The names are left out then, as the data says them too; an error's is kept.
    """

    def _split_frames(self, raw: bytes) -> list[bytes]:
        if raw.startswith(_EVENT_PREFIX) and len(raw) <= self._limit:
            lines = raw.split(b"\n")
            data = lines[1::3]
            if (
                len(lines) == 3 * len(data) - 1
                and raw.count(b"\n" + _EVENT_PREFIX) + 1 == len(data) == raw.count(_DATA_OBJECT)
                and not any(lines[2::3])
                and b"\n" + _DATA_OBJECT not in raw  # then each data line is the second of its frame
                and b"event: error" not in lines
            ):
                return [line[len(_DATA_PREFIX) :] for line in data]
        return super()._split_frames(raw)


def decode_chunks(payloads: Sequence[bytes]) -> list[AnthropicChunk]:
    """The frames in well-behaved payloads; none when one of them needs a closer look by `read_chunk`."""
    try:
        frames = _decoder.decode_lines(b"\n".join(payloads))
    except DECODE_ERRORS:
        return []
    return frames if len(frames) == len(payloads) else []


def read_chunk(payload: bytes) -> AnthropicChunk | None:
    """The frame in a payload, whatever its quirks; None for `null`, ValueError when it is no JSON object."""
    try:
        return _decoder.decode(payload)
    except DECODE_ERRORS:
        pass
    value = parse_lenient_json(payload)
    if value is None:
        return None
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, Mapping):
        raise ValueError(f"the event is a JSON {type(value).__name__}, not an object")
    try:
        return _lenient_chunk(value)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def event_name(payload: bytes) -> str | None:
    """The name of the frame in the event stream, if it was kept."""
    return payload.event if isinstance(payload, NamedFrame) else None


def _lenient_chunk(value: Mapping[str, Any]) -> AnthropicChunk:
    """The frame in an object of which any field may have a type of its own.

    Halves of surrogate pairs stay in the texts that grow, where the other half may follow.
    """
    index, delta = value.get("index"), value.get("delta")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    return AnthropicChunk(
        type=_as_text(value.get("type")),
        index=index if type(index) is int else None,
        delta=_lenient_delta(delta) if isinstance(delta, Mapping) else None,
        **{
            name: replace_surrogates(value.get(name))
            for name in ("content_block", "message", "usage", "error")
        },
    )


def _lenient_delta(value: Mapping[str, Any]) -> AnthropicDelta:
    grown = {name: _as_text(value.get(name)) for name in ("text", "thinking", "partial_json")}
    if isinstance(value.get("partial_json"), Mapping):
        grown["partial_json"] = msgspec.json.encode(replace_surrogates(value["partial_json"])).decode()
    names = ("type", "signature", "stop_reason", "stop_sequence")
    said = {name: _as_text(replace_surrogates(value.get(name))) for name in names}
    kept = ("citation", "content", "encrypted_content", "stop_details", "container")
    return AnthropicDelta(**grown, **said, **{name: replace_surrogates(value.get(name)) for name in kept})


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# ---- Failures as Anthropic tells them: an error's type says what its HTTP status would have been.
# Source: wire notes on providers, §6.6. In a stream the status is that of the answer, 200, and says nothing.

_TYPE_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def anthropic_error(error: Any) -> ProviderError:
    """The ProviderError for the `error` object of an error event."""
    kind = error.get("type") if isinstance(error, Mapping) else None
    return provider_errors.provider_error(
        error, status=_TYPE_STATUSES.get(kind) if isinstance(kind, str) else None
    )
