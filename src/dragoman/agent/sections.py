"""Sections of a conversation: its system prompt, its turns, and what the last turn has done so far.

A turn is what a user said and all that was done about it. No cut between two sections parts a tool call from
its result: UI messages hold both in one part; messages in a provider's words are kept together here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from dragoman.messages import Message, Part, StepStartPart

Said: TypeAlias = Message | Mapping[str, Any]
M = TypeVar("M", bound=Message | Mapping[str, Any])
_SYSTEM = ("system", "developer")
_RESULTS = ("tool", "function")


class Sections(msgspec.Struct, Generic[M], frozen=True):
    """The parts of a conversation, each a list of messages.

    `head` is the system prompt; `turns` are all but the last; `question` is what the user said last; `work`
    is what was done about it, cut where it may be cut.
    """

    head: list[M]
    turns: list[list[M]]
    question: list[M]
    work: list[list[M]]


def divide(messages: Sequence[M]) -> Sections[M]:
    """The sections of a conversation in UI messages, or in those of OpenAI's or Anthropic's APIs."""
    start = next((at for at, said in enumerate(messages) if role(said) not in _SYSTEM), len(messages))
    turns: list[list[M]] = []
    before = ""
    for said in messages[start:]:
        if not turns or (role(said) == "user" and before != "user"):
            turns.append([])
        turns[-1].append(said)
        before = role(said)
    last = turns.pop() if turns else []
    asked = next((at for at, said in enumerate(last) if role(said) != "user"), len(last))
    return Sections(list(messages[:start]), turns, last[:asked], _groups(last[asked:]))


def role(said: Said) -> str:
    """Who speaks: `tool` where it is results, whichever way an API spells them."""
    if isinstance(said, Message):
        return said.role
    content = said.get("content")
    if isinstance(content, list | tuple) and content and all(_is_result(block) for block in content):
        return "tool"
    spoken = str(said.get("role", ""))
    return "tool" if spoken in _RESULTS else spoken


def steps(message: Message) -> list[Message]:
    """An assistant message as one message for each model call, in order; any other as it is."""
    pieces: list[list[Part]] = [[]]
    for part in message.parts:
        if isinstance(part, StepStartPart) and pieces[-1]:
            pieces.append([])
        pieces[-1].append(part)
    if message.role != "assistant" or len(pieces) == 1:
        return [message]
    return [msgspec.structs.replace(message, parts=tuple(piece)) for piece in pieces]


def joined(messages: Sequence[Message]) -> list[Message]:
    """The messages with the steps of one message put together again."""
    whole: list[Message] = []
    for message in messages:
        last = whole[-1] if whole else None
        if last is not None and last.role == message.role == "assistant" and last.id == message.id:
            whole[-1] = msgspec.structs.replace(last, parts=(*last.parts, *message.parts))
        else:
            whole.append(message)
    return whole


def _groups(messages: Sequence[M]) -> list[list[M]]:
    """Each message with the results that follow it."""
    groups: list[list[M]] = []
    for said in messages:
        if groups and role(said) == "tool":
            groups[-1].append(said)
        else:
            groups.append([said])
    return groups


def _is_result(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"
