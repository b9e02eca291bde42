"""The chunks of a chat.completions stream, and lenient parsing for every vendor's variant.

`decode_lines` is the fast path for regular chunks. `read_chunks` handles the rest: fields of other types,
NaN, lone surrogates, invalid UTF-8, several documents in a frame. Source: wire notes on providers, §4.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.json_decoding import DECODE_ERRORS, parse_digits, replace_surrogates
from dragoman.wire.json_codec import as_text, parse_lenient_json

MAX_CHOICES = 1_000  # of a relayed answer: each is checked, and repaired, by itself


class OpenAIFunctionCall(msgspec.Struct, gc=False):
    """The function of a tool call, or a part of it."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class OpenAIToolCallDelta(msgspec.Struct, gc=False):
    """A part of a tool call. `extra_content` is opaque (Gemini's signatures) and is sent back unchanged."""

    index: int | None = None
    id: str | None = None
    function: OpenAIFunctionCall | None = None
    custom: Any = None
    extra_content: Any = None
    type: str | msgspec.UnsetType | None = msgspec.UNSET


class OpenAIDelta(msgspec.Struct, gc=False):
    """What a chunk adds to the answer; a complete message has the same fields."""

    content: str | list[Any] | None = None
    tool_calls: list[OpenAIToolCallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    refusal: str | None = None
    reasoning_details: Any = None
    thinking_blocks: Any = None
    reasoning_opaque: Any = None
    function_call: Any = None
    annotations: Any = None
    images: Any = None
    audio: Any = None
    executed_tools: Any = None


class OpenAIChoice(msgspec.Struct, gc=False):
    """One choice; only the one with index 0 is read.

    `text` belongs to the old completions API; Moonshot puts the `usage` here.
    """

    index: int | None = None
    delta: OpenAIDelta | None = None
    finish_reason: str | None = None
    message: OpenAIDelta | None = None
    text: str | None = None
    error: Any = None
    usage: Any = None


class OpenAIChunk(msgspec.Struct, gc=False):
    """One event of the stream. `choices` is None if the event has none; then it may be an error."""

    choices: list[OpenAIChoice] | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None
    citations: Any = None
    search_results: Any = None
    web_search: Any = None
    service_tier: Any = None


_decoder = msgspec.json.Decoder(OpenAIChunk)
decode_lines = _decoder.decode_lines


def read_chunks(payload: bytes) -> list[OpenAIChunk]:
    """Parse the chunks in one frame leniently. Raises ValueError if it is not a JSON object."""
    try:
        return [_decoder.decode(payload)]
    except DECODE_ERRORS:
        pass
    try:
        return [lenient_chunk(value) for value in read_objects(payload)]
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def read_objects(payload: bytes) -> list[dict[str, Any]]:
    """Parse the JSON objects in one frame leniently. Raises ValueError if it contains anything else."""
    try:
        value = parse_lenient_json(payload, keeps_halves=True)
    except ValueError:
        lines = payload.split(b"\n")
        if len(lines) == 1:
            raise
        return [
            value for line in lines if line.strip() not in (b"", b"[DONE]") for value in read_objects(line)
        ]
    if value is None:
        return []
    if isinstance(value, list) and value:  # Google wraps its errors in a list
        value = value[0]
    if not isinstance(value, dict):
        raise ValueError(f"the event is a JSON {type(value).__name__}, not an object")
    return [value]


def lenient_chunk(value: Mapping[str, Any]) -> OpenAIChunk:
    """Build a chunk from a JSON object whose fields may have any type.

    Lone surrogates stay in streamed texts, where the other half may follow; elsewhere they are replaced.
    """
    choices = list_choices(value)
    return OpenAIChunk(
        choices=None if choices is None else [_lenient_choice(choice) for choice in _objects(choices)],
        model=as_text(replace_surrogates(value.get("model"))),
        usage=replace_surrogates(value.get("usage")),
        **{name: replace_surrogates(value.get(name)) for name in _TOP_LEVEL_FIELDS},
    )


def check_choice_count(count: int) -> None:
    """Raise ProviderError when an answer has more choices than anybody asks for."""
    if count > MAX_CHOICES:
        raise ProviderError(
            f"the provider's answer has more than {MAX_CHOICES} choices, the maximum", category="api_error"
        )


def list_choices(chunk: Mapping[str, Any]) -> list[Any] | None:
    """Return the choices of a chunk, also of one that has its only choice without a list."""
    choices = chunk.get("choices")
    if isinstance(choices, Mapping):
        return [choices]
    return choices if isinstance(choices, list) else None


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _lenient_choice(value: Mapping[str, Any]) -> OpenAIChoice:
    return OpenAIChoice(
        index=as_integer(value.get("index")),
        delta=_lenient_delta(value.get("delta")),
        finish_reason=as_text(replace_surrogates(value.get("finish_reason"))),
        message=_lenient_delta(value.get("message")),
        text=as_text(value.get("text")),
        error=replace_surrogates(value.get("error")),
        usage=replace_surrogates(value.get("usage")),
    )


def _lenient_delta(value: Any) -> OpenAIDelta | None:
    if not isinstance(value, Mapping):
        return None
    calls = value.get("tool_calls")
    content = value.get("content")
    if isinstance(content, Mapping):
        content = [content]
    return OpenAIDelta(
        content=content if isinstance(content, list) else as_text(content),
        tool_calls=[
            lenient_tool_call(call) for call in _objects([calls] if isinstance(calls, Mapping) else calls)
        ],
        **{name: as_text(value.get(name)) for name in _TEXT_FIELDS},
        **{name: replace_surrogates(value.get(name)) for name in _OPAQUE_FIELDS},
    )


_TOP_LEVEL_FIELDS = ("error", "x_groq", "citations", "search_results", "web_search", "service_tier")
_TEXT_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "refusal")
_OPAQUE_FIELDS = (
    "reasoning_details",
    "thinking_blocks",
    "reasoning_opaque",
    "function_call",
    "annotations",
    "images",
    "audio",
    "executed_tools",
)


def lenient_tool_call(value: Mapping[str, Any]) -> OpenAIToolCallDelta:
    """Build a part of a call from a JSON object whose fields may have any type."""
    return OpenAIToolCallDelta(
        index=as_integer(value.get("index")),
        id=as_text(replace_surrogates(value.get("id"))),
        function=lenient_function(value.get("function")),
        custom=replace_surrogates(value.get("custom")),
        extra_content=replace_surrogates(value.get("extra_content")),
        type=as_text(value["type"]) if "type" in value else msgspec.UNSET,
    )


def lenient_function(value: Any) -> OpenAIFunctionCall | None:
    """Parse the function of a call, or the old `function_call`; a list of arguments becomes its JSON."""
    if not isinstance(value, Mapping):
        return None
    arguments = value.get("arguments") or None  # PHP encodes empty arguments as []
    if arguments is not None and not isinstance(arguments, str | dict):
        arguments = json.dumps(arguments)
    return OpenAIFunctionCall(name=as_text(replace_surrogates(value.get("name"))), arguments=arguments)


def as_integer(value: Any) -> int | None:
    """Convert to an integer: digits and whole floats too; None for anything else."""
    if isinstance(value, str):
        return parse_digits(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value == value // 1 else None
