"""Read chunks that hold nothing but text, many at once.

Nearly all chunks of an answer are such ones. Here their whole shape is checked while they are decoded, so
that no Python runs for each of their fields; whatever has another field is for `chunk.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from dragoman.json_decoding import DECODE_ERRORS

MAX_LAST = 3  # chunks at the end of an answer that may hold more: the finish, the usage


class PlainDelta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A delta with text only."""

    content: str | None = None
    role: Any = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    reasoning: None = None
    reasoning_content: None = None


class PlainChoice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The only choice of a chunk. Fields of type `Any` are ignored."""

    delta: PlainDelta
    index: Literal[0] | None = None
    finish_reason: None = None
    logprobs: Any = None
    native_finish_reason: Any = None
    stop_reason: Any = None
    matched_stop: Any = None
    token_ids: Any = None
    content_filter_results: Any = None


class PlainChunk(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A chunk with one choice and without usage. Fields of type `Any` are ignored."""

    choices: tuple[PlainChoice]
    model: str | None = None
    usage: None = None
    id: Any = None
    object: Any = None
    created: Any = None
    provider: Any = None
    system_fingerprint: Any = None
    service_tier: Any = None
    obfuscation: Any = None
    prompt_token_ids: Any = None


_decoder = msgspec.json.Decoder(PlainChunk)
decode_plain_chunk = _decoder.decode
_decode_lines = _decoder.decode_lines


class PlainText(NamedTuple):
    """The text of the first `chunks` chunks; `model` is the first that they name."""

    chunks: int
    text: str
    model: str | None


def read_plain_text(payloads: Sequence[bytes]) -> PlainText | None:
    """Read the chunks but for the last, if these hold more; None if others do too."""
    count = len(payloads)
    while count and count > len(payloads) - MAX_LAST and _may_end(payloads[count - 1]):
        count -= 1
    try:
        chunks = _decode_lines(b"\n".join(payloads[:count]))
    except DECODE_ERRORS:
        return None
    if not chunks or len(chunks) != count:
        return None
    text = "".join([chunk.choices[0].delta.content or "" for chunk in chunks])
    # Some servers name the model only once the first token is there.
    model = chunks[0].model or next((chunk.model for chunk in chunks if chunk.model), None)
    return PlainText(count, text, model)


def _may_end(payload: bytes) -> bool:
    """Return whether a chunk seems to hold the finish or the usage."""
    return b'"finish_reason":"' in payload or b'"finish_reason": "' in payload or b'"usage":' in payload
