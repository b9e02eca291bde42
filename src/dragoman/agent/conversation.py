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
from dragoman.messages import FINAL_STATES, Message, Part, TextPart, ToolPart, message_from
from dragoman.wire.openai.door_fields import Ignored
from dragoman.wire.openai.door_messages import read_messages

Said: TypeAlias = Message | Mapping[str, Any]
Messages: TypeAlias = str | Sequence[Said]
PARTS = get_args(Part)
HINT = 'say [{"role": "user", "content": "hi"}]'


def read(messages: Messages) -> tuple[Message, ...]:
    """The conversation. BadRequest names the message that is wrong; an empty conversation is one."""
    given: Sequence[Said] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if isinstance(given, Mapping) or not isinstance(given, Sequence):
        raise BadRequest(
            f"messages must be a list, got {type(messages).__name__}", field="messages", hint=HINT
        )
    if not given:
        raise BadRequest("messages is empty: there is nothing to answer", field="messages", hint=HINT)
    read: list[Message] = []
    for plain, group in groupby(enumerate(given), key=lambda each: is_plain(each[1])):
        some = list(group)
        read += simple(some) if plain else [one(said, f"messages[{at}]") for at, said in some]
    for at, message in enumerate(read):
        check(message, f"messages[{at}]")
    if all(message.role == "system" for message in read):
        raise BadRequest("messages holds instructions only; a user has to say something", field="messages")
    return tuple(read)


def divided(messages: Sequence[Message]) -> tuple[Sequence[Message], Message]:
    """The history, and the answer: a new one, or the last message where calls of it are still open."""
    last = messages[-1]
    calls = [part for part in last.parts if isinstance(part, ToolPart)]
    if last.role == "assistant" and any(call.state not in FINAL_STATES for call in calls):
        return messages[:-1], last
    return messages, Message(new_id("msg"), "assistant")


def is_plain(said: Said) -> bool:
    """Whether it is in OpenAI's manner, and no message or part of ours."""
    if not isinstance(said, Mapping) or "parts" in said:
        return False
    content = said.get("content")
    return not (isinstance(content, list) and any(isinstance(part, (str, *PARTS)) for part in content))


def simple(group: Sequence[tuple[int, Said]]) -> list[Message]:
    """Messages in OpenAI's manner; they refer to each other, so they are read together."""
    first = group[0][0]
    try:
        found = read_messages([said for _, said in group], Ignored())
    except BadRequest as error:
        if not first:
            raise
        raise BadRequest(f"from messages[{first}] on: {error.message}", hint=error.hint) from None
    return [replace(message, id=new_id("msg")) for message in found]


def one(said: Said, field: str) -> Message:
    """A UI message, one of ours, or a list of pieces: texts and parts."""
    if isinstance(said, Message):
        return said
    if not isinstance(said, Mapping):
        raise BadRequest(f"{field} must be a message, got {type(said).__name__}", field=field, hint=HINT)
    if "parts" in said:
        return message_from({"id": new_id("msg"), **said}, field=field)
    content = said["content"]
    parts = [TextPart(part) if isinstance(part, str) else part for part in content]
    if any(not isinstance(part, PARTS) for part in parts):
        raise BadRequest(f"{field}.content mixes parts of ours with others", field=f"{field}.content")
    role = said.get("role")
    if role not in ("system", "user", "assistant"):
        raise BadRequest(f"{field}.role must be system, user or assistant, got {role!r}", field=field)
    return Message(new_id("msg"), role, tuple(parts))


def check(message: Message, field: str) -> None:
    """BadRequest for a user message in which nothing is said."""
    said = [part for part in message.parts if not isinstance(part, TextPart) or part.text.strip()]
    if message.role == "user" and not said:
        raise BadRequest(f"{field} is empty: the user says nothing", field=field, hint=HINT)
