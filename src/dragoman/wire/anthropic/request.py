"""Anthropic's Messages request out: a model request as a body, the same bytes for the same request.

Source: wire notes on providers, §6 and §10.1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool, ToolChoice
from dragoman.wire.anthropic.capabilities import (
    FAMILY,
    ModelCapabilities,
    cache_control_field,
    model_capabilities,
)
from dragoman.wire.anthropic.messages import AnthropicConversation, safe_tool_name, write_messages
from dragoman.wire.anthropic.options import AnthropicOptions
from dragoman.wire.openai.messages import mapping_enc_hook
from dragoman.wire.openai.options import extra_body_fields

# ---- Caching: where the marks go by which Anthropic keeps the beginning of a request for the next one.
# A mark says that all before it may be kept, in the order tools, system, messages. There are at most four:
# behind the tools, behind the system, behind the newest message, and where the request before this one ended,
# so that what it wrote is found again however much an answer has added. Nothing but the marks ever moves.

MAX_BREAKPOINTS = 4
_CACHE_CONTROL = "cache_control"
_UNCACHEABLE_TYPES = frozenset({"thinking", "redacted_thinking"})
_SETTINGS_FIELDS = ("tool_choice", "thinking", "output_config", "speed")


class PromptPrefix(msgspec.Struct, frozen=True):
    """The fingerprints of what a request began with: what the provider looks for in its cache."""

    tools: bytes
    system: bytes
    settings: bytes
    blocks: tuple[bytes, ...]

    def first_difference(self, previous: PromptPrefix) -> str | None:
        """What has changed since the request before, so that its cache is of no use; None if nothing has."""
        if self.tools != previous.tools:
            return "tools"
        if self.system != previous.system:
            return "system"
        if self.settings != previous.settings:
            return "settings"
        return None if self.blocks[: len(previous.blocks)] == previous.blocks else "messages"


def add_cache_breakpoints(body: Mapping[str, Any], cache_control: Mapping[str, Any]) -> None:
    """Mark the blocks of a body behind which it is to be kept; marks that are there already count."""
    spare = MAX_BREAKPOINTS - sum(_CACHE_CONTROL in block for block in _all_blocks(body))
    for block in _breakpoint_blocks(body):
        if spare <= 0:
            return
        if _CACHE_CONTROL not in block:
            block[_CACHE_CONTROL] = dict(cache_control)
            spare -= 1


def prompt_prefix(body: Mapping[str, Any]) -> PromptPrefix:
    """The fingerprints of a body. Marks do not count."""
    messages = body.get("messages", ())
    return PromptPrefix(
        _digest([_without_cache_control(tool) for tool in body.get("tools", ())]),
        _digest([_without_cache_control(block) for block in body.get("system", ())]),
        _digest({name: body.get(name) for name in _SETTINGS_FIELDS}),
        tuple(
            _digest([said["role"], _without_cache_control(block)])
            for said in messages
            for block in said["content"]
        ),
    )


def _breakpoint_blocks(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The blocks to mark, the most useful first."""
    messages: Sequence[Mapping[str, Any]] = body.get("messages", ())
    last = [messages[-1]] if messages else []
    asked = [message for message in messages[:-1] if message["role"] == "user"]
    lists = [message["content"] for message in last]
    lists += [body.get("system", ()), body.get("tools", ())]
    lists += [message["content"] for message in asked[-1:]]
    for blocks in lists:
        yield from [block for block in blocks if block.get("type") not in _UNCACHEABLE_TYPES][-1:]


def _all_blocks(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from body.get("tools", ())
    yield from body.get("system", ())
    for message in body.get("messages", ()):
        yield from message["content"]


def _without_cache_control(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != _CACHE_CONTROL}


def _digest(value: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, enc_hook=mapping_enc_hook)).digest()[:12]


# ---- Tools and the choice among them, as Anthropic's API takes them.
# Source: wire notes on providers, §6.2 and §10.1.

