"""Messages in: the conversation of a chat.completions request as UI messages.

An assistant message is one UI message, named after its place (`messages[3]`); the tool messages behind it
are filled into its calls. Source: wire notes on providers, §4.1 and §10.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, Message, Part, ProviderMetadata, Role, ToolPart
from dragoman.wire.openai.client_content import (
    ASSISTANT_KINDS,
    REASONING_FIELDS,
    TEXT_KINDS,
    USER_KINDS,
    ContentPart,
    parse_content,
    parse_reasoning,
    refusal_part,
)
from dragoman.wire.openai.client_fields import (
    IgnoredFields,
    decode_json,
    describe_value,
    invalid_field,
    read_cache_control,
    read_list,
    read_nonempty_string,
    read_object,
    read_optional_string,
    with_cache_control,
)
from dragoman.wire.tool_outputs import write_multimodal_output

_COMMON_FIELDS = ("role", "content", "cache_control", "prompt_cache_breakpoint")
_ROLE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "system": _COMMON_FIELDS,
    "developer": _COMMON_FIELDS,
    "user": _COMMON_FIELDS,
    "assistant": (*_COMMON_FIELDS, *REASONING_FIELDS, "refusal", "tool_calls", "function_call"),
    "tool": (*_COMMON_FIELDS, "tool_call_id", "name"),  # the name is that of the call's tool
    "function": (*_COMMON_FIELDS, "name"),
}


def parse_messages(value: Any, ignored: IgnoredFields) -> tuple[Message, ...]:
    """The conversation; BadRequest names the message and field that is wrong."""
    if value is None or value == []:
        raise BadRequest("messages must be a list with at least one message", field="messages")
    history = _OpenAIMessageParser(ignored)
    for index, message in enumerate(read_list(value, "messages")):
        history.add_message(read_object(message, f"messages[{index}]"), f"messages[{index}]")
    return history.messages


class _OpenAIDraftMessage(msgspec.Struct):
    """A message that may still get the results of its calls."""

    id: str
    role: Role
    parts: list[Part]


class _CallPosition(msgspec.Struct):
    """Where a call without a result stands."""

    message: _OpenAIDraftMessage
    index: int


class _OpenAIMessageParser:
    """Reads messages one by one and remembers the calls that wait for their results."""

    def __init__(self, ignored: IgnoredFields) -> None:
        self._ignored = ignored
        self._drafts: list[_OpenAIDraftMessage] = []
        self._open_calls: dict[str, list[_CallPosition]] = {}  # by the call's id
        self._open_functions: list[_CallPosition] = []  # the same for calls of the old kind, which have none

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was read."""
        return tuple(Message(turn.id, turn.role, tuple(turn.parts)) for turn in self._drafts)

    def add_message(self, message: Mapping[str, Any], field: str) -> None:
        """Take the next message."""
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
        read = parse_content(message.get("content"), f"{field}.content", kinds=kinds, ignored=self._ignored)
        return with_cache_control(read, read_cache_control(message, field))

    def _add_assistant(self, message: Mapping[str, Any], field: str) -> None:
        content = message.get("content")
        said: list[ContentPart] = []
        if content is not None:
            said = parse_content(content, f"{field}.content", kinds=ASSISTANT_KINDS, ignored=self._ignored)
        refused = read_optional_string(message.get("refusal"), f"{field}.refusal")
        if refused:
            said.append(refusal_part(refused))
        spoken = with_cache_control(said, read_cache_control(message, field))
        turn = _OpenAIDraftMessage(field, "assistant", [*parse_reasoning(message, field), *spoken])
        self._drafts.append(turn)
        calls = read_list(message.get("tool_calls"), f"{field}.tool_calls")
        begun: dict[str, list[_CallPosition]] = {}
        for index, call in enumerate(calls):
            part = _parse_call(call, f"{field}.tool_calls[{index}]", ignored=self._ignored)
            begun.setdefault(part.tool_call_id, []).append(_CallPosition(turn, len(turn.parts)))
            turn.parts.append(part)
        self._open_calls |= begun  # an id that is used again is the new call's
        called = message.get("function_call")
        if called is not None:
            self._open_functions.append(_CallPosition(turn, len(turn.parts)))
            turn.parts.append(_parse_function_call(called, f"{field}.function_call"))

    def _find_call(self, message: Mapping[str, Any], field: str) -> _CallPosition:
        field = f"{field}.tool_call_id"
        id = read_nonempty_string(message.get("tool_call_id"), field)
        waiting = self._open_calls.get(id)
        if not waiting:
            raise BadRequest(
                f"{field}: no assistant message before it has a tool "
                f"call {describe_value(id)} that waits for a result",
                field=field,
            )
        return waiting.pop(0)

    def _find_function(self, message: Mapping[str, Any], field: str) -> _CallPosition:
        field = f"{field}.name"
        called = read_nonempty_string(message.get("name"), field)
        for place in range(len(self._open_functions) - 1, -1, -1):
            call = self._open_functions[place]
            part = call.message.parts[call.index]
            if isinstance(part, ToolPart) and part.name == called:
                return self._open_functions.pop(place)
        raise BadRequest(
            f"{field}: no function call {describe_value(called)} before it waits for a result", field=field
        )

    def _add_result(self, call: _CallPosition, message: Mapping[str, Any], *, field: str) -> None:
        content = message.get("content")
        said: list[ContentPart] = []
        if content is not None:
            said = parse_content(content, f"{field}.content", kinds=USER_KINDS, ignored=self._ignored)
        marks = [read_cache_control(message, field), *(_cache_control_of(part) for part in said)]
        part = call.message.parts[call.index]
        if isinstance(part, ToolPart):
            call.message.parts[call.index] = replace(
                part,
                state="output-available",
                output=_tool_output(said),
                result_provider_metadata=next(filter(None, reversed(marks)), None),
            )


