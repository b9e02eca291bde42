"""Read usage and the finish from a relayed document of OpenAI's API: a chat.completion, or embeddings.

Source: wire notes on providers, §3 and §4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman.json_decoding import DECODE_ERRORS, decode_fields, decode_json, decode_typed
from dragoman.large_json import LARGE
from dragoman.wire.json_codec import compact_json, parse_lenient_json
from dragoman.wire.openai.chunk import as_integer, check_choice_count
from dragoman.wire.openai.stream_repair import encode_repaired, find_delta, objects_in, repair_content
from dragoman.wire.openai.usage import OpenAIUsage, read_standard_usage, read_usage
from dragoman.wire.provider_errors import (
    EMPTY_VALUES,
    find_error,
    incomplete_answer_error,
    invalid_json_error,
    provider_error,
)
from dragoman.wire.tap import AnswerDefaults, AnswerSummary
from dragoman.wire.tool_calls import CallIds

DOCUMENT = "chat.completion"


class OpenAICompletionFunction(msgspec.Struct, gc=False):
    """The function of a call in a complete answer."""

    name: str
    arguments: str


class OpenAICompletionCall(msgspec.Struct, gc=False):
    """A call in a complete answer."""

    id: str
    type: str
    function: OpenAICompletionFunction | None = None


class OpenAICompletionMessage(msgspec.Struct, gc=False):
    """The message of a complete answer, as far as it is checked."""

    content: str | None = None
    tool_calls: list[OpenAICompletionCall] | None = None


class OpenAICompletionChoice(msgspec.Struct, gc=False):
    """The fields of a complete answer's choice that are read."""

    index: int
    message: OpenAICompletionMessage
    finish_reason: str
    error: Any = None


class OpenAICompletion(msgspec.Struct, gc=False):
    """The fields of a complete answer that are read, if it is in OpenAI's format."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[OpenAICompletionChoice]
    usage: OpenAIUsage
    error: Any = None


_completion = msgspec.json.Decoder(OpenAICompletion)


def read_completion(raw: bytes, defaults: AnswerDefaults | None = None) -> AnswerSummary:
    """Read a chat.completions document. Raises ProviderError if it is invalid, or an error."""
    try:
        completion = _completion.decode(raw) if len(raw) <= LARGE else decode_typed(raw, _completion)
    except DECODE_ERRORS:
        return _read_lenient_completion(raw, defaults or AnswerDefaults())
    usage = read_standard_usage(completion.usage)
    calls = completion.choices[0].message.tool_calls if completion.choices else None
    finish_reason = completion.choices[0].finish_reason if len(completion.choices) == 1 else "error"
    if (
        usage is None
        or (calls and len({call.id for call in calls} - {""}) < len(calls))
        or completion.error is not None
        or finish_reason in ("", "error")
        or completion.choices[0].error is not None
    ):
        return _read_lenient_completion(raw, defaults or AnswerDefaults())
    return AnswerSummary(usage, completion.model, finish_reason)


def _read_lenient_completion(raw: bytes, defaults: AnswerDefaults) -> AnswerSummary:
    """Read a document of any other vendor, leniently. It is whole, also without a finish reason."""
    value = read_document(raw, "choices")
    choices = value["choices"] if isinstance(value["choices"], list) else []
    check_choice_count(len(choices))
    choices = [choice for choice in choices if isinstance(choice, dict)]
    if any(choice.get("finish_reason") == "error" for choice in choices):
        raise provider_error(next((choice.get("error") for choice in choices if choice.get("error")), None))
    repaired = repair_document(value, defaults)
    model = value.get("model")
    model_name = model if isinstance(model, str) else None
    return AnswerSummary(
        read_usage(value.get("usage"), model=model_name or ""),
        model_name,
        str(repaired["choices"][0]["finish_reason"]) if repaired["choices"] else None,
        None if repaired == value else encode_repaired(repaired),
    )


def read_embeddings(raw: bytes) -> AnswerSummary:
    """Read an embeddings document."""
    value = read_document(raw, "data") if len(raw) <= LARGE else _read_large_embeddings(raw)
    model = value.get("model")
    return AnswerSummary(read_usage(value.get("usage")), model if isinstance(model, str) else None, None)


def _read_large_embeddings(raw: bytes) -> dict[str, Any]:
    """Decode the fields of an embeddings document other than the vectors, which are only passed on."""
    try:
        fields = decode_fields(raw)
        if bytes(fields.pop("data", b""))[:2] in (b"", b"[]") or "error" in fields:
            return read_document(raw, "data")
        return {name: decode_json(bytes(field)) for name, field in fields.items()}
    except DECODE_ERRORS:
        raise invalid_json_error(raw) from None


def read_document(raw: bytes, required_field: str) -> dict[str, Any]:
    """Decode the object in a body; ProviderError if it is invalid, an error, or lacks `required_field`."""
    try:
        value = msgspec.json.decode(raw) if len(raw) <= LARGE else decode_json(raw)
    except DECODE_ERRORS:
        try:
            value = parse_lenient_json(raw)
        except ValueError:
            raise invalid_json_error(raw) if raw.strip() else incomplete_answer_error(started=False) from None
    if value in EMPTY_VALUES:
        raise incomplete_answer_error(started=False)
    if isinstance(value, dict) and value.get(required_field) and not value.get("error"):
        return value
    raise provider_error(find_error(value) or f"the answer has no {required_field}")


def repair_document(document: Mapping[str, Any], defaults: AnswerDefaults) -> dict[str, Any]:
    """Return a whole answer as the SDKs expect it; equal to the document if nothing is wrong with it."""
    created = as_integer(document.get("created"))
    choices = document.get("choices")
    return {
        **document,
        "id": document["id"] if isinstance(document.get("id"), str) else defaults.id,
        "object": DOCUMENT,
        "created": defaults.created if created is None else created,
        "model": document["model"] if isinstance(document.get("model"), str) else defaults.model,
        "choices": [
            _repair_document_choice(choice, position, defaults=defaults)
            for position, choice in enumerate(objects_in(choices))
        ],
    }


def _repair_document_choice(
    choice: Mapping[str, Any], position: int, *, defaults: AnswerDefaults
) -> dict[str, Any]:
    index = as_integer(choice.get("index"))
    message = dict(find_delta(choice, is_first=True))
    message |= repair_content(message)
    if message.get("tool_calls") is not None:
        message["tool_calls"] = _repair_document_calls(message["tool_calls"], defaults)
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or not reason:
        reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        **{name: value for name, value in choice.items() if name != "delta"},
        "index": position if index is None else index,
        "message": {"role": "assistant", "content": None, **message},
        "finish_reason": reason,
    }


def _repair_document_calls(value: Any, defaults: AnswerDefaults) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    ids = CallIds(defaults.new_id)
    for call in objects_in([value] if isinstance(value, Mapping) else value):
        repaired = {"type": "function", **{name: field for name, field in call.items() if name != "index"}}
        repaired["id"] = ids.take(repaired.get("id"))
        function = call.get("function")
        if isinstance(function, Mapping) and not isinstance(function.get("arguments"), str):
            arguments = function.get("arguments") or {}
            repaired["function"] = {**function, "arguments": compact_json(arguments)}
        calls.append(repaired)
    return calls
