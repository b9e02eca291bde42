"""Parse a client's Responses request to a model request.

The fields that hold state (`previous_response_id`, `conversation`, `item_reference` items) are resolved
before: what is parsed here has all of its items in `input`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest
from dragoman.wire.client_request import MAX_FIELDS, ClientRequest, check_count
from dragoman.wire.openai.field_reader import (
    IgnoredFields,
    decode_body,
    invalid_field,
    read_boolean,
    read_list,
    read_nonempty_string,
    read_object,
    read_optional_string,
)
from dragoman.wire.responses.client_items import ItemParser, item_type, list_items
from dragoman.wire.responses.client_tools import TOOL_ITEMS, ClientTools
from dragoman.wire.responses.compaction import (
    COMPACTION,
    PROMPT,
    TRIGGER,
    left_out_items,
    request_summary,
    user_items,
)

_HINT = 'send {"model": "provider/model", "input": "hi"}'
_MAX_THRESHOLD = 10**12
_MAX_METADATA, _MAX_METADATA_KEY, _MAX_METADATA_VALUE = 16, 64, 512
# Fields that a model does not need, or that the hub handles itself.
_SILENT_FIELDS = frozenset(
    {
        *("model", "input", "instructions", "stream", "stream_options", "metadata", "store", "include"),
        *("previous_response_id", "conversation", "background", "background_options", "client_metadata"),
        *("tools", "tool_choice", "text", "reasoning", "generate", "stream_id", "type", "truncation"),
        *("max_tool_calls", "extra_body", "context_management"),
    }
)

# Values of `include` that every answer has.
_INCLUDED = frozenset({"reasoning.encrypted_content", "message.input_image.image_url"})


class ResponsesRequest(ClientRequest, frozen=True, kw_only=True):
    """A parsed Responses request. `response_fields` are the fields that the response object repeats.

    `compacts`: the answer is a compaction of the items, of which `user_items` are the messages of the user.
    An input of more than `compact_threshold` tokens is shortened by a compaction first.
    """

    tools: ClientTools
    response_fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    compacts: bool = False
    user_items: Sequence[Mapping[str, Any]] = ()
    compact_threshold: int | None = None


def parse_responses_request(raw: bytes, *, compacts: bool = False, prompt: str = PROMPT) -> ResponsesRequest:
    """Parse a body. Raises BadRequest, with the invalid field.

    `compacts`: as if its last item asked for that. `prompt` asks the model for the summary then.
    """
    try:
        body = decode_body(raw)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", hint=_HINT) from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint=_HINT)
    check_count(len(body), "the body", limit=MAX_FIELDS)
    ignored = IgnoredFields()
    tools = ClientTools(ignored)
    items = list_items(body.get("input"))
    items += [{"type": TRIGGER}] if compacts else []
    for index, item in enumerate(items):
        if item_type(item) in TOOL_ITEMS:
            tools.add(item.get("tools"), f"input[{index}].tools")
    tools.add(body.get("tools"), "tools")
    parser = ItemParser(tools, ignored)
    left_out = left_out_items(items)
    for index in (index for index in range(len(items)) if index not in left_out):
        parser.add(items[index], f"input[{index}]")
    parser.finish()
    options = _parse_options(body, ignored)
    if body.get("truncation") == "auto":
        ignored.add_unknown({"truncation": True}, (), field="")
    offered, choice = tools.choose(body.get("tool_choice"))
    instructions = read_optional_string(body.get("instructions"), "instructions") or None
    _require_messages(parser, instructions)
    threshold = _read_threshold(body.get("context_management"), ignored)
    request = ModelRequest(
        model=read_nonempty_string(body.get("model"), "model"),
        messages=parser.messages,
        instructions=instructions,
        tools=offered,
        tool_choice=choice,
        options=options,
    )
    return ResponsesRequest(
        request=request_summary(request, prompt) if parser.has_trigger else request,
        stream=read_boolean(body.get("stream"), "stream"),
        ignored_fields=ignored.fields,
        tools=tools,
        response_fields=_response_fields(body),
        compacts=parser.has_trigger,
        user_items=user_items(items) if parser.has_trigger else (),
        compact_threshold=threshold,
    )


def _require_messages(parser: ItemParser, instructions: str | None) -> None:
    if not parser.messages and instructions is None:
        raise BadRequest("input must have at least one item", field="input", hint=_HINT)
    if not parser.messages and parser.has_trigger:
        raise BadRequest("input must have an item before its compaction_trigger", field="input")


# ---- Options


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


TypeCheck = tuple[Callable[[Any], bool], str]
# By field: the name of the option, and what it must be.
_OPTIONS: Mapping[str, tuple[str, TypeCheck]] = {
    "max_output_tokens": (
        "max_tokens",
        (lambda value: _is_integer(value) and value >= 1, "an integer of at least 1"),
    ),
    "temperature": ("temperature", (_is_number, "a number")),
    "top_p": ("top_p", (_is_number, "a number")),
    "parallel_tool_calls": (
        "parallel_tool_calls",
        (lambda value: isinstance(value, bool), "true or false"),
    ),
    "user": ("user", (_is_string, "a string")),
    "safety_identifier": ("safety_identifier", (_is_string, "a string")),
    "prompt_cache_key": ("prompt_cache_key", (_is_string, "a string")),
    "prompt_cache_retention": ("prompt_cache_retention", (_is_string, "a string")),
    "service_tier": ("service_tier", (_is_string, "a string")),
}


def _check_include(value: Any, ignored: IgnoredFields) -> None:
    """Check `include`; add values that only OpenAI's own tools and models support to the ignored fields."""
    for index, name in enumerate(read_list(value, "include")):
        if not isinstance(name, str):
            raise invalid_field(name, f"include[{index}]", expected="a string")
        if name not in _INCLUDED:
            ignored.add_unknown({name: True}, (), field="include")


