"""The chunks (stream events) of a Responses answer, and lenient parsing for servers' variants.

`decode_chunks` is the fast path for regular events, `read_chunk` handles the rest. An event is identified by
its `type`, which its name in the event stream repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.json_decoding import DECODE_ERRORS, replace_surrogates
from dragoman.wire import provider_errors
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.openai.chunk import as_integer


class ResponsesChunk(msgspec.Struct, gc=False):
    """One event of the stream. The last fields are those of an error."""

    type: str | None = None
    delta: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item_id: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    input: str | None = None
    item: Any = None
    annotation: Any = None
    response: Any = None
    error: Any = None
    code: Any = None
    message: Any = None
    param: Any = None


_decoder = msgspec.json.Decoder(ResponsesChunk)
_STREAMED = ("delta", "text", "refusal", "arguments", "input")
_INDEXES = ("output_index", "content_index", "summary_index")
_OBJECTS = ("item", "annotation", "response", "error", "code", "message", "param")


def decode_chunks(payloads: Sequence[bytes]) -> list[ResponsesChunk]:
    """Decode the chunks of regular payloads; none if one of them needs `read_chunk`."""
    try:
        chunks = _decoder.decode_lines(b"\n".join(payloads))
    except DECODE_ERRORS:
        return []
    return chunks if len(chunks) == len(payloads) and all(chunk.type for chunk in chunks) else []


def read_chunk(payload: bytes) -> ResponsesChunk | None:
    """Parse a chunk leniently; None for `null`, ValueError if it is not a JSON object."""
    try:
        chunk = _decoder.decode(payload)
        if chunk.type:
            return chunk
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


def _lenient_chunk(value: Mapping[str, Any]) -> ResponsesChunk:
    """Build a chunk from an object whose fields may have any type.

    Lone surrogates stay in streamed texts, where the other half may follow.
    """
    kind = _as_text(value.get("type")) or None
    fields: dict[str, Any] = {field: replace_surrogates(value.get(field)) for field in _OBJECTS}
    fields |= {field: _as_text(value.get(field)) for field in _STREAMED}
    fields |= {field: as_integer(value.get(field)) for field in _INDEXES}
    if kind is None:
        fields["error"] = replace_surrogates(provider_errors.find_error(value))
    return ResponsesChunk(type=kind, item_id=_as_text(replace_surrogates(value.get("item_id"))), **fields)


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# ---- Errors: the code implies the HTTP status, which in a stream is 200 and tells nothing

_CODE_STATUSES = {
    "server_error": 500,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "server_is_overloaded": 503,
    "slow_down": 503,
    "vector_store_timeout": 504,
    "invalid_image": 400,
    "bio_policy": 400,
}


def responses_error(error: Any) -> ProviderError:
    """Create the ProviderError for the error of a failed response, or of an error event."""
    code = error.get("code") if isinstance(error, Mapping) else None
    status = _CODE_STATUSES.get(code) if isinstance(code, str) else None
    return provider_errors.provider_error(error, status=status)
