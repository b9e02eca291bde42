"""Anthropic's encoder: the SDK accumulates the content of any valid answer, in any batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dragoman import events as e
from dragoman.wire.anthropic.encoder import encode_document
from dragoman.wire.anthropic.foreign_reasoning import FOREIGN_SIGNATURE
from tests.wire.anthropic_clients import created, streamed, written

Block = tuple[list[e.Event], dict[str, Any] | None]  # its events, and the block that they are

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=3)


def cut(text: str, places: Sequence[int]) -> list[str]:
    borders = sorted({0, len(text), *(index % (len(text) + 1) for index in places)})
    return [text[start:end] for start, end in pairwise(borders)]


@st.composite
def texts(draw: st.DrawFn, id: str) -> Block:
    fragments = draw(st.lists(WORDS, max_size=4))
    events: list[e.Event] = [
        e.TextStart(id),
        *(e.TextDelta(id, fragment) for fragment in fragments),
        e.TextEnd(id),
    ]
    return events, {"type": "text", "text": "".join(fragments)} if fragments else None


@st.composite
def thoughts(draw: st.DrawFn, id: str) -> Block:
    fragments, signature = draw(st.lists(WORDS, max_size=3)), draw(st.none() | WORDS)
    sealed = {"anthropic": {"signature": signature}} if signature else None
    deltas = [e.ReasoningDelta(id, fragment) for fragment in fragments]
    unsigned = FOREIGN_SIGNATURE if fragments else ""
    block = {"type": "thinking", "thinking": "".join(fragments), "signature": signature or unsigned}
    return [
        e.ReasoningStart(id),
        *deltas,
        e.ReasoningEnd(id, sealed),
    ], block if fragments or signature else None


@st.composite
def calls(draw: st.DrawFn, id: str) -> Block:
    value, places = draw(OBJECTS), draw(st.lists(st.integers(0, 200), max_size=4))
    silent = draw(st.booleans())
    arguments = "" if silent and not value else msgspec.json.encode(value).decode()
    deltas: list[e.Event] = []
    if not silent:
        deltas = [e.ToolInputDelta(id, fragment) for fragment in cut(arguments, places)]
    announced = bool(deltas) or draw(st.booleans())
    begun: list[e.Event] = [e.ToolInputStart(id, "f"), *deltas] if announced else []
    block = {"type": "tool_use", "id": id, "name": "f", "input": value}
    return [*begun, e.ToolInputAvailable(id, "f", value)], block


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[e.Event], list[dict[str, Any]]]:
    """Sequential blocks, some of which overlap as parallel calls do."""
    count = draw(st.integers(0, 5))
    blocks = [draw(st.one_of(texts(f"t{n}"), thoughts(f"r{n}"), calls(f"c{n}"))) for n in range(count)]
    events: list[e.Event] = []
    for number, (strand, _) in enumerate(blocks):
        mixed = number > 0 and draw(st.booleans())
        index = len(blocks[number - 1][0]) - 1 if mixed else 0  # into the one before, after its start
        middle = len(events) - draw(st.integers(0, max(0, index)))
        events = weave(draw, events[:middle], [events[middle:], strand])
    return events, [block for _, block in blocks if block is not None]


def weave(draw: st.DrawFn, before: list[e.Event], strands: list[list[e.Event]]) -> list[e.Event]:
    """Merge two strands; the second begins after the start of the first."""
    tail, mixed = strands
    rest = list(mixed)
    woven = [*before, *rest[:1]]
    rest = rest[1:]
    for event in tail:
        take = draw(st.integers(0, 2))
        woven += [*rest[:take], event]
        rest = rest[take:]
    return [*woven, *rest]


@given(answers(), st.lists(st.integers(0, 40), max_size=6))
def test_the_sdk_accumulates_the_content_of_the_events(
    answer: tuple[list[e.Event], list[dict[str, Any]]], places: list[int]
) -> None:
    events, blocks = answer
    finished = [*events, e.FinishStep("stop", e.Usage(input_tokens=3, output_tokens=4))]
    borders = sorted({0, len(finished), *(index % len(finished) for index in places)})
    batches = [finished[start:end] for start, end in pairwise(borders)]
    message = streamed(written(batches))
    assert message["content"] == blocks
    assert message["usage"] == {"input_tokens": 3, "output_tokens": 4}
    assert created(encode_document(finished, id="msg_1", model="m")) == message
