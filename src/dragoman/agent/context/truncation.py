"""Token estimates and truncation of a conversation at points that every provider accepts.

Source: seed 004 §1.7. Conversations are UI messages, or mappings in the format of OpenAI's or Anthropic's
API. A turn is a user message with everything that answers it. A cut between two sections never separates a
tool call from its result: UI messages have both in one part; messages of an API are kept together here.
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

AnyMessage: TypeAlias = Message | Mapping[str, Any]
M = TypeVar("M", bound=Message | Mapping[str, Any])
_SYSTEM = ("system", "developer")
_RESULTS = ("tool", "function")


class ConversationSections(msgspec.Struct, Generic[M], frozen=True):
    """The sections of a conversation, each a list of messages.

    `system` is the system prompt; `turns` are all but the last; `question` is the last user message; `work`
    is the answer to it so far, in pieces that may be dropped one by one.
    """

    system: list[M]
    turns: list[list[M]]
    question: list[M]
    work: list[list[M]]


def split_sections(messages: Sequence[M]) -> ConversationSections[M]:
    """Return the sections of a conversation, in UI messages or in those of an API."""
    start = next(
        (index for index, message in enumerate(messages) if role_of(message) not in _SYSTEM), len(messages)
    )
    turns: list[list[M]] = []
    before = ""
    for message in messages[start:]:
        if not turns or (role_of(message) == "user" and before != "user"):
            turns.append([])
        turns[-1].append(message)
        before = role_of(message)
    last = turns.pop() if turns else []
    question_end = next(
        (index for index, message in enumerate(last) if role_of(message) != "user"), len(last)
    )
    return ConversationSections(
        list(messages[:start]), turns, last[:question_end], _group_results(last[question_end:])
    )


def role_of(message: AnyMessage) -> str:
    """Return the role of a message; `tool` for tool results, however the API spells them."""
    if isinstance(message, Message):
        return message.role
    content = message.get("content")
    if isinstance(content, list | tuple) and content and all(_is_result(block) for block in content):
        return "tool"
    role = str(message.get("role", ""))
    return "tool" if role in _RESULTS else role


def split_steps(message: Message) -> list[Message]:
    """Return an assistant message as one message for each model call, in order; any other message as
    it is.
    """
    pieces: list[list[Part]] = [[]]
    for part in message.parts:
        if isinstance(part, StepStartPart) and pieces[-1]:
            pieces.append([])
        pieces[-1].append(part)
    if message.role != "assistant" or len(pieces) == 1:
        return [message]
    return [msgspec.structs.replace(message, parts=tuple(piece)) for piece in pieces]


def join_steps(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the steps of one message joined again."""
    whole: list[Message] = []
    for message in messages:
        last = whole[-1] if whole else None
        if last is not None and last.role == message.role == "assistant" and last.id == message.id:
            whole[-1] = msgspec.structs.replace(last, parts=(*last.parts, *message.parts))
        else:
            whole.append(message)
    return whole


def _group_results(messages: Sequence[M]) -> list[list[M]]:
    """Group each message with the tool results that follow it."""
    groups: list[list[M]] = []
    for message in messages:
        if groups and role_of(message) == "tool":
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _is_result(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


MARGIN = 0.9
_MESSAGE_TOKENS = 4  # tokens of overhead for each message
_FILE_FIELDS = ("data", "url", "image_url", "file_data", "images")
_WIRE_FIELDS = (
    "role",
    "type",
    "id",
    "tool_call_id",
    "tool_use_id",
)  # protocol fields, which cost almost nothing
_MIN_FILE_LENGTH = 200  # characters; a longer value of such a field is a file, not text


def estimate_tokens(messages: Sequence[AnyMessage] | str, *, model: str | None = None) -> int:
    """Return about how many tokens a text or conversation is.

    `model` selects the tokenizer family: Anthropic's tokens are shorter than others'.
    """
    if isinstance(messages, str):
        return ceil(estimate_text(messages) * token_factor(model))
    typed = [message for message in messages if isinstance(message, Message)]
    mappings = sum(_estimate_mapping(message) for message in messages if not isinstance(message, Message))
    return ceil((estimate_messages(typed) + mappings) * token_factor(model))


def is_approaching_limit(
    messages: Sequence[AnyMessage] | str, limit: int, *, margin: float = MARGIN, model: str | None = None
) -> bool:
    """Return whether a conversation takes more than `margin` of `limit` tokens."""
    return estimate_tokens(messages, model=model) > limit * margin


def truncate_messages(
    messages: Sequence[M],
    keep: int | None = None,
    *,
    tokens: int | None = None,
    preserve_system: bool = True,
) -> list[M]:
    """Return the newest `keep` messages, or as many as fit in `tokens`. The messages given are not changed.

    The system prompt stays and is not counted against `keep`. The last user message and the last message
    after it stay too, so the result may be longer than asked for. Whole turns are dropped first, then the
    oldest part of the answer to the last one: no tool call is separated from its result, and signed
    reasoning stays with its calls. With `tokens`, single steps of a UI message may be dropped as well.
    Raises BadRequest.
    """
    room = tokens if keep is None else keep
    if room is None or (keep is not None and tokens is not None):
        raise BadRequest("pass either `keep` (messages) or `tokens`, and not both", field="keep")
    if room < 0:
        raise BadRequest(f"the number to keep must be 0 or more, not {room!r}", field="keep")
    sections = split_sections(messages)
    head: list[M] = sections.system if preserve_system else []
    if keep is not None:
        return [*head, *_keep_newest(sections, len, room=room)]
    return _join_message_steps(
        [*head, *_keep_newest(_split_last_turn(sections), estimate_tokens, room=room - estimate_tokens(head))]
    )


def token_factor(model: str | None) -> float:
    """Return by how much a model of this name counts more tokens than others."""
    name = (model or "").lower()
    return ANTHROPIC_FACTOR if "claude" in name or "anthropic" in name else 1.0


def _keep_newest(
    sections: ConversationSections[M], measure: Callable[[list[M]], int], *, room: int
) -> list[M]:
    """Return what is left after dropping the oldest sections until the rest fits `room`."""
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
    """Return the sections with each step of the last turn on its own."""
    work: list[list[Any]] = []
    for group in sections.work:
        first, *results = group
        pieces: list[Any] = split_steps(first) if isinstance(first, Message) else [first]
        work += [*([piece] for piece in pieces[:-1]), [pieces[-1], *results]]
    return ConversationSections(sections.system, sections.turns, sections.question, work)


def _join_message_steps(messages: list[M]) -> list[M]:
    """Join the steps of UI messages again."""
    merged: list[Any] = []
    for _, run in groupby(messages, lambda message: isinstance(message, Message)):
        messages_run: list[Any] = list(run)
        merged += join_steps(messages_run) if isinstance(messages_run[0], Message) else messages_run
    return merged


def _estimate_mapping(message: Mapping[str, Any]) -> int:
    """Return about how many tokens a message in an API's format is."""
    return _MESSAGE_TOKENS + sum(_leaf_tokens(message))


def _leaf_tokens(value: Any, name: str = "") -> Iterator[int]:
    if isinstance(value, str):
        is_file = name in _FILE_FIELDS and len(value) > _MIN_FILE_LENGTH
        yield round(IMAGE_TOKENS) if is_file else 0 if name in _WIRE_FIELDS else estimate_text(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaf_tokens(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaf_tokens(item, name)
    elif value is not None:
        yield 1
