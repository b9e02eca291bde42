"""Cuts: where a conversation was cut to fit its model, found again in the conversation itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.agent.context.truncation import divide, joined, role, steps
from dragoman.events import Data
from dragoman.messages import DataPart, Message, TextPart

CONTEXT = "data-context"
OURS = "dragoman"
Cutting: TypeAlias = Literal["truncate", "summarise"]


class Cut(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a `data-context` part says.

    `dropped` counts the messages that went, whole or in part, from the id `first` to the id `last`; `steps`
    how many model calls of the last went, when the rest of it stayed. `tokens` were estimated before and
    `left` after. `summary` stands for all that went so far. `problem`: why it was not summarised.
    """

    kind: Cutting
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
        return Data(CONTEXT, msgspec.to_builtins(self))


class Kept(msgspec.Struct, frozen=True):
    """What is left of a conversation behind its latest cut."""

    messages: list[Message]
    cut: Cut | None = None


def resume(messages: Sequence[Message]) -> Kept:
    """The conversation behind its latest cut that still fits it; all of it when there is none.

    Messages that `noted` gave are cut already: only the note is taken off.
    """
    for at, message in enumerate(messages):
        if (cut := _cut_in(message)) is not None:
            rest = replace(message, parts=message.parts[1:])
            return Kept([*messages[:at], *([rest] if rest.parts else []), *messages[at + 1 :]], cut)
    bare = [said for message in messages if (said := _bare(message)).parts or not message.parts]
    for cut in _cuts(messages):
        behind = _behind(bare, cut)
        if behind is not None:
            return Kept(behind, cut)
    return Kept(bare)


def noted(messages: Sequence[Message], cut: Cut, *, recall: str | None = None) -> list[Message]:
    """The messages behind a cut, with a word before the first that a user said about what is not there.

    `recall` is the tool that finds it.
    """
    said = list(messages)
    at = next((at for at, message in enumerate(said) if role(message) == "user"), None)
    text = TextPart(_note(cut, recall), provider_metadata={OURS: {CONTEXT: msgspec.to_builtins(cut)}})
    if at is not None:
        said[at] = replace(said[at], parts=(text, *said[at].parts))
        return said
    head = len(divide(said).head)
    return [*said[:head], Message("context", "user", (text,)), *said[head:]]


def _note(cut: Cut, recall: str | None) -> str:
    if cut.summary is None:
        finding = f" {recall} finds them." if recall else ""
        return f"[Earlier messages of this conversation were left out to save room.{finding}]"
    finding = f" {recall} finds it." if recall else ""
    return (
        f"[What was said and done earlier was left out to save room.{finding} This is its summary:]\n"
        f"{cut.summary}\n[End of the summary.]"
    )


def _cut_in(message: Message) -> Cut | None:
    """The cut that a note at the beginning of the message is of."""
    first = message.parts[0] if message.parts else None
    if not isinstance(first, TextPart) or not first.provider_metadata:
        return None
    return next(_read(first.provider_metadata.get(OURS, {}).get(CONTEXT)), None)


def _cuts(messages: Sequence[Message]) -> Iterator[Cut]:
    """The cuts that were made, the latest first."""
    for message in reversed(messages):
        for part in reversed(message.parts) if message.role == "assistant" else ():
            if isinstance(part, DataPart) and part.type == CONTEXT:
                yield from _read(part.data)


def _read(data: Any) -> Iterator[Cut]:
    try:
        yield msgspec.convert(data, Cut)
    except msgspec.ValidationError:
        return  # somebody else's part of this name


def _bare(message: Message) -> Message:
    """The message without our parts in it, which no model is shown."""
    parts = tuple(part for part in message.parts if not (isinstance(part, DataPart) and part.type == CONTEXT))
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)


def _behind(messages: list[Message], cut: Cut) -> list[Message] | None:
    """The messages behind a cut; None when it was made in another conversation.

    A turn that was cut into begins with its question all the same.
    """
    found = divide(messages)
    turns = [*found.turns, [*found.question, *(message for group in found.work for message in group)]]
    for at, turn in enumerate(turns):
        place = next((place for place, message in enumerate(turn) if message.id == cut.last), None)
        if place is None:
            continue
        later = [message for each in turns[at + 1 :] for message in each]
        behind = [*found.head, *_rest(turn, place, cut=cut), *later]
        return behind if len(behind) > len(found.head) else None
    return None


def _rest(turn: list[Message], place: int, *, cut: Cut) -> list[Message]:
    """What a cut leaves of the turn that it ends in."""
    if place == len(turn) - 1 and not cut.steps:
        return []
    question = [message for message in turn[: place + 1] if message.role == "user"]
    remaining = steps(turn[place])[cut.steps :] if cut.steps else []
    return [*question, *joined(remaining), *turn[place + 1 :]]
