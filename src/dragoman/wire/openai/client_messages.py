"""Parse the messages of a chat.completions request to UI messages.

Each assistant message becomes one UI message, with its position as id (`messages[3]`); later tool messages
fill in the results of its calls. Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, Message, Part, ProviderMetadata, Role, ToolPart
from dragoman.wire.multimodal_outputs import write_multimodal_output
from dragoman.wire.openai.client_content import (
    ASSISTANT_KINDS,
    REASONING_FIELDS,
    TEXT_KINDS,
    USER_KINDS,
    ContentPart,
    parse_content,
    parse_reasoning,
    refusal_part,
    with_separate_thinking,
)
from dragoman.wire.openai.field_reader import (
    IgnoredFields,
    decode_body,
    describe_value,
    invalid_field,
    read_cache_control,
    read_list,
    read_nonempty_string,
    read_object,
    read_optional_string,
    with_cache_control,
)

_COMMON_FIELDS = ("role", "content", "cache_control", "prompt_cache_breakpoint")
_ROLE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "system": _COMMON_FIELDS,
    "developer": _COMMON_FIELDS,
    "user": _COMMON_FIELDS,
    "assistant": (*_COMMON_FIELDS, *REASONING_FIELDS, "refusal", "tool_calls", "function_call"),
    "tool": (*_COMMON_FIELDS, "tool_call_id", "name"),  # `name` repeats the tool's name
    "function": (*_COMMON_FIELDS, "name"),
}


def parse_messages(value: Any, ignored: IgnoredFields) -> tuple[Message, ...]:
    """Parse the conversation; BadRequest names the invalid message and field."""
    if value is None or value == []:
        raise BadRequest("messages must be a list with at least one message", field="messages")
    parser = _OpenAIMessageParser(ignored)
    for index, message in enumerate(read_list(value, "messages")):
        parser.add_message(read_object(message, f"messages[{index}]"), f"messages[{index}]")
    return parser.messages


class _OpenAIDraftMessage(msgspec.Struct):
    """A message whose calls may still get results."""

    id: str
    role: Role
    parts: list[Part]


class _CallPosition(msgspec.Struct):
    """The position of a call without a result."""

    message: _OpenAIDraftMessage
    index: int


class _OpenAIMessageParser:
    """Parses messages one by one and tracks the calls that wait for results."""

    def __init__(self, ignored: IgnoredFields) -> None:
        self._ignored = ignored
        self._drafts: list[_OpenAIDraftMessage] = []
        self._open_calls: dict[str, list[_CallPosition]] = {}  # by call id
        self._open_functions: list[_CallPosition] = []  # old function calls have no id

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages parsed so far."""
        return tuple(Message(draft.id, draft.role, tuple(draft.parts)) for draft in self._drafts)

    def add_message(self, message: Mapping[str, Any], field: str) -> None:
        """Add the next message."""
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLE_FIELDS:
            raise invalid_field(role, f"{field}.role", expected=f"one of {', '.join(_ROLE_FIELDS)}")
        self._ignored.add_unknown(message, _ROLE_FIELDS[role], field="messages[]")
        match role:
            case "assistant":
                self._add_assistant(message, field)
            case "tool":
                self._add_result(self._find_call(message, field), message, field=field)
            case "function":
                self._add_result(self._find_function(message, field), message, field=field)
            case "user":
                self._drafts.append(_OpenAIDraftMessage(field, "user", self._parse_content(message, field)))
            case _:
                self._drafts.append(_OpenAIDraftMessage(field, "system", self._parse_content(message, field)))

    def _parse_content(self, message: Mapping[str, Any], field: str) -> list[Any]:
        kinds = USER_KINDS if message["role"] == "user" else TEXT_KINDS
        parts = parse_content(message.get("content"), f"{field}.content", kinds=kinds, ignored=self._ignored)
        return with_cache_control(parts, read_cache_control(message, field))

    def _add_assistant(self, message: Mapping[str, Any], field: str) -> None:
        message = with_separate_thinking(message)
        content = message.get("content")
        content = _transcript(message) if content is None else content
        parts: list[ContentPart] = []
        if content is not None:
            parts = parse_content(content, f"{field}.content", kinds=ASSISTANT_KINDS, ignored=self._ignored)
        refusal_text = read_optional_string(message.get("refusal"), f"{field}.refusal")
        if refusal_text:
            parts.append(refusal_part(refusal_text))
        content_parts = with_cache_control(parts, read_cache_control(message, field))
        draft = _OpenAIDraftMessage(field, "assistant", [*parse_reasoning(message, field), *content_parts])
        self._drafts.append(draft)
        calls = read_list(message.get("tool_calls"), f"{field}.tool_calls")
        new_calls: dict[str, list[_CallPosition]] = {}
        for index, call in enumerate(calls):
            part = _parse_call(call, f"{field}.tool_calls[{index}]", ignored=self._ignored)
            new_calls.setdefault(part.tool_call_id, []).append(_CallPosition(draft, len(draft.parts)))
            draft.parts.append(part)
        self._open_calls |= new_calls  # a reused id refers to the newest call
        function_call = message.get("function_call")
        if function_call is not None:
            self._open_functions.append(_CallPosition(draft, len(draft.parts)))
            draft.parts.append(_parse_function_call(function_call, f"{field}.function_call"))

    def _find_call(self, message: Mapping[str, Any], field: str) -> _CallPosition:
        field = f"{field}.tool_call_id"
        id = read_nonempty_string(message.get("tool_call_id"), field)
        waiting = self._open_calls.get(id)
        if not waiting:
            raise BadRequest(
                f"{field}: no earlier assistant message has an open tool call {describe_value(id)}",
                field=field,
            )
        return waiting.pop(0)

    def _find_function(self, message: Mapping[str, Any], field: str) -> _CallPosition:
        field = f"{field}.name"
        function_name = read_nonempty_string(message.get("name"), field)
        for index in range(len(self._open_functions) - 1, -1, -1):
            call = self._open_functions[index]
            part = call.message.parts[call.index]
            if isinstance(part, ToolPart) and part.name == function_name:
                return self._open_functions.pop(index)
        raise BadRequest(
            f"{field}: there is no earlier open function call {describe_value(function_name)}",
            field=field,
        )

    def _add_result(self, call: _CallPosition, message: Mapping[str, Any], *, field: str) -> None:
        content = message.get("content")
        parts: list[ContentPart] = []
        if content is not None:
            parts = parse_content(content, f"{field}.content", kinds=USER_KINDS, ignored=self._ignored)
        cache_controls = [read_cache_control(message, field), *(_cache_control_of(part) for part in parts)]
        part = call.message.parts[call.index]
        if isinstance(part, ToolPart):
            call.message.parts[call.index] = replace(
                part,
                state="output-available",
                output=_tool_output(parts),
                result_provider_metadata=next(filter(None, reversed(cache_controls)), None),
            )


