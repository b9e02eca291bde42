"""The chunks (stream events) of an Anthropic answer, and lenient parsing for gateways' variants.

`decode_chunks` is the fast path for regular events, `read_chunk` handles the rest. An event is identified by
its `type`; its name in the event stream is a fallback. Source: wire notes on providers, §2 and §6.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.json_decoding import DECODE_ERRORS, parse_digits, replace_surrogates
from dragoman.wire import provider_errors
from dragoman.wire.json_codec import compact_json, parse_lenient_json


class AnthropicDelta(msgspec.Struct, gc=False):
    """What a block, or the message, adds."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Any = None
    content: Any = None  # of compaction deltas
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


def decode_chunks(payloads: Sequence[bytes]) -> list[AnthropicChunk]:
    """Decode the chunks of regular payloads; none if one of them needs `read_chunk`."""
    try:
        chunks = _decoder.decode_lines(b"\n".join(payloads))
    except DECODE_ERRORS:
        return []
    return chunks if len(chunks) == len(payloads) else []


def read_chunk(payload: bytes) -> AnthropicChunk | None:
    """Parse a chunk leniently; None for `null`, ValueError if it is not a JSON object."""
    try:
        return _decoder.decode(payload)
    except DECODE_ERRORS:
        pass
    value = parse_lenient_json(payload, keeps_halves=True)
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


def _lenient_chunk(value: Mapping[str, Any]) -> AnthropicChunk:
    """Build a chunk from an object whose fields may have any type.

    Lone surrogates stay in streamed texts, where the other half may follow.
    """
    index, delta = value.get("index"), value.get("delta")
    if isinstance(index, str):
        index = parse_digits(index)
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
    streamed = {name: _as_text(value.get(name)) for name in ("text", "thinking", "partial_json")}
    if isinstance(value.get("partial_json"), Mapping):
        streamed["partial_json"] = compact_json(value["partial_json"])
    names = ("type", "signature", "stop_reason", "stop_sequence")
    strings = {name: _as_text(replace_surrogates(value.get(name))) for name in names}
    opaque_names = ("citation", "content", "encrypted_content", "stop_details", "container")
    return AnthropicDelta(
        **streamed, **strings, **{name: replace_surrogates(value.get(name)) for name in opaque_names}
    )


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# ---- Errors: the type implies the HTTP status, which in a stream is 200 and tells nothing
# Source: wire notes on providers, §6.6.

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
    """Create the ProviderError for the `error` object of an error event."""
    error_type = error.get("type") if isinstance(error, Mapping) else None
    return provider_errors.provider_error(
        error, status=_TYPE_STATUSES.get(error_type) if isinstance(error_type, str) else None
    )
