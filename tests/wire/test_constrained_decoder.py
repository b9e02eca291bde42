"""Constrained answers: JSON becomes text or a call, however its stream is split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.wire.constrained.decoder import ConstrainedDecoder
from dragoman.wire.openai.decoder import OpenAIDecoder

from .openai_streams import chunk, cut, sse, summarise

FINISH = e.FinishStep("stop", model="m-1")
ANSWERS = [
    "Hello.",
    "",
    'She said "no" \\ twice / and\tleft.\nThen\r\f\b.',
    "naïve 日本語 \U0001f600 \u2028 \x7f",
    '{"call": "x", "input": {}}',
]
INPUTS: list[dict[str, Any]] = [
    {},
    {"expression": "37 * 41"},
    {"a": {"b": [1, {"c": '} ] " \\ {'}]}, "d": None, "e": 1.5e3},
    {"text": "\U0001f600 日本", "list": []},
]


def read(fragments: Iterable[str], finish: e.FinishStep = FINISH, **options: Any) -> list[e.Event]:
    """Decode the fragments of JSON text, each in a batch of its own."""
    numbers = count(1)
    reader = ConstrainedDecoder(new_id=lambda: f"call_{next(numbers)}", **options)
    batches: list[list[e.Event]] = [[e.TextStart("text-1")]]
    batches += [[e.TextDelta("text-1", fragment)] for fragment in fragments if fragment]
    batches.append([e.TextEnd("text-1"), finish])
    return [event for batch in batches for event in reader.decode(batch)]


def written(value: Any, *, ascii: bool, space: str = "") -> str:
    return space + json.dumps(value, ensure_ascii=ascii, indent=len(space) or None) + space


def halves(text: str) -> Iterator[Sequence[str]]:
    """The text split in two at every position, and into its characters."""
    yield from ((text[:index], text[index:]) for index in range(len(text) + 1))
    yield list(text)


@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_decodes_the_same_wherever_its_json_is_split(answer: str, ascii: bool) -> None:
    for space in ("", " \n"):
        text = written({"answer": answer}, ascii=ascii, space=space)
        expected = [("text", answer), ("finish", "stop", "m-1")]
        assert [summarise(read(fragments)) for fragments in halves(text)] == [expected] * (len(text) + 2)


@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("value", INPUTS)
def test_a_call_decodes_the_same_wherever_its_json_is_split(value: dict[str, Any], ascii: bool) -> None:
    for space in ("", " \n"):
        text = written({"call": "math_calculate", "input": value}, ascii=ascii, space=space)
        for fragments in halves(text):
            call, finish = summarise(read(fragments))
            assert call[:3] == ("call", "call_1", "math_calculate")
            assert json.loads(call[3]) == call[4] == value
            assert finish == ("finish", "tool-calls", "m-1")


def test_the_answers_text_is_streamed() -> None:
    reader = ConstrainedDecoder(new_id=str)
    deltas = [
        reader.decode([e.TextDelta("text-1", fragment)])
        for fragment in ('{"ans', 'wer": "Go', "od \\u00e", "4h")
    ]
    assert deltas == [
        [],
        [e.TextStart("text-1"), e.TextDelta("text-1", "Go")],
        [e.TextDelta("text-1", "od ")],
        [e.TextDelta("text-1", "äh")],
    ]


def test_half_a_surrogate_pair_waits_for_the_other_half() -> None:
    reader = ConstrainedDecoder(new_id=str)
    assert reader.decode([e.TextDelta("text-1", '{"answer": "\\ud83d')]) == [e.TextStart("text-1")]
    assert reader.decode([e.TextDelta("text-1", '\\ude00"}')]) == [
        e.TextDelta("text-1", "\U0001f600"),
        e.TextEnd("text-1"),
    ]


def test_a_calls_input_is_streamed() -> None:
    reader = ConstrainedDecoder(new_id=lambda: "c")
    deltas = [
        reader.decode([e.TextDelta("text-1", fragment)])
        for fragment in ('{"call": "f", ', '"input": ', '{"x": ', '"}"', "}", "}")
    ]
    assert deltas == [
        [],
        [],
        [e.ToolInputStart("c", "f"), e.ToolInputDelta("c", '{"x": ')],
        [e.ToolInputDelta("c", '"}"')],
        [e.ToolInputDelta("c", "}")],
        [],
    ]


def test_the_stream_may_be_split_at_any_byte() -> None:
    fragments = ['{"call": "f", "in', 'put": {"x": "äh \\ud83d', '\\ude00"}', "}"]
    raw = sse(*(chunk({"content": fragment}) for fragment in fragments), chunk(finish="stop"))
    for index in range(len(raw) + 1):
        decoder, reader = OpenAIDecoder(), ConstrainedDecoder(new_id=lambda: "c")
        batches = [*map(decoder.feed, cut(raw, [index])), decoder.close()]
        story = summarise([event for batch in batches for event in reader.decode(batch)])
        assert story == [
            ("call", "c", "f", '{"x": "äh \\ud83d\\ude00"}', {"x": "äh \U0001f600"}),
            ("finish", "tool-calls", "m-1"),
        ]


def test_an_answer_at_the_length_limit_keeps_its_text() -> None:
    cut_off = msgspec.structs.replace(FINISH, finish_reason="length")
    assert summarise(read(['{"answer": "Once upon a \\u00'], cut_off)) == [
        ("text", "Once upon a "),
        ("finish", "length", "m-1"),
    ]
    assert summarise(read(['{"ans'], cut_off)) == [("finish", "length", "m-1")]


def test_an_incomplete_call_is_an_error() -> None:
    cut_off = msgspec.structs.replace(FINISH, finish_reason="length")
    bad, finish = summarise(read(['{"call": "f", "input": {"x": "a'], cut_off))
    assert bad[:3] == ("bad call", "call_1", '{"x": "a')
    assert "cut off at its length limit" in bad[3]
    assert finish == ("finish", "length", "m-1")


def test_a_complete_call_may_run_although_the_limit_is_reached() -> None:
    cut_off = msgspec.structs.replace(FINISH, finish_reason="length")
    story = summarise(read(['{"call": "f", "input": {"x": 1}'], cut_off))
    assert story == [("call", "call_1", "f", '{"x": 1}', {"x": 1}), ("finish", "tool-calls", "m-1")]


@pytest.mark.parametrize(
    "text", ["", "Hello.", '{"reply": "x"}', '{"answer": "\\x', '{"call": "f"}', '{"call']
)
def test_an_answer_that_does_not_match_the_schema_is_an_error(text: str) -> None:
    with pytest.raises(ProviderError, match="does not match the required schema") as failed:
        read([text])
    assert failed.value.category == "api_error"


def test_an_id_of_the_history_is_not_reused() -> None:
    (call, _) = summarise(read(['{"call": "f", "input": {}}'], used_ids={"call_1", "call_2"}))
    assert call[1] == "call_3"


def test_reasoning_is_passed_through() -> None:
    reader = ConstrainedDecoder(new_id=str)
    thought: list[e.Event] = [
        e.ReasoningStart("reasoning-1"),
        e.ReasoningDelta("reasoning-1", "hm"),
        e.ReasoningEnd("reasoning-1"),
    ]
    assert reader.decode(thought) == thought
