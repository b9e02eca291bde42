"""The conversation that a caller passes to `spawn`, parsed and checked before any request is made.

Accepted are a text, messages as OpenAI's chat.completions takes them, the AI SDK's UI messages
`{"role": "user", "parts": [...]}`, and our own Message; mixed as needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, get_args

from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.ids import new_id
from dragoman.messages import FINAL_STATES, Message, Part, TextPart, ToolPart, parse_message
from dragoman.wire.openai.client_messages import parse_messages
from dragoman.wire.openai.field_reader import IgnoredFields

InputMessage: TypeAlias = Message | Mapping[str, Any]
InputMessages: TypeAlias = str | Sequence[InputMessage]
PART_TYPES = get_args(Part)
FORMAT_HINT = 'pass [{"role": "user", "content": "hi"}]'


def parse_conversation(messages: InputMessages) -> tuple[Message, ...]:
    """Return the messages. Raises BadRequest that names the invalid one; an empty conversation is invalid
    too.
    """
    items: Sequence[InputMessage] = (
        [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    )
    if isinstance(items, Mapping) or not isinstance(items, Sequence):
        raise BadRequest(
            f"messages must be a list, not {type(messages).__name__}", field="messages", hint=FORMAT_HINT
        )
    if not items:
        raise BadRequest("messages is empty: there is nothing to answer", field="messages", hint=FORMAT_HINT)
    read: list[Message] = []
    for in_openai_format, group in groupby(enumerate(items), key=lambda item: is_openai_format(item[1])):
        indexed = list(group)
        read += (
            read_openai_group(indexed)
            if in_openai_format
            else [read_message(message, f"messages[{index}]") for index, message in indexed]
        )
    for index, message in enumerate(read):
        check_not_empty(message, f"messages[{index}]")
    if all(message.role == "system" for message in read):
        raise BadRequest("messages contains instructions only; add a user message", field="messages")
    return tuple(read)


def split_open_answer(messages: Sequence[Message]) -> tuple[Sequence[Message], Message]:
    """Return the history and the answer: a new one, or the last message if it has open calls."""
    last = messages[-1]
    calls = [part for part in last.parts if isinstance(part, ToolPart)]
    if last.role == "assistant" and any(call.state not in FINAL_STATES for call in calls):
        return messages[:-1], last
    return messages, Message(new_id("msg"), "assistant")


def is_openai_format(message: InputMessage) -> bool:
    """Return whether a message is in OpenAI's format, without parts of ours."""
    if not isinstance(message, Mapping) or "parts" in message:
        return False
    content = message.get("content")
    return not (isinstance(content, list) and any(isinstance(part, (str, *PART_TYPES)) for part in content))


def read_openai_group(group: Sequence[tuple[int, InputMessage]]) -> list[Message]:
    """Return messages in OpenAI's format; they refer to each other, so they are read together."""
    first = group[0][0]
    try:
        parsed = parse_messages([message for _, message in group], IgnoredFields())
    except BadRequest as error:
        if not first:
            raise
        raise BadRequest(f"from messages[{first}] on: {error.message}", hint=error.hint) from None
    return [replace(message, id=new_id("msg")) for message in parsed]


def read_message(message: InputMessage, field: str) -> Message:
    """Return a UI message, one of ours, or one with a list of texts and parts as content."""
    if isinstance(message, Message):
        return message
    if not isinstance(message, Mapping):
        raise BadRequest(
            f"{field} must be a message, not {type(message).__name__}", field=field, hint=FORMAT_HINT
        )
    if "parts" in message:
        return parse_message({"id": new_id("msg"), **message}, field=field)
    content = message["content"]
    parts = [TextPart(part) if isinstance(part, str) else part for part in content]
    if any(not isinstance(part, PART_TYPES) for part in parts):
        raise BadRequest(
            f"{field}.content mixes our parts with those of other formats", field=f"{field}.content"
        )
    role = message.get("role")
    if role not in ("system", "user", "assistant"):
        raise BadRequest(f"{field}.role must be system, user or assistant, not {role!r}", field=field)
    return Message(new_id("msg"), role, tuple(parts))


def check_not_empty(message: Message, field: str) -> None:
    """Raise BadRequest for a user message without content."""
    content = [part for part in message.parts if not isinstance(part, TextPart) or part.text.strip()]
    if message.role == "user" and not content:
        raise BadRequest(f"{field} is empty: a user message needs content", field=field, hint=FORMAT_HINT)