def _transcript(message: Mapping[str, Any]) -> str | None:
    """Return the text of a spoken answer, which clients that send it back whole have beside its sound."""
    audio = message.get("audio")
    transcript = audio.get("transcript") if isinstance(audio, Mapping) else None
    return transcript if isinstance(transcript, str) and transcript else None


def _cache_control_of(part: ContentPart) -> ProviderMetadata | None:
    cache_metadata = {
        name: values for name, values in (part.provider_metadata or {}).items() if name == "anthropic"
    }
    return cache_metadata or None


def _tool_output(parts: list[ContentPart]) -> Any:
    """Return the text of an output; with files, its parts in order."""
    if any(isinstance(part, FilePart) for part in parts):
        return write_multimodal_output(parts)
    return "\n".join(part.text for part in parts if not isinstance(part, FilePart))


def _parse_call(value: Any, field: str, *, ignored: IgnoredFields) -> ToolPart:
    call = read_object(value, field)
    if call.get("type") not in (None, "function"):
        raise BadRequest(
            f"{field}.type must be 'function', got {describe_value(call['type'])}",
            field=f"{field}.type",
            hint="custom tools are supported by OpenAI's own API only",
        )
    supported = (
        "id",
        "type",
        "function",
        "index",
        "extra_content",
        "cache_control",
        "prompt_cache_breakpoint",
    )
    ignored.add_unknown(call, supported, field="messages[].tool_calls[]")
    metadata: ProviderMetadata = {**(read_cache_control(call, field) or {})}
    if call.get("extra_content"):
        metadata["openai"] = {"extra_content": call["extra_content"]}
    id = read_nonempty_string(call.get("id"), f"{field}.id")
    return _call_part(call.get("function"), f"{field}.function", id=id, metadata=metadata or None)


def _parse_function_call(value: Any, field: str) -> ToolPart:
    """Parse an old `function_call`; its id is made from its position."""
    position = "".join(character for character in field if character.isdecimal())
    return _call_part(value, field, id=f"function_call_{position}", metadata=None)


def _call_part(value: Any, field: str, *, id: str, metadata: ProviderMetadata | None) -> ToolPart:
    function = read_object(value, field)
    function_name = read_nonempty_string(function.get("name"), f"{field}.name")
    arguments = function.get("arguments")
    part = ToolPart(f"tool-{function_name}", id, "input-available", input={}, call_provider_metadata=metadata)
    if isinstance(arguments, dict):
        return replace(part, input=arguments)
    arguments_text = read_optional_string(arguments, f"{field}.arguments")
    if arguments_text.strip() in ("", "null", "{}"):
        return part
    try:
        parsed = decode_body(arguments_text.encode())
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        # Keep what the model wrote as `raw_input`: providers would reject it as input.
        return replace(part, raw_input=arguments_text)
    return replace(part, input=parsed)
