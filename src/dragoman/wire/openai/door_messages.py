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
from dragoman.wire.openai.door_fields import (
    Ignored,
    cache_mark,
    decode,
    listing,
    mapping,
    marked,
    name,
    show,
    text,
    wrong,
)
from dragoman.wire.openai.door_parts import (
    ANY,
    FIELDS,
    SPOKEN,
    TEXTS,
    Said,
    read_content,
    read_thoughts,
    refusal,
)
from dragoman.wire.outputs import with_files

_ANY = ("role", "content", "cache_control", "prompt_cache_breakpoint")
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "system": _ANY,
    "developer": _ANY,
    "user": _ANY,
    "assistant": (*_ANY, *FIELDS, "refusal", "tool_calls", "function_call"),
    "tool": (*_ANY, "tool_call_id", "name"),  # the name is that of the call's tool
    "function": (*_ANY, "name"),
}


def read_messages(value: Any, ignored: Ignored) -> tuple[Message, ...]:
    """The conversation; BadRequest names the message and field that is wrong."""
    if value is None or value == []:
        raise BadRequest("messages must be a list with at least one message", field="messages")
    history = _History(ignored)
    for index, message in enumerate(listing(value, "messages")):
        history.add(mapping(message, f"messages[{index}]"), f"messages[{index}]")
    return history.messages


class _Turn(msgspec.Struct):
    """A message that may still get the results of its calls."""

    id: str
    role: Role
    parts: list[Part]


class _Call(msgspec.Struct):
    """Where a call without a result stands."""

    turn: _Turn
    place: int


