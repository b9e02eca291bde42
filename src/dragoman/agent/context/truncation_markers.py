"""Truncation points: where a conversation was cut to fit its model, stored in and read from the
conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.agent.context.truncation import join_steps, role_of, split_sections, split_steps
from dragoman.events import Data
from dragoman.messages import DataPart, Message, TextPart

CONTEXT_PART = "data-context"
METADATA_KEY = "dragoman"
TruncationKind: TypeAlias = Literal["truncate", "summarise"]


class TruncationPoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The data of a `data-context` part.

    `dropped` counts the messages that were dropped, whole or in part, from the id `first` to the id `last`;
    `steps` the model calls of the last one, if the rest of it stayed. `tokens` is the estimate before,
    `left` after. `summary` covers everything dropped so far. `problem` says why there is no summary.
    """

    kind: TruncationKind
    dropped: int
    first: str = msgspec.field(name="from")
    last: str = msgspec.field(name="to")
    steps: int = 0
    tokens: int = 0
    left: int = 0
    summary: str | None = None
    problem: str | None = None

    def event(self) -> Data:
        """Return the point as an event. Stored in the message in progress, it is where the next request
        starts.
        """
        return Data(CONTEXT_PART, msgspec.to_builtins(self))


class RemainingConversation(msgspec.Struct, frozen=True):
    """The part of a conversation after its latest truncation point."""

    messages: list[Message]
    point: TruncationPoint | None = None


def remaining_conversation(messages: Sequence[Message]) -> RemainingConversation:
    """Return the conversation after the latest truncation point that matches it; all of it if there is none.

    Messages from `with_notice` are truncated already: only the notice is removed.
    """
    for index, message in enumerate(messages):
        if (cut := _point_in_notice(message)) is not None:
            rest = replace(message, parts=message.parts[1:])
            return RemainingConversation(
                [*messages[:index], *([rest] if rest.parts else []), *messages[index + 1 :]], cut
            )
    bare = [
        stripped for message in messages if (stripped := _without_points(message)).parts or not message.parts
    ]
    for cut in _stored_points(messages):
        remaining = _messages_after(bare, cut)
        if remaining is not None:
            return RemainingConversation(remaining, cut)
    return RemainingConversation(bare)


def with_notice(
    messages: Sequence[Message], point: TruncationPoint, *, recall: str | None = None
) -> list[Message]:
    """Return the messages after a truncation point, with a notice about the dropped ones before the first
    user text.

    `recall` is the tool that finds them.
    """
    shown = list(messages)
    index = next((index for index, message in enumerate(shown) if role_of(message) == "user"), None)
    text = TextPart(
        _notice_text(point, recall),
        provider_metadata={METADATA_KEY: {CONTEXT_PART: msgspec.to_builtins(point)}},
    )
    if index is not None:
        shown[index] = replace(shown[index], parts=(text, *shown[index].parts))
        return shown
    head = len(split_sections(shown).system)
    return [*shown[:head], Message("context", "user", (text,)), *shown[head:]]


def _notice_text(point: TruncationPoint, recall: str | None) -> str:
    if point.summary is None:
        finding = f" {recall} finds them." if recall else ""
        return f"[Earlier messages of this conversation were left out to save room.{finding}]"
    finding = f" {recall} finds it." if recall else ""
    return (
        f"[What was said and done earlier was left out to save room.{finding} This is its summary:]\n"
        f"{point.summary}\n[End of the summary.]"
    )


def _point_in_notice(message: Message) -> TruncationPoint | None:
    """Return the truncation point of a notice at the start of the message."""
    first = message.parts[0] if message.parts else None
    if not isinstance(first, TextPart) or not first.provider_metadata:
        return None
    return next(_decode_point(first.provider_metadata.get(METADATA_KEY, {}).get(CONTEXT_PART)), None)


def _stored_points(messages: Sequence[Message]) -> Iterator[TruncationPoint]:
    """Yield the stored truncation points, latest first."""
    for message in reversed(messages):
        for part in reversed(message.parts) if message.role == "assistant" else ():
            if isinstance(part, DataPart) and part.type == CONTEXT_PART:
                yield from _decode_point(part.data)


def _decode_point(data: Any) -> Iterator[TruncationPoint]:
    try:
        yield msgspec.convert(data, TruncationPoint)
    except msgspec.ValidationError:
        return  # a part of this name that the application added


def _without_points(message: Message) -> Message:
    """Return the message without truncation points, which no model is shown."""
    parts = tuple(
        part for part in message.parts if not (isinstance(part, DataPart) and part.type == CONTEXT_PART)
    )
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)


def _messages_after(messages: list[Message], point: TruncationPoint) -> list[Message] | None:
    """Return the messages after a point; None if it belongs to another conversation.

    A turn that was cut in the middle still starts with its user message.
    """
    sections = split_sections(messages)
    last_turn = [*sections.question, *(message for group in sections.work for message in group)]
    turns = [*sections.turns, last_turn]
    for number, turn in enumerate(turns):
        position = next((index for index, message in enumerate(turn) if message.id == point.last), None)
        if position is None:
            continue
        later = [message for later_turn in turns[number + 1 :] for message in later_turn]
        remaining = [*sections.system, *_rest_of_turn(turn, position, point=point), *later]
        return remaining if len(remaining) > len(sections.system) else None
    return None


def _rest_of_turn(turn: list[Message], position: int, *, point: TruncationPoint) -> list[Message]:
    """Return what a point leaves of the turn in which it lies."""
    if position == len(turn) - 1 and not point.steps:
        return []
    question = [message for message in turn[: position + 1] if message.role == "user"]
    remaining = split_steps(turn[position])[point.steps :] if point.steps else []
    return [*question, *join_steps(remaining), *turn[position + 1 :]]