def _parse_options(body: Mapping[str, Any], ignored: IgnoredFields) -> dict[str, Any]:
    """Return the options under their names in chat.completions."""
    options: dict[str, Any] = {}
    for field, (name, (is_valid, expected)) in _OPTIONS.items():
        value = body.get(field)
        if value is None:
            continue
        if not is_valid(value):
            raise invalid_field(value, field, expected=expected)
        options[name] = value
    _check_include(body.get("include"), ignored)
    options |= _parse_text(body.get("text"), ignored)
    options |= _parse_reasoning(body.get("reasoning"), ignored)
    check_metadata(body.get("metadata"))
    if body.get("prompt") is not None:
        raise BadRequest(
            "prompt: only the provider that stores a prompt template can fill it in",
            field="prompt",
            hint="send instructions and input, or ask a model of a provider of type responses",
        )
    if (calls := body.get("max_tool_calls")) is not None and not (_is_integer(calls) and calls >= 1):
        raise invalid_field(calls, "max_tool_calls", expected="an integer of at least 1")
    ignored.add_unknown(body, (*_OPTIONS, *_SILENT_FIELDS), field="")
    return options


def _read_threshold(value: Any, ignored: IgnoredFields) -> int | None:
    """Return the number of tokens above which a conversation is compacted; None for never."""
    threshold = None
    for index, entry in enumerate(read_list(value, "context_management")):
        field = f"context_management[{index}]"
        rule = read_object(entry, field)
        if rule.get("type") != COMPACTION:
            ignored.add_unknown({str(rule.get("type"))[:60]: True}, (), field="context_management[].type")
            continue
        tokens = rule.get("compact_threshold")
        if tokens is not None and not (_is_integer(tokens) and 1 <= tokens <= _MAX_THRESHOLD):
            raise invalid_field(
                tokens,
                f"{field}.compact_threshold",
                expected=f"a number of tokens from 1 to {_MAX_THRESHOLD}",
            )
        threshold = tokens if tokens is not None else threshold
    return threshold


def _parse_text(value: Any, ignored: IgnoredFields) -> dict[str, Any]:
    if value is None:
        return {}
    text = read_object(value, "text")
    ignored.add_unknown(text, ("format", "verbosity"), field="text")
    options: dict[str, Any] = {}
    verbosity = read_optional_string(text.get("verbosity"), "text.verbosity")
    if verbosity:
        options["verbosity"] = verbosity
    if text.get("format") is None:
        return options
    output = read_object(text["format"], "text.format")
    match read_nonempty_string(output.get("type"), "text.format.type"):
        case "text":
            pass
        case "json_object":
            options["response_format"] = {"type": "json_object"}
        case "json_schema":
            schema = read_object(output.get("schema"), "text.format.schema")
            fields = {
                name: output[name] for name in ("description", "strict") if output.get(name) is not None
            }
            name = read_optional_string(output.get("name"), "text.format.name") or "answer"
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": name, "schema": schema, **fields},
            }
        case other:
            raise BadRequest(
                f"text.format.type must be one of text, json_object, json_schema, got {other!r:.60}",
                field="text.format.type",
            )
    return options


def _parse_reasoning(value: Any, ignored: IgnoredFields) -> dict[str, Any]:
    """Return the effort. A `summary` needs no option: answers have the reasoning that the model returns."""
    if value is None:
        return {}
    reasoning = read_object(value, "reasoning")
    ignored.add_unknown(reasoning, ("effort", "summary", "generate_summary", "context"), field="reasoning")
    effort = read_optional_string(reasoning.get("effort"), "reasoning.effort")
    return {"reasoning_effort": effort} if effort else {}


def check_metadata(value: Any) -> None:
    """Raise BadRequest unless a value is metadata: an object of short texts, or None."""
    if value is None:
        return
    metadata = read_object(value, "metadata")
    check_count(len(metadata), "metadata", limit=_MAX_METADATA)
    for key, text in metadata.items():
        if not isinstance(text, str) or len(text) > _MAX_METADATA_VALUE or len(key) > _MAX_METADATA_KEY:
            raise BadRequest(
                f"metadata.{key[:_MAX_METADATA_KEY]} must be a string of at most {_MAX_METADATA_VALUE} "
                f"characters, with a key of at most {_MAX_METADATA_KEY}",
                field="metadata",
            )


# ---- What the response object repeats


def _response_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    text = body.get("text") if isinstance(body.get("text"), Mapping) else {}
    reasoning = body.get("reasoning") if isinstance(body.get("reasoning"), Mapping) else {}
    conversation = body.get("conversation")
    if isinstance(conversation, str):
        conversation = {"id": conversation}
    context = {name: body[name] for name in ("context_management",) if body.get(name)}
    return {
        **context,
        "background": bool(body.get("background")),
        "conversation": conversation,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None, **(reasoning or {})},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": body.get("service_tier") or "default",
        "store": body.get("store") is not False,
        "temperature": 1.0 if body.get("temperature") is None else body["temperature"],
        "text": {"format": {"type": "text"}, **(text or {})},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": read_list(body.get("tools"), "tools"),
        "top_logprobs": body.get("top_logprobs") or 0,
        "top_p": 1.0 if body.get("top_p") is None else body["top_p"],
        "truncation": body.get("truncation") or "disabled",
        "user": body.get("user"),
    }
