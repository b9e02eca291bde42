"""The lines of Ollama's /api/chat, and lenient parsing for proxies and similar servers.

`decode_lines` is the fast path for Ollama's own lines; `read_chunk` handles fields of other types,
NaN, invalid UTF-8 and lone surrogates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.json_decoding import DECODE_ERRORS, replace_surrogates
from dragoman.wire.json_codec import as_text, parse_lenient_json
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.provider_errors import find_error

COUNT_FIELDS = (
    "prompt_eval_count",
    "eval_count",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
)


class OllamaFunctionCall(msgspec.Struct, gc=False):
    """The function of a call. The arguments are complete: an object, or text with other servers."""

    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class OllamaToolCall(msgspec.Struct, gc=False):
    """A complete tool call; servers before 0.12 give it no id."""

    id: str | None = None
    function: OllamaFunctionCall | None = None


class OllamaMessage(msgspec.Struct, gc=False):
    """What a line adds to the message; a complete message has the same fields."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: list[OllamaToolCall] | None = None


class OllamaChunk(msgspec.Struct, gc=False):
    """One line. Counts and durations (nanoseconds) are in the last one, `done`."""

    message: OllamaMessage | None = None
    done: bool = False
    done_reason: str | None = None
    model: str | None = None
    error: Any = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_duration: int | None = None
    eval_duration: int | None = None


_decoder = msgspec.json.Decoder(OllamaChunk)


def decode_lines(block: bytes) -> list[OllamaChunk] | None:
    """Decode a block of regular lines; None if the lines need `read_chunk`."""
    line_count = block.count(b"\n")
    if not block.startswith(b"{") or block.count(b"}\n{") + 1 != line_count or not block.endswith(b"}\n"):
        return None
    try:
        chunks = _decoder.decode_lines(block)
    except DECODE_ERRORS:
        return None
    is_regular = len(chunks) == line_count and all(
        chunk.message is not None or chunk.done for chunk in chunks
    )
    return chunks if is_regular else None


def read_chunk(payload: bytes) -> OllamaChunk:
    """Parse a line leniently. Raises ValueError if it is not a JSON object."""
    try:
        chunk = _decoder.decode(payload)
    except DECODE_ERRORS:
        chunk = None
    if chunk is not None and (chunk.message is not None or chunk.done):
        return chunk
    value = parse_lenient_json(payload, keeps_halves=True)
    if not isinstance(value, dict):
        raise ValueError(f"the line is a JSON {type(value).__name__}, not an object")
    try:
        return _lenient_chunk(value)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _lenient_chunk(value: Mapping[str, Any]) -> OllamaChunk:
    message, done = value.get("message"), value.get("done")
    parsed_message = _lenient_message(message) if isinstance(message, Mapping) else None
    is_done = done is True or done == 1 or done == "true"
    return OllamaChunk(
        message=parsed_message,
        done=is_done,
        done_reason=as_text(replace_surrogates(value.get("done_reason"))),
        model=as_text(replace_surrogates(value.get("model"))),
        error=replace_surrogates(
            value.get("error") if parsed_message is not None or is_done else find_error(value)
        ),
        **{name: _as_integer(value.get(name)) for name in COUNT_FIELDS},
    )


def _lenient_message(message: Mapping[str, Any]) -> OllamaMessage:
    """Parse a message. Lone surrogates stay in streamed texts, where the other half may follow."""
    calls = message.get("tool_calls")
    objects = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return OllamaMessage(
        content=as_text(message.get("content")),
        thinking=as_text(message.get("thinking")),
        tool_calls=[_lenient_call(call) for call in objects] or None,
    )


def _lenient_call(call: Mapping[str, Any]) -> OllamaToolCall:
    function = chunks.lenient_function(call.get("function"))
    return OllamaToolCall(
        id=as_text(replace_surrogates(call.get("id"))),
        function=None if function is None else OllamaFunctionCall(function.name, function.arguments),
    )


def _as_integer(value: Any) -> int | None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if is_integer else None
