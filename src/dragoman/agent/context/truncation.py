"""Truncation: how long a conversation is, and a shorter one that every provider still takes.

Source: seed 004 §1.7. Conversations are UI messages, or mappings in the words of OpenAI's or Anthropic's API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from math import ceil
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from dragoman.errors import BadRequest
from dragoman.messages import Message, Part, StepStartPart
from dragoman.wire.estimate import ANTHROPIC, IMAGE, estimate_messages, estimate_text

# ---- Sections of a conversation: its system prompt, its turns, and what the last turn has done so far.
# A turn is what a user said and all that was done about it. No cut between two sections parts a tool call
# from
# its result: UI messages hold both in one part; messages in a provider's words are kept together here.

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


MARGIN = 0.9
_MESSAGE = 4  # tokens around each
_DATA = ("data", "url", "image_url", "file_data", "images")
_MARKS = ("role", "type", "id", "tool_call_id", "tool_use_id")  # the wire's own, which are hardly counted
_LONG = 200  # characters, above which such a field is a file and no text


def estimate_tokens(messages: Sequence[Said] | str, *, model: str | None = None) -> int:
    """About how many tokens a text or conversation is, for guard rails; 0 for nothing.

    `model` is asked for its family: Anthropic's tokens are shorter than others'.
    """
    if isinstance(messages, str):
        return ceil(estimate_text(messages) * factor(model))
    typed = [said for said in messages if isinstance(said, Message)]
    others = sum(_tokens(said) for said in messages if not isinstance(said, Message))
    return ceil((estimate_messages(typed) + others) * factor(model))


def is_approaching_limit(
    messages: Sequence[Said] | str, limit: int, *, margin: float = MARGIN, model: str | None = None
) -> bool:
    """Whether a conversation takes more than `margin` of the `limit` in tokens."""
    return estimate_tokens(messages, model=model) > limit * margin


def truncate_messages(
    messages: Sequence[M],
    keep: int | None = None,
    *,
    tokens: int | None = None,
    preserve_system: bool = True,
) -> list[M]:
    """The newest `keep` messages, or as many as fit in `tokens`; those given are left as they are.

    The system prompt stays, beside what is counted, and so does what the user said last, with the last
    message after it: where these alone are more, the result is. Whole turns go first, then what was done
    first about the last one, so that no tool call is parted from its result and signed reasoning stays with
    its calls. By `tokens`, steps of a UI message may go as well.
    """
    room = tokens if keep is None else keep
    if room is None or (keep is not None and tokens is not None):
        raise BadRequest("say either how many messages to keep, or how many tokens", field="keep")
    if room < 0:
        raise BadRequest(f"nothing has {room!r} messages or tokens; say 0 or more", field="keep")
    found = divide(messages)
    head: list[M] = found.head if preserve_system else []
    if keep is not None:
        return [*head, *_newest(found, len, room=room)]
    return _merged([*head, *_newest(_by_steps(found), estimate_tokens, room=room - estimate_tokens(head))])


def factor(model: str | None) -> float:
    """How many tokens more a model of this name counts than others do."""
    name = (model or "").lower()
    return ANTHROPIC if "claude" in name or "anthropic" in name else 1.0


def _newest(found: Sections[M], cost: Callable[[list[M]], int], *, room: int) -> list[M]:
    """What is left when as much has gone as must, by what each section costs."""
    old = [cost(each) for each in found.turns]
    done = [cost(each) for each in found.work]
    total = sum(old) + sum(done) + cost(found.question)
    turns = work = 0
    while total > room and turns < len(old):
        total -= old[turns]
        turns += 1
    while total > room and work < len(done) - 1:
        total -= done[work]
        work += 1
    return [*chain(*found.turns[turns:]), *found.question, *chain(*found.work[work:])]


def _by_steps(found: Sections[M]) -> Sections[M]:
    """The same, with each step of the last turn by itself."""
    work: list[list[Any]] = []
    for group in found.work:
        first, *results = group
        pieces: list[Any] = steps(first) if isinstance(first, Message) else [first]
        work += [*([piece] for piece in pieces[:-1]), [pieces[-1], *results]]
    return Sections(found.head, found.turns, found.question, work)


def _merged(messages: list[M]) -> list[M]:
    """The steps of UI messages put together again."""
    merged: list[Any] = []
    for _, run in groupby(messages, lambda said: isinstance(said, Message)):
        alike: list[Any] = list(run)
        merged += joined(alike) if isinstance(alike[0], Message) else alike
    return merged


def _tokens(said: Mapping[str, Any]) -> int:
    """About how many tokens a message in an API's words is."""
    return _MESSAGE + sum(_leaves(said))


def _leaves(value: Any, name: str = "") -> Iterator[int]:
    if isinstance(value, str):
        is_file = name in _DATA and len(value) > _LONG
        yield round(IMAGE) if is_file else 0 if name in _MARKS else estimate_text(value)
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from _leaves(held, str(key))
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _leaves(held, name)
    elif value is not None:
        yield 1
