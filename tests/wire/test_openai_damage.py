"""Streams that no vendor sends: whatever comes, the decoder ends in a finish or a failure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ProviderError
from dragoman.wire.openai.decoder import Decoder

from .openai_streams import NAMES, Answer, cut, decode, recording, sse

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 500)
    | st.floats(width=16)
    | st.sampled_from(["", "stop", "a<th", "{"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "summary", "signature", "url"]), inner, max_size=2)
    ),
    max_leaves=5,
)
FRAGMENTS = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, "0", None, 2.5]),
        "id": st.sampled_from(["a", "b", "", None, 7]),
        "function": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["f", "g", "", None]),
                "arguments": st.sampled_from(["{", "}", "{}"]) | VALUES,
            },
        ),
    },
)
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["content", "reasoning", "refusal", "reasoning_details", "images", "audio"], VALUES),
        "annotations": VALUES,
        "tool_calls": st.lists(FRAGMENTS, max_size=3) | VALUES,
    },
)
CHUNKS = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {}, optional={"delta": DELTAS | VALUES, "finish_reason": VALUES, "index": VALUES}
            ),
            max_size=2,
        )
        | VALUES,
        "usage": VALUES,
        "model": VALUES,
        "error": st.sampled_from([None, {}]),
    },
)


@given(st.lists(CHUNKS, max_size=6), st.lists(st.integers(0, 2000), max_size=8))
def test_whatever_a_server_sends_ends_in_a_finish_or_a_failure_and_cuts_change_nothing(
    chunks: list[Any], places: list[int]
) -> None:
    raw = sse(*chunks)
    answer = decode([raw])
    assert (answer.failure is None) == (answer.finish is not None)
    again = decode(cut(raw, [min(place, len(raw)) for place in places]))
    assert (again.story, again.finish) == (answer.story, answer.finish)


@given(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=6))
def test_damaged_bytes_never_break_the_decoder(name: str, damage: list[tuple[int, int]]) -> None:
    raw = bytearray(recording(name))
    for place, byte in damage:
        raw[place % len(raw)] = byte
    answer = decode([bytes(raw)])
    assert (answer.failure is None) == (answer.finish is not None)
    assert decode(cut(bytes(raw), range(0, len(raw), 5))).story == answer.story


@pytest.mark.parametrize(
    "place",
    [
        '{"choices":[{"index":0,"delta":{"content":%s}}]}',
        '{"choices":[{"index":0,"delta":{"reasoning_details":[{"signature":"s","text":%s}]}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":{"x":%s}}}]}}]}',
        '{"choices":[{"index":0,"delta":{"images":%s}}],"citations":%s}',
        '{"choices":"x","error":%s}',
        '{"detail":%s}',
        "%s",
    ],
)
@pytest.mark.parametrize("depth", [3, 300, 900, 100_000])
def test_json_however_deep_never_breaks_the_decoder(place: str, depth: int) -> None:
    for left, right in (("[", "]"), ('{"text":', "}"), ('{"message":', "}")):
        deep = left * depth + ('"\\ud83e"' if left == "[" else "1") + right * depth
        document = place.replace("%s", deep).encode()
        for answer in (decode([sse(b"data: " + document + b"\n\n")]), whole(document)):
            assert answer.failure is not None
            msgspec.json.encode([answer.events, answer.failure.message])


def whole(document: bytes) -> Answer:
    try:
        return Answer(Decoder().whole(document))
    except ProviderError as error:
        return Answer(failure=error)


@given(st.lists(CHUNKS, max_size=4))
def test_all_that_comes_out_can_be_written(chunks: list[Any]) -> None:
    raw = sse(*chunks).replace(b'"text"', b'"\\ud83etext"').replace(b'"a"', b'"\\udd9c"')
    answer = decode([raw])
    msgspec.json.encode([answer.events, answer.failure and answer.failure.message])
