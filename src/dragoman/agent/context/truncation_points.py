"""Cuts: where a conversation was cut to fit its model, found again in the conversation itself."""

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
    """What a `data-context` part says.

    `dropped` counts the messages that went, whole or in part, from the id `first` to the id `last`;
    `split_steps` how many model calls of the last went, when the rest of it stayed. `tokens` were estimated
    before and `left` after. `summary` stands for all that went so far. `problem`: why it was not summarised.
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
        """The cut as an event; kept in the message under way, it is where the next request begins."""
        return Data(CONTEXT_PART, msgspec.to_builtins(self))


class RemainingConversation(msgspec.Struct, frozen=True):
    """What is left of a conversation behind its latest cut."""

    messages: list[Message]
    point: TruncationPoint | None = None


def remaining_conversation(messages: Sequence[Message]) -> RemainingConversation:
    """The conversation behind its latest cut that still fits it; all of it when there is none.

    Messages that `with_notice` gave are cut already: only the note is taken off.
    """
    for at, message in enumerate(messages):
        if (cut := _point_in_notice(message)) is not None:
            rest = replace(message, parts=message.parts[1:])
            return RemainingConversation(
                [*messages[:at], *([rest] if rest.parts else []), *messages[at + 1 :]], cut
            )
    bare = [said for message in messages if (said := _without_points(message)).parts or not message.parts]
    for cut in _stored_points(messages):
        behind = _messages_after(bare, cut)
        if behind is not None:
            return RemainingConversation(behind, cut)
    return RemainingConversation(bare)


def with_notice(
    messages: Sequence[Message], point: TruncationPoint, *, recall: str | None = None
) -> list[Message]:
    """The messages behind a cut, with a word before the first that a user said about what is not there.

    `recall` is the tool that finds it.
    """
    said = list(messages)
    at = next((at for at, message in enumerate(said) if role_of(message) == "user"), None)
    text = TextPart(
        _notice_text(point, recall),
        provider_metadata={METADATA_KEY: {CONTEXT_PART: msgspec.to_builtins(point)}},
    )
    if at is not None:
        said[at] = replace(said[at], parts=(text, *said[at].parts))
        return said
    head = len(split_sections(said).system)
    return [*said[:head], Message("context", "user", (text,)), *said[head:]]


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
    """The cut that a note at the beginning of the message is of."""
    first = message.parts[0] if message.parts else None
    if not isinstance(first, TextPart) or not first.provider_metadata:
        return None
    return next(_decode_point(first.provider_metadata.get(METADATA_KEY, {}).get(CONTEXT_PART)), None)


def _stored_points(messages: Sequence[Message]) -> Iterator[TruncationPoint]:
    """The cuts that were made, the latest first."""
    for message in reversed(messages):
        for part in reversed(message.parts) if message.role == "assistant" else ():
            if isinstance(part, DataPart) and part.type == CONTEXT_PART:
                yield from _decode_point(part.data)


def _decode_point(data: Any) -> Iterator[TruncationPoint]:
    try:
        yield msgspec.convert(data, TruncationPoint)
    except msgspec.ValidationError:
        return  # somebody else's part of this name


def _without_points(message: Message) -> Message:
    """The message without our parts in it, which no model is shown."""
    parts = tuple(
        part for part in message.parts if not (isinstance(part, DataPart) and part.type == CONTEXT_PART)
    )
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)


def _messages_after(messages: list[Message], point: TruncationPoint) -> list[Message] | None:
    """The messages behind a cut; None when it was made in another conversation.

    A turn that was cut into begins with its question all the same.
    """
    found = split_sections(messages)
    turns = [*found.turns, [*found.question, *(message for group in found.work for message in group)]]
    for at, turn in enumerate(turns):
        place = next((place for place, message in enumerate(turn) if message.id == point.last), None)
        if place is None:
            continue
        later = [message for each in turns[at + 1 :] for message in each]
        behind = [*found.system, *_rest_of_turn(turn, place, point=point), *later]
        return behind if len(behind) > len(found.system) else None
    return None


def _rest_of_turn(turn: list[Message], position: int, *, point: TruncationPoint) -> list[Message]:
    """What a cut leaves of the turn that it ends in."""
    if position == len(turn) - 1 and not point.steps:
        return []
    question = [message for message in turn[: position + 1] if message.role == "user"]
    remaining = split_steps(turn[position])[point.steps :] if point.steps else []
    return [*question, *join_steps(remaining), *turn[position + 1 :]]
