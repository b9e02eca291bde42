"""Parse a client's request to /v1/messages or /v1/messages/count_tokens to a model request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import BadRequest, UnknownThread
from dragoman.json_decoding import DECODE_ERRORS, decode_json, is_deeper_than
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool, ToolChoice
from dragoman.wire.anthropic.client_messages import AnthropicMessageParser
from dragoman.wire.anthropic.field_reader import RequestFields, invalid_field, quoted_list
from dragoman.wire.client_request import MAX_FIELDS, ClientRequest, check_count
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR, estimate_input

MAX_DEPTH = 200  # encoders add levels of their own to what the decoder just managed
_CHOICE_TYPES = ("auto", "any", "tool", "none")
_TOOL_FIELDS = frozenset(
    {
        *("type", "name", "description", "input_schema", "strict", "cache_control", "allowed_callers"),
        *("defer_loading", "eager_input_streaming", "input_examples"),
    }
)
_ANTHROPIC_TOOL_FIELDS = ("allowed_callers", "defer_loading", "eager_input_streaming", "input_examples")


def parse_messages_request(raw: bytes) -> ClientRequest:
    """Parse the body of a POST to /v1/messages; BadRequest names the invalid field."""
    body = _decode_body(raw)
    request, ignored = _parse_request(body, count_only=False)
    return ClientRequest(request=request, stream=body.flag("stream"), ignored_fields=ignored)


def parse_count_tokens_request(raw: bytes) -> ModelRequest:
    """Parse the body of a POST to /v1/messages/count_tokens, which needs no max_tokens."""
    return _parse_request(_decode_body(raw), count_only=True)[0]


def estimate_input_tokens(request: ModelRequest) -> int:
    """Estimate the input tokens that Anthropic would count, for providers that cannot count."""
    return estimate_input(request, factor=ANTHROPIC_FACTOR)


def _decode_body(raw: bytes) -> RequestFields:
    try:
        body = decode_json(raw)
    except DECODE_ERRORS as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    check_count(len(body), "the body", limit=MAX_FIELDS)
    if is_deeper_than(body, MAX_DEPTH):
        raise BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels")
    return RequestFields(body, "")


def _parse_request(body: RequestFields, *, count_only: bool) -> tuple[ModelRequest, tuple[str, ...]]:
    model = body.text("model")
    if not count_only:
        _check_thread(body)
    options, ignored = parse_options(body, count_only=count_only)
    tools = _parse_tools(body, ignored) if body.has("tools") else ()
    choice = _parse_choice(body.nested("tool_choice"), tools) if body.has("tool_choice") else None
    if choice is not None and body.nested("tool_choice").flag("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    history = AnthropicMessageParser()
    if body.has("system"):
        history.add_system(body)
    messages = body.objects("messages")
    if not messages:
        raise invalid_field("messages", "there must be at least one message")
    for message in messages:
        history.add_message(message)
    request = ModelRequest(
        model=model, messages=history.messages(), tools=tools, tool_choice=choice, options=options
    )
    return request, tuple(dict.fromkeys((*ignored, *history.ignored_fields)))


def _check_thread(body: RequestFields) -> None:
    """Refuse the rest of a conversation that only Anthropic keeps. Clients then send all of its messages."""
    if body.has("thread") and body.nested("thread").raw.get("type") != "create":
        raise UnknownThread(
            "the provider of this model keeps no threads",
            field="thread",
            hint="send all messages, without `thread`",
        )


def _parse_tools(body: RequestFields, ignored: list[str]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for tool_fields in body.objects("tools"):
        tool = _parse_tool(tool_fields)
        ignored += tool_fields.unknown_fields(_TOOL_FIELDS, place="tools[]")
        if tool.name in tools:
            raise invalid_field(tool_fields.path_of("name"), f"duplicate tool name {tool.name!r:.60}")
        tools[tool.name] = tool
    return tuple(tools.values())


def _parse_tool(tool_fields: RequestFields) -> Tool:
    tool_type = tool_fields.optional_text("type") or "custom"
    if tool_type != "custom":
        raise invalid_field(
            tool_fields.path_of("type"),
            f"{tool_type!r:.60} is an Anthropic server tool, which this model does not have",
            hint="use a model of a provider of type anthropic, or define your own tool",
        )
    return Tool(
        tool_fields.text("name"),
        tool_fields.optional_text("description"),
        tool_fields.nested("input_schema").raw,
        strict=tool_fields.flag("strict") if tool_fields.has("strict") else None,
        metadata=tool_fields.provider_metadata(*_ANTHROPIC_TOOL_FIELDS),
    )


def _parse_choice(choice: RequestFields, tools: tuple[Tool, ...]) -> ToolChoice:
    match choice.text("type"):
        case "auto":
            return "auto"
        case "none":
            return "none"
        case "any" if tools:
            return "required"
        case "any":
            raise invalid_field("tool_choice", "a call is required, but there are no tools")
        case "tool":
            name = choice.text("name")
            if not any(tool.name == name for tool in tools):
                raise invalid_field(choice.path_of("name"), f"there is no tool {name!r:.60}")
            return NamedToolChoice(name)
        case choice_type:
            raise invalid_field(
                choice.path_of("type"),
                f"must be one of {quoted_list(_CHOICE_TYPES)}, got {choice_type!r:.40}",
            )


# ---- Options
# Anthropic's own settings keep their names; a provider of another family converts or drops them.

_HANDLED_FIELDS = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "stream",
        "max_tokens",
        "stop_sequences",
        "metadata",
        "extra_body",
    }
)


def parse_options(body: RequestFields, *, count_only: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the options and the names of dropped fields. `count_only`: max_tokens may be missing."""
    _check_types(body)
    options = {
        name: value for name, value in body.raw.items() if name not in _HANDLED_FIELDS and value is not None
    }
    limit = body.count("max_tokens")
    if limit is not None:
        options["max_tokens"] = limit
    elif not count_only:
        raise invalid_field(
            "max_tokens",
            "this field is required",
            hint="set it to the maximum number of tokens of the answer",
        )
    if body.has("stop_sequences"):
        options |= _parse_stop_sequences(body)
    if body.has("output_format"):
        options |= _parse_output_format(body, options.pop("output_format"))
    ignored = ["extra_body"] if body.raw.get("extra_body") else []
    if not body.has("metadata"):
        return options, ignored
    metadata = body.nested("metadata")
    if metadata.optional_text("user_id"):
        options["user"] = metadata.text("user_id")
    return options, [*ignored, *(metadata.path_of(name) for name in metadata.raw if name != "user_id")]


def _check_types(body: RequestFields) -> None:
    """Reject settings of the wrong type."""
    for name in ("temperature", "top_p"):
        body.number(name)
    for name in ("thinking", "output_config", "output_format", "context_management", "cache_control"):
        if body.has(name):
            body.nested(name)
    if body.has("thinking"):
        body.nested("thinking").text("type")
    body.count("top_k")
    body.optional_text("service_tier")


def _parse_output_format(body: RequestFields, output_format: Mapping[str, Any]) -> dict[str, Any]:
    """Return `output_config` with the format that beta clients send as `output_format`."""
    config = body.raw.get("output_config") or {}
    if config.get("format") not in (None, output_format):
        raise invalid_field("output_format", "differs from output_config.format", hint="send only one")
    return {"output_config": {**config, "format": output_format}}


def _parse_stop_sequences(body: RequestFields) -> dict[str, list[str]]:
    stops = body.items("stop_sequences")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            raise invalid_field(f"stop_sequences[{index}]", "must be a non-empty string")
    return {"stop": stops} if stops else {}