class _History:
    """Reads messages one by one and remembers the calls that wait for their results."""

    def __init__(self, ignored: Ignored) -> None:
        self._ignored = ignored
        self._turns: list[_Turn] = []
        self._waiting: dict[str, list[_Call]] = {}  # by the call's id
        self._functions: list[_Call] = []  # the same for calls of the old kind, which have none

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was read."""
        return tuple(Message(turn.id, turn.role, tuple(turn.parts)) for turn in self._turns)

    def add(self, message: Mapping[str, Any], field: str) -> None:
        """Take the next message."""
        role = message.get("role")
        if not isinstance(role, str) or role not in _KNOWN:
            raise wrong(role, f"{field}.role", wanted=f"one of {', '.join(_KNOWN)}")
        self._ignored.rest(message, _KNOWN[role], field="messages[]")
        match role:
            case "assistant":
                self._assistant(message, field)
            case "tool":
                self._answer(self._find(message, field), message, field=field)
            case "function":
                self._answer(self._find_function(message, field), message, field=field)
            case "user":
                self._turns.append(_Turn(field, "user", self._content(message, field)))
            case _:
                self._turns.append(_Turn(field, "system", self._content(message, field)))

    def _content(self, message: Mapping[str, Any], field: str) -> list[Any]:
        kinds = ANY if message["role"] == "user" else TEXTS
        read = read_content(message.get("content"), f"{field}.content", kinds=kinds, ignored=self._ignored)
        return marked(read, cache_mark(message, field))

    def _assistant(self, message: Mapping[str, Any], field: str) -> None:
        content = message.get("content")
        said: list[Said] = []
        if content is not None:
            said = read_content(content, f"{field}.content", kinds=SPOKEN, ignored=self._ignored)
        refused = text(message.get("refusal"), f"{field}.refusal")
        if refused:
            said.append(refusal(refused))
        spoken = marked(said, cache_mark(message, field))
        turn = _Turn(field, "assistant", [*read_thoughts(message, field), *spoken])
        self._turns.append(turn)
        calls = listing(message.get("tool_calls"), f"{field}.tool_calls")
        begun: dict[str, list[_Call]] = {}
        for index, call in enumerate(calls):
            part = _call(call, f"{field}.tool_calls[{index}]", ignored=self._ignored)
            begun.setdefault(part.tool_call_id, []).append(_Call(turn, len(turn.parts)))
            turn.parts.append(part)
        self._waiting |= begun  # an id that is used again is the new call's
        called = message.get("function_call")
        if called is not None:
            self._functions.append(_Call(turn, len(turn.parts)))
            turn.parts.append(_function_call(called, f"{field}.function_call"))

    def _find(self, message: Mapping[str, Any], field: str) -> _Call:
        field = f"{field}.tool_call_id"
        id = name(message.get("tool_call_id"), field)
        waiting = self._waiting.get(id)
        if not waiting:
            raise BadRequest(
                f"{field}: no assistant message before it has a tool call {show(id)} that waits for a result",
                field=field,
            )
        return waiting.pop(0)

    def _find_function(self, message: Mapping[str, Any], field: str) -> _Call:
        field = f"{field}.name"
        called = name(message.get("name"), field)
        for place in range(len(self._functions) - 1, -1, -1):
            call = self._functions[place]
            part = call.turn.parts[call.place]
            if isinstance(part, ToolPart) and part.name == called:
                return self._functions.pop(place)
        raise BadRequest(
            f"{field}: no function call {show(called)} before it waits for a result", field=field
        )

    def _answer(self, call: _Call, message: Mapping[str, Any], *, field: str) -> None:
        content = message.get("content")
        said: list[Said] = []
        if content is not None:
            said = read_content(content, f"{field}.content", kinds=ANY, ignored=self._ignored)
        marks = [cache_mark(message, field), *(_mark(part) for part in said)]
        part = call.turn.parts[call.place]
        if isinstance(part, ToolPart):
            call.turn.parts[call.place] = replace(
                part,
                state="output-available",
                output=_output(said),
                result_provider_metadata=next(filter(None, reversed(marks)), None),
            )


def _mark(part: Said) -> ProviderMetadata | None:
    marks = {name: held for name, held in (part.provider_metadata or {}).items() if name == "anthropic"}
    return marks or None


def _output(said: list[Said]) -> Any:
    """A text, as most tools give; with files the pieces in order."""
    if any(isinstance(part, FilePart) for part in said):
        return with_files(said)
    return "\n".join(part.text for part in said if not isinstance(part, FilePart))


def _call(value: Any, field: str, *, ignored: Ignored) -> ToolPart:
    call = mapping(value, field)
    if call.get("type") not in (None, "function"):
        raise BadRequest(
            f"{field}.type must be 'function', got {show(call['type'])}",
            field=f"{field}.type",
            hint="calls of custom tools have no counterpart with other providers",
        )
    known = ("id", "type", "function", "index", "extra_content", "cache_control", "prompt_cache_breakpoint")
    ignored.rest(call, known, field="messages[].tool_calls[]")
    metadata: ProviderMetadata = {**(cache_mark(call, field) or {})}
    if call.get("extra_content"):
        metadata["openai"] = {"extra_content": call["extra_content"]}
    id = name(call.get("id"), f"{field}.id")
    return _called(call.get("function"), f"{field}.function", id=id, metadata=metadata or None)


def _function_call(value: Any, field: str) -> ToolPart:
    """A call of the old kind; it gets an id after its place."""
    place = "".join(character for character in field if character.isdecimal())
    return _called(value, field, id=f"function_call_{place}", metadata=None)


def _called(value: Any, field: str, *, id: str, metadata: ProviderMetadata | None) -> ToolPart:
    function = mapping(value, field)
    called = name(function.get("name"), f"{field}.name")
    arguments = function.get("arguments")
    part = ToolPart(f"tool-{called}", id, "input-available", input={}, call_provider_metadata=metadata)
    if isinstance(arguments, dict):
        return replace(part, input=arguments)
    written = text(arguments, f"{field}.arguments")
    if written.strip() in ("", "null", "{}"):
        return part
    try:
        read = decode(written.encode())
    except ValueError:
        read = None
    if not isinstance(read, dict):
        return replace(part, raw_input=written)  # what the model wrote is not lost, but no provider takes it
    return replace(part, input=read)