def _cache_control_of(part: ContentPart) -> ProviderMetadata | None:
    marks = {name: held for name, held in (part.provider_metadata or {}).items() if name == "anthropic"}
    return marks or None


def _tool_output(parts: list[ContentPart]) -> Any:
    """A text, as most tools give; with files the pieces in order."""
    if any(isinstance(part, FilePart) for part in parts):
        return write_multimodal_output(parts)
    return "\n".join(part.text for part in parts if not isinstance(part, FilePart))


def _parse_call(value: Any, field: str, *, ignored: IgnoredFields) -> ToolPart:
    call = read_object(value, field)
    if call.get("type") not in (None, "function"):
        raise BadRequest(
            f"{field}.type must be 'function', got {describe_value(call['type'])}",
            field=f"{field}.type",
            hint="calls of custom tools have no counterpart with other providers",
        )
    known = ("id", "type", "function", "index", "extra_content", "cache_control", "prompt_cache_breakpoint")
    ignored.add_unknown(call, known, field="messages[].tool_calls[]")
    metadata: ProviderMetadata = {**(read_cache_control(call, field) or {})}
    if call.get("extra_content"):
        metadata["openai"] = {"extra_content": call["extra_content"]}
    id = read_nonempty_string(call.get("id"), f"{field}.id")
    return _call_part(call.get("function"), f"{field}.function", id=id, metadata=metadata or None)


def _parse_function_call(value: Any, field: str) -> ToolPart:
    """A call of the old kind; it gets an id after its place."""
    place = "".join(character for character in field if character.isdecimal())
    return _call_part(value, field, id=f"function_call_{place}", metadata=None)


def _call_part(value: Any, field: str, *, id: str, metadata: ProviderMetadata | None) -> ToolPart:
    function = read_object(value, field)
    called = read_nonempty_string(function.get("name"), f"{field}.name")
    arguments = function.get("arguments")
    part = ToolPart(f"tool-{called}", id, "input-available", input={}, call_provider_metadata=metadata)
    if isinstance(arguments, dict):
        return replace(part, input=arguments)
    written = read_optional_string(arguments, f"{field}.arguments")
    if written.strip() in ("", "null", "{}"):
        return part
    try:
        read = decode_json(written.encode())
    except ValueError:
        read = None
    if not isinstance(read, dict):
        return replace(part, raw_input=written)  # what the model wrote is not lost, but no provider takes it
    return replace(part, input=read)