_TOOL_METADATA_FIELDS = {
    "allowed_callers": "allowedCallers",
    "defer_loading": "deferLoading",
    "eager_input_streaming": "eagerInputStreaming",
    "input_examples": "inputExamples",
}
_CHOICE_TYPES = {"auto": "auto", "none": "none", "required": "any"}


def write_tools(request: ModelRequest, *, can_force: bool, drop: Collection[str]) -> dict[str, Any]:
    """The fields `tools` and `tool_choice`. `forcing`: a call may be demanded; else it is only allowed."""
    if not request.tools:
        return {}
    written: dict[str, Any] = {
        "tools": [_write_tool(tool, strict="strict" not in drop) for tool in request.tools]
    }
    single = request.options.get("parallel_tool_calls") is False
    choice = request.tool_choice
    if "tool_choice" in drop or (choice is None and not single):
        return written
    wanted = _write_tool_choice(
        "auto" if choice is None or (forces_call(choice) and not can_force) else choice
    )
    if single and wanted["type"] != "none":
        wanted["disable_parallel_tool_use"] = True
    return {**written, "tool_choice": wanted}


def forces_call(choice: ToolChoice | None) -> bool:
    """Whether the choice demands a call."""
    return isinstance(choice, NamedToolChoice) or choice == "required"


def _write_tool(tool: Tool, *, strict: bool) -> dict[str, Any]:
    written: dict[str, Any] = {"name": safe_tool_name(tool.name)}
    if tool.description:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", "properties": {}, **tool.input_schema}
    if tool.strict is not None and strict:
        written["strict"] = tool.strict
    own: Mapping[str, Any] = (tool.metadata or {}).get(FAMILY, {})
    extras = {name: own[word] for name, word in _TOOL_METADATA_FIELDS.items() if own.get(word) is not None}
    return {**written, **extras, **cache_control_field(tool.metadata)}


def _write_tool_choice(choice: ToolChoice) -> dict[str, Any]:
    if isinstance(choice, NamedToolChoice):
        return {"type": "tool", "name": safe_tool_name(choice.name)}
    return {"type": _CHOICE_TYPES[choice]}


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
    """The body as JSON; see `write_request`."""
    return encode_body(
        write_request(request, provider=provider, max_tokens=max_tokens, stream=stream, drop=drop)
    )


def encode_body(body: Mapping[str, Any]) -> bytes:
    """A body as JSON."""
    return msgspec.json.encode(body, enc_hook=mapping_enc_hook)


def write_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    max_tokens: int | None = None,
    stream: bool = True,
    drop: Collection[str] = (),
) -> dict[str, Any]:
    """The body; BadRequest for what can neither be said to Anthropic nor left out.

    `provider` names the one that is asked: what it gave to be sent back (signatures) is. `max_tokens` holds
    when the request has no limit; thinking by a budget comes on top. `drop` names fields that the server has
    refused, as `rejected_field` tells them.
    """
    history, options = _write_messages_and_options(
        request, provider=provider, max_tokens=max_tokens, drop=drop
    )
    if not history.messages:
        raise BadRequest(
            "there is no message to answer: Anthropic needs one beside the system's", field="messages"
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
    """The names of what is left out of the request; BadRequest for what cannot be.

    They are options, and `<message id>.file` for files that an assistant made: Anthropic does not take them.
    """
    history, options = _write_messages_and_options(request, provider=provider, max_tokens=None, drop=())
    names = {*options.dropped_fields, *history.dropped_fields}
    if forces_call(request.tool_choice) and not _can_force_tool(model_capabilities(request.model), options):
        names.add("tool_choice")
    return sorted(names)


def rejected_field(message: str) -> str | None:
    """The field that a 400's message names and a request can do without; None when there is none such.

    A wrong value is the client's to mend: it gets no field.
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
    """Whether the last thing that the model said are calls without signed thinking before them."""
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    if last is None or not any(block["type"] == "tool_use" for block in last["content"]):
        return False
    return last["content"][0]["type"] not in ("thinking", "redacted_thinking")
