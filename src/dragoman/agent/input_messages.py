"""Conversations: what a caller gives as messages, read and checked before anything is asked.

Taken are a text, `{"role": "user", "content": "hi"}` and all else that OpenAI's chat.completions takes, the
AI SDK's UI messages `{"role": "user", "parts": [...]}`, and our own Message; mixed as one likes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, get_args

from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.ids import new_id
from dragoman.messages import FINAL_STATES, Message, Part, TextPart, ToolPart, parse_message
from dragoman.wire.openai.client_fields import IgnoredFields
from dragoman.wire.openai.client_messages import parse_messages

InputMessage: TypeAlias = Message | Mapping[str, Any]
InputMessages: TypeAlias = str | Sequence[InputMessage]
PART_TYPES = get_args(Part)
FORMAT_HINT = 'say [{"role": "user", "content": "hi"}]'


def parse_conversation(messages: InputMessages) -> tuple[Message, ...]:
    """The conversation. BadRequest names the message that is wrong; an empty conversation is one."""
    given: Sequence[InputMessage] = (
        [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    )
    if isinstance(given, Mapping) or not isinstance(given, Sequence):
        raise BadRequest(
            f"messages must be a list, got {type(messages).__name__}", field="messages", hint=FORMAT_HINT
        )
    if not given:
        raise BadRequest("messages is empty: there is nothing to answer", field="messages", hint=FORMAT_HINT)
    read: list[Message] = []
    for plain, group in groupby(enumerate(given), key=lambda each: is_openai_format(each[1])):
        some = list(group)
        read += (
            read_openai_group(some) if plain else [read_message(said, f"messages[{at}]") for at, said in some]
        )
    for at, message in enumerate(read):
        check_not_empty(message, f"messages[{at}]")
    if all(message.role == "system" for message in read):
        raise BadRequest("messages holds instructions only; a user has to say something", field="messages")
    return tuple(read)


def split_open_answer(messages: Sequence[Message]) -> tuple[Sequence[Message], Message]:
    """The history, and the answer: a new one, or the last message where calls of it are still open."""
    last = messages[-1]
    calls = [part for part in last.parts if isinstance(part, ToolPart)]
    if last.role == "assistant" and any(call.state not in FINAL_STATES for call in calls):
        return messages[:-1], last
    return messages, Message(new_id("msg"), "assistant")


def is_openai_format(message: InputMessage) -> bool:
    """Whether it is in OpenAI's manner, and no message or part of ours."""
    if not isinstance(message, Mapping) or "parts" in message:
        return False
    content = message.get("content")
    return not (isinstance(content, list) and any(isinstance(part, (str, *PART_TYPES)) for part in content))


def read_openai_group(group: Sequence[tuple[int, InputMessage]]) -> list[Message]:
    """Messages in OpenAI's manner; they refer to each other, so they are read together."""
    first = group[0][0]
    try:
        found = parse_messages([said for _, said in group], IgnoredFields())
    except BadRequest as error:
        if not first:
            raise
        raise BadRequest(f"from messages[{first}] on: {error.message}", hint=error.hint) from None
    return [replace(message, id=new_id("msg")) for message in found]


def read_message(message: InputMessage, field: str) -> Message:
    """A UI message, one of ours, or a list of pieces: texts and parts."""
    if isinstance(message, Message):
        return message
    if not isinstance(message, Mapping):
        raise BadRequest(
            f"{field} must be a message, got {type(message).__name__}", field=field, hint=FORMAT_HINT
        )
    if "parts" in message:
        return parse_message({"id": new_id("msg"), **message}, field=field)
    content = message["content"]
    parts = [TextPart(part) if isinstance(part, str) else part for part in content]
    if any(not isinstance(part, PART_TYPES) for part in parts):
        raise BadRequest(f"{field}.content mixes parts of ours with others", field=f"{field}.content")
    role = message.get("role")
    if role not in ("system", "user", "assistant"):
        raise BadRequest(f"{field}.role must be system, user or assistant, got {role!r}", field=field)
    return Message(new_id("msg"), role, tuple(parts))


def check_not_empty(message: Message, field: str) -> None:
    """BadRequest for a user message in which nothing is said."""
    said = [part for part in message.parts if not isinstance(part, TextPart) or part.text.strip()]
    if message.role == "user" and not said:
        raise BadRequest(f"{field} is empty: the user says nothing", field=field, hint=FORMAT_HINT)
