"""What an answer may have, and that reading it takes time in proportion to its length.

Where the time is a matter of proportion, the square of the length would be minutes, which ends the test by
its time limit.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from dragoman.event_splitting import MAX_EVENTS, split_events
from dragoman.events import TextDelta
from dragoman.wire.answer_decoder import AnswerDecoder
from dragoman.wire.anthropic.decoder import AnthropicDecoder
from dragoman.wire.ollama.decoder import OllamaDecoder
from dragoman.wire.openai.chunk import OpenAIDelta
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.reasoning_accumulator import ReasoningAccumulator
from dragoman.wire.tool_calls import MAX_CALLS, MAX_NAME, ToolCallAssembler, ToolCallFragment
from tests.wire import anthropic_streams, ollama_streams, openai_streams

LONG = 60_000


def openai_calls(number: int) -> bytes:
    """A stream with so many calls."""
    return openai_streams.sse(
        *(
            openai_streams.chunk(
                {"tool_calls": [{"index": n, "id": f"c{n}", "function": {"name": "f", "arguments": "{}"}}]}
            )
            for n in range(number)
        ),
        openai_streams.chunk(finish="tool_calls"),
    )


def anthropic_calls(number: int) -> bytes:
    """The same."""
    calls = [event for n in range(number) for event in anthropic_streams.call(n, f"c{n}", "f", "{}")]
    ends = (anthropic_streams.stop("tool_use"), {"type": "message_stop"})
    return anthropic_streams.sse(anthropic_streams.start(), *calls, *ends)


def ollama_calls(number: int) -> bytes:
    """The same."""
    calls = [ollama_streams.call("f", {}) for _ in range(number)]
    return ollama_streams.ndjson(ollama_streams.line(tool_calls=calls), ollama_streams.last())


ANSWERS: dict[str, tuple[Callable[[], AnswerDecoder[Any]], Callable[[int], bytes]]] = {
    "openai": (OpenAIDecoder, openai_calls),
    "anthropic": (AnthropicDecoder, anthropic_calls),
    "ollama": (OllamaDecoder, ollama_calls),
}


@pytest.mark.parametrize("family", ANSWERS)
def test_an_answer_with_more_calls_than_the_limit_fails(family: str) -> None:
    make, stream = ANSWERS[family]
    allowed, refused = make(), make()
    allowed.feed(stream(MAX_CALLS))
    refused.feed(stream(MAX_CALLS + 1))
    assert allowed.failure is None
    assert f"calls more than {MAX_CALLS} tools" in str(refused.failure)


def test_a_name_that_comes_in_pieces_does_not_grow_without_end() -> None:
    ids = count()
    calls = ToolCallAssembler(new_id=lambda: f"c{next(ids)}")
    for n in range(LONG):
        calls.add(ToolCallFragment(index=0, id="i", name="x" * 10 * LONG if n == 0 else "ab"[n % 2]))
    calls.add(ToolCallFragment(index=1, id="j", name="a"))
    for _ in range(2 * MAX_NAME):
        calls.add(ToolCallFragment(index=1, id="j", name="b"))
    started = calls.finish(truncated=False)[:2]
    assert [len(event.tool_name) for event in started] == [10 * LONG, MAX_NAME]  # type: ignore[union-attr]


@pytest.mark.parametrize("place", [{}, {"index": 0}, {"index": None, "type": "reasoning.encrypted"}])
def test_opaque_entries_of_reasoning_are_merged_in_time_in_proportion(place: dict[str, object]) -> None:
    accumulator = ReasoningAccumulator("p")
    for n in range(LONG):
        accumulator.add_delta(OpenAIDelta(reasoning_details=[{"id": f"r{n}", "data": "x", **place}]))
        assert accumulator.has_opaque
    metadata = accumulator.take_metadata() or {}
    assert len(metadata["openai"]["reasoning_details"]) == LONG


def test_a_batch_of_many_events_is_split() -> None:
    events = [TextDelta("t", "a")] * (2 * MAX_EVENTS + 1)
    assert list(map(len, split_events(events, 65_536))) == [MAX_EVENTS, MAX_EVENTS, 1]
