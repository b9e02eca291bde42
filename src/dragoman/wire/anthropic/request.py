"""Encode a model request as a Messages body; the same request gives the same bytes.

Source: wire notes on providers, §6 and §10.1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool, ToolChoice
from dragoman.wire.anthropic.capabilities import ModelCapabilities, model_capabilities
from dragoman.wire.anthropic.messages import AnthropicConversation, safe_tool_name, write_messages
from dragoman.wire.anthropic.options import AnthropicOptions
from dragoman.wire.anthropic.prompt_cache import add_cache_breakpoints
from dragoman.wire.anthropic.provider_metadata import FAMILY, cache_control_field
from dragoman.wire.json_codec import encode_body
from dragoman.wire.openai.options import extra_body_fields

_REJECTION_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), field)
    for pattern, field in (
        (r"temperature\W+and\W+top_p|top_p\W+and\W+temperature", "top_p"),
        (r"\btool_choice\b", "tool_choice"),
        (r"\btemperature\b", "temperature"),
        (r"\btop_p\b", "top_p"),
        (r"\btop_k\b", "top_k"),
        (r"\boutput_config\.format\b|\boutput_format\b|structured outputs?\b", "format"),
        (r"\beffort\b", "effort"),
        (r"\bthinking\b", "thinking"),
        (r"\boutput_config\b", "output_config"),
        (r"\bservice_tier\b", "service_tier"),
        (r"^tools\.\d+\.(custom\.)?strict\b", "strict"),
    )
)
_INVALID_VALUE = re.compile(
    r"input should be|must be (greater|less|at least|at most)|(greater|less) than or|required|not found",
    re.IGNORECASE,
)
_ABOUT_MESSAGES = re.compile(r"^messages\b(?!.*expected\W+thinking)", re.IGNORECASE | re.DOTALL)


def encode_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    max_tokens: int | None = None,
    stream: bool = True,
    drop: Collection[str] = (),
) -> bytes:
    """Encode the body as JSON; see `write_request`."""
    return encode_body(
        write_request(request, provider=provider, max_tokens=max_tokens, stream=stream, drop=drop)
    )


def write_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    max_tokens: int | None = None,
    stream: bool = True,
    drop: Collection[str] = (),
) -> dict[str, Any]:
    """Build the body. Raises BadRequest for what Anthropic does not support and cannot be dropped.

    `provider` names the provider that is called: opaque parts that it sent (signatures) are included.
    `max_tokens` applies if the request has no limit; a thinking budget is added to it. `drop` names fields
    that the server rejected (see `rejected_field`).
    """
    history, options = _write_messages_and_options(
        request, provider=provider, max_tokens=max_tokens, drop=drop
    )
    if not history.messages:
        raise BadRequest(
            "messages has no user or assistant message; Anthropic requires one besides the system message",
            field="messages",
        )
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": options.fields.pop("max_tokens"),
        "stream": stream,
    }
    system = [*history.system, *({"type": "text", "text": text} for text in options.system_texts)]
    if system:
        body["system"] = system
    body |= write_tools(
        request, can_force=_can_force_tool(model_capabilities(request.model), options), drop=drop
    )
    body["messages"] = history.messages
    if options.cache_control is not None:
        add_cache_breakpoints(body, options.cache_control)
    for name in sorted(options.fields):
        body[name] = options.fields[name]
    return body | extra_body_fields(request.options, body)


def check_request(request: ModelRequest, *, provider: str | None = None) -> Sequence[str]:
    """Return the names of what is dropped from the request. Raises BadRequest for what cannot be.

    They are options, and `<message id>.file` for files of an assistant message, which Anthropic does not
    accept.
    """
    history, options = _write_messages_and_options(request, provider=provider, max_tokens=None, drop=())
    names = {*options.dropped_fields, *history.dropped_fields}
    if forces_call(request.tool_choice) and not _can_force_tool(model_capabilities(request.model), options):
        names.add("tool_choice")
    return sorted(names)


def rejected_field(message: str) -> str | None:
    """Return the field that a 400's message names and a request can do without; None if there is none.

    An invalid value is the client's to correct and gives None.
    """
    if _ABOUT_MESSAGES.search(message) or _INVALID_VALUE.search(message):
        return None
    return next((field for pattern, field in _REJECTION_PATTERNS if pattern.search(message)), None)


def _write_messages_and_options(
    request: ModelRequest, *, provider: str | None, max_tokens: int | None, drop: Collection[str]
) -> tuple[AnthropicConversation, AnthropicOptions]:
    history = write_messages(request.messages, instructions=request.instructions, provider=provider)
    model = model_capabilities(request.model)
    options = AnthropicOptions(
        request.options,
        model,
        max_tokens=model.default_max_tokens if max_tokens is None else max_tokens,
        unsigned_calls=_ends_in_unsigned_calls(history.messages),
        drop=drop,
    )
    return history, options


def _can_force_tool(model: ModelCapabilities, options: AnthropicOptions) -> bool:
    return model.forced_tool_choice and not options.uses_thinking_budget


def _ends_in_unsigned_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the model's last message has calls without signed thinking before them."""
    answer = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    if answer is None or not any(block["type"] == "tool_use" for block in answer["content"]):
        return False
    return answer["content"][0]["type"] not in ("thinking", "redacted_thinking")


# ---- Tools and the tool choice

_TOOL_METADATA_FIELDS = {
    "allowed_callers": "allowedCallers",
    "defer_loading": "deferLoading",
    "eager_input_streaming": "eagerInputStreaming",
    "input_examples": "inputExamples",
}
_CHOICE_TYPES = {"auto": "auto", "none": "none", "required": "any"}


def write_tools(request: ModelRequest, *, can_force: bool, drop: Collection[str]) -> dict[str, Any]:
    """Return `tools` and `tool_choice`. Without `can_force`, a required call is only allowed."""
    if not request.tools:
        return {}
    fields: dict[str, Any] = {
        "tools": [_write_tool(tool, strict="strict" not in drop) for tool in request.tools]
    }
    one_call_only = request.options.get("parallel_tool_calls") is False
    choice = request.tool_choice
    if "tool_choice" in drop or (choice is None and not one_call_only):
        return fields
    tool_choice = _write_tool_choice(
        "auto" if choice is None or (forces_call(choice) and not can_force) else choice
    )
    if one_call_only and tool_choice["type"] != "none":
        tool_choice["disable_parallel_tool_use"] = True
    return {**fields, "tool_choice": tool_choice}


def forces_call(choice: ToolChoice | None) -> bool:
    """Return whether the choice requires a call."""
    return isinstance(choice, NamedToolChoice) or choice == "required"


def _write_tool(tool: Tool, *, strict: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": safe_tool_name(tool.name)}
    if tool.description:
        fields["description"] = tool.description
    fields["input_schema"] = {"type": "object", "properties": {}, **tool.input_schema}
    if tool.strict is not None and strict:
        fields["strict"] = tool.strict
    metadata: Mapping[str, Any] = (tool.metadata or {}).get(FAMILY, {})
    extras = {
        name: metadata[key] for name, key in _TOOL_METADATA_FIELDS.items() if metadata.get(key) is not None
    }
    return {**fields, **extras, **cache_control_field(tool.metadata)}


def _write_tool_choice(choice: ToolChoice) -> dict[str, Any]:
    if isinstance(choice, NamedToolChoice):
        return {"type": "tool", "name": safe_tool_name(choice.name)}
    return {"type": _CHOICE_TYPES[choice]}
