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
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR, IMAGE_TOKENS, estimate_messages, estimate_text

# ---- Sections of a conversation: its system prompt, its turns, and what the last turn has done so far.
# A turn is what a user said and all that was done about it. No cut between two sections parts a tool call
# from
# its result: UI messages hold both in one part; messages in a provider's words are kept together here.

AnyMessage: TypeAlias = Message | Mapping[str, Any]
M = TypeVar("M", bound=Message | Mapping[str, Any])
_SYSTEM = ("system", "developer")
_RESULTS = ("tool", "function")


class ConversationSections(msgspec.Struct, Generic[M], frozen=True):
    """The parts of a conversation, each a list of messages.

    `system` is the system prompt; `turns` are all but the last; `question` is what the user said last; `work`
    is what was done about it, cut where it may be cut.
    """

    system: list[M]
    turns: list[list[M]]
    question: list[M]
    work: list[list[M]]


def split_sections(messages: Sequence[M]) -> ConversationSections[M]:
    """The sections of a conversation in UI messages, or in those of OpenAI's or Anthropic's APIs."""
    start = next((at for at, said in enumerate(messages) if role_of(said) not in _SYSTEM), len(messages))
    turns: list[list[M]] = []
    before = ""
    for said in messages[start:]:
        if not turns or (role_of(said) == "user" and before != "user"):
            turns.append([])
        turns[-1].append(said)
        before = role_of(said)
    last = turns.pop() if turns else []
    asked = next((at for at, said in enumerate(last) if role_of(said) != "user"), len(last))
    return ConversationSections(list(messages[:start]), turns, last[:asked], _group_results(last[asked:]))


def role_of(message: AnyMessage) -> str:
    """Who speaks: `tool` where it is results, whichever way an API spells them."""
    if isinstance(message, Message):
        return message.role
    content = message.get("content")
    if isinstance(content, list | tuple) and content and all(_is_result(block) for block in content):
        return "tool"
    spoken = str(message.get("role", ""))
    return "tool" if spoken in _RESULTS else spoken


def split_steps(message: Message) -> list[Message]:
    """An assistant message as one message for each model call, in order; any other as it is."""
    pieces: list[list[Part]] = [[]]
    for part in message.parts:
        if isinstance(part, StepStartPart) and pieces[-1]:
            pieces.append([])
        pieces[-1].append(part)
    if message.role != "assistant" or len(pieces) == 1:
        return [message]
    return [msgspec.structs.replace(message, parts=tuple(piece)) for piece in pieces]


def join_steps(messages: Sequence[Message]) -> list[Message]:
    """The messages with the steps of one message put together again."""
    whole: list[Message] = []
    for message in messages:
        last = whole[-1] if whole else None
        if last is not None and last.role == message.role == "assistant" and last.id == message.id:
            whole[-1] = msgspec.structs.replace(last, parts=(*last.parts, *message.parts))
        else:
            whole.append(message)
    return whole


def _group_results(messages: Sequence[M]) -> list[list[M]]:
    """Each message with the results that follow it."""
    groups: list[list[M]] = []
    for said in messages:
        if groups and role_of(said) == "tool":
            groups[-1].append(said)
        else:
            groups.append([said])
    return groups


def _is_result(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


MARGIN = 0.9
_MESSAGE_TOKENS = 4  # tokens around each
_FILE_FIELDS = ("data", "url", "image_url", "file_data", "images")
_WIRE_FIELDS = (
    "role",
    "type",
    "id",
    "tool_call_id",
    "tool_use_id",
)  # the wire's own, which are hardly counted
_MIN_FILE_LENGTH = 200  # characters, above which such a field is a file and no text


def estimate_tokens(messages: Sequence[AnyMessage] | str, *, model: str | None = None) -> int:
    """About how many tokens a text or conversation is, for guard rails; 0 for nothing.

    `model` is asked for its family: Anthropic's tokens are shorter than others'.
    """
    if isinstance(messages, str):
        return ceil(estimate_text(messages) * token_factor(model))
    typed = [said for said in messages if isinstance(said, Message)]
    others = sum(_estimate_mapping(said) for said in messages if not isinstance(said, Message))
    return ceil((estimate_messages(typed) + others) * token_factor(model))


def is_approaching_limit(
    messages: Sequence[AnyMessage] | str, limit: int, *, margin: float = MARGIN, model: str | None = None
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
    found = split_sections(messages)
    head: list[M] = found.system if preserve_system else []
    if keep is not None:
        return [*head, *_keep_newest(found, len, room=room)]
    return _join_message_steps(
        [*head, *_keep_newest(_split_last_turn(found), estimate_tokens, room=room - estimate_tokens(head))]
    )


def token_factor(model: str | None) -> float:
    """How many tokens more a model of this name counts than others do."""
    name = (model or "").lower()
    return ANTHROPIC_FACTOR if "claude" in name or "anthropic" in name else 1.0


def _keep_newest(
    sections: ConversationSections[M], measure: Callable[[list[M]], int], *, room: int
) -> list[M]:
    """What is left when as much has gone as must, by what each section costs."""
    old = [measure(each) for each in sections.turns]
    done = [measure(each) for each in sections.work]
    total = sum(old) + sum(done) + measure(sections.question)
    turns = work = 0
    while total > room and turns < len(old):
        total -= old[turns]
        turns += 1
    while total > room and work < len(done) - 1:
        total -= done[work]
        work += 1
    return [*chain(*sections.turns[turns:]), *sections.question, *chain(*sections.work[work:])]


def _split_last_turn(sections: ConversationSections[M]) -> ConversationSections[M]:
    """The same, with each step of the last turn by itself."""
    work: list[list[Any]] = []
    for group in sections.work:
        first, *results = group
        pieces: list[Any] = split_steps(first) if isinstance(first, Message) else [first]
        work += [*([piece] for piece in pieces[:-1]), [pieces[-1], *results]]
    return ConversationSections(sections.system, sections.turns, sections.question, work)


def _join_message_steps(messages: list[M]) -> list[M]:
    """The steps of UI messages put together again."""
    merged: list[Any] = []
    for _, run in groupby(messages, lambda said: isinstance(said, Message)):
        alike: list[Any] = list(run)
        merged += join_steps(alike) if isinstance(alike[0], Message) else alike
    return merged


def _estimate_mapping(message: Mapping[str, Any]) -> int:
    """About how many tokens a message in an API's words is."""
    return _MESSAGE_TOKENS + sum(_leaf_tokens(message))


def _leaf_tokens(value: Any, name: str = "") -> Iterator[int]:
    if isinstance(value, str):
        is_file = name in _FILE_FIELDS and len(value) > _MIN_FILE_LENGTH
        yield round(IMAGE_TOKENS) if is_file else 0 if name in _WIRE_FIELDS else estimate_text(value)
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from _leaf_tokens(held, str(key))
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _leaf_tokens(held, name)
    elif value is not None:
        yield 1
