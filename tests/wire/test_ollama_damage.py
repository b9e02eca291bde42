"""Streams that no Ollama sends: whatever comes, the decoder ends in a finish or a failure."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ProviderError
from dragoman.wire.ollama.decoder import Decoder

from .ollama_streams import STREAMS, decode, line, ndjson
from .openai_streams import Answer, cut

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 500)
    | st.floats(width=16)
    | st.sampled_from(["", "stop", "a</th", "ink>", "{", "\ud83e"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "arguments", "text", "message"]), inner, max_size=2)
    ),
    max_leaves=5,
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", "b", "", None, 7]),
        "function": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["f", "g", "", None]), "arguments": VALUES}
        )
        | VALUES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "content": VALUES,
        "thinking": VALUES,
        "tool_calls": st.lists(CALLS, max_size=3) | VALUES,
    },
)
LINES = st.fixed_dictionaries(
    {},
    optional={
        "message": MESSAGES | VALUES,
        "done": VALUES,
        "done_reason": VALUES,
        "model": VALUES,
        "eval_count": VALUES,
        "prompt_eval_count": VALUES,
        "error": st.sampled_from([None, {}, ""]),
    },
)


def raw_of(lines: list[Any]) -> bytes:
    """The lines as JSON that may hold NaN and halves of surrogate pairs."""

    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@given(st.lists(LINES, max_size=6), st.lists(st.integers(0, 2000), max_size=8))
def test_whatever_a_server_sends_ends_in_a_finish_or_a_failure_and_cuts_change_nothing(
    lines: list[Any], places: list[int]
) -> None:
    raw = raw_of(lines)
    answer = decode([raw])
    assert (answer.failure is None) == (answer.finish is not None)
    again = decode(cut(raw, [min(place, len(raw)) for place in places]))
    assert again.finish == answer.finish
    assert str(again.failure) == str(answer.failure)
    if answer.finish:
        assert again.story == answer.story
    msgspec.json.encode([answer.events, answer.failure and answer.failure.message])


@given(
    st.sampled_from(sorted(STREAMS)),
    st.lists(st.tuples(st.integers(0, 3000), st.sampled_from([*b'\n\r{}"\\,:\x00\xff</', 200])), max_size=6),
)
def test_damaged_bytes_never_break_the_decoder(name: str, damage: list[tuple[int, int]]) -> None:
    raw = bytearray(STREAMS[name])
    for place, byte in damage:
        raw[place % len(raw)] = byte
    answer = decode([bytes(raw)])
    assert (answer.failure is None) == (answer.finish is not None)
    again = decode(cut(bytes(raw), range(0, len(raw), 5)))
    assert (again.finish, str(again.failure)) == (answer.finish, str(answer.failure))
    if answer.finish:
        assert again.story == answer.story


@pytest.mark.parametrize(
    "raw",
    [
        b'{"message":{"content":"a"}}{"message":{"content":"b"}}\n',
        b'{"message":\n{"content":"a"}}\n{"message":{}}{"message":{}}\n',
        b'{"message":{"content":"a"}\n}\n',
        b"data: {}\n",
        b"null\n",
        b'"x"\n',
    ],
)
def test_what_is_not_one_object_a_line_is_garbage_however_it_is_cut(raw: bytes) -> None:
    for pieces in ([raw], cut(raw, range(len(raw)))):
        failure = decode(pieces).failure
        assert failure is not None
        assert (failure.category, failure.message[:31]) == ("api_error", "the provider sent what is no JS")


def test_a_character_that_was_cut_in_half_comes_out_whole() -> None:
    raw = rb'{"message":{"content":"\ud83e"}}' + b"\n" + rb'{"message":{"content":"\udd9c"}}' + b"\n"
    done = ndjson({"done": True, "done_reason": "stop"})
    for pieces in ([raw + done], cut(raw + done, range(len(raw)))):
        assert decode(pieces).story == [("text", "🦜"), ("finish", "stop", None)]


def test_broken_utf8_is_replaced() -> None:
    raw = ndjson(line("wXrd")).replace(b"X", b"\xff") + STREAMS["cut"]
    assert decode([raw]).story == [("text", "w\ufffdrdOne two"), ("finish", "length", "qwen3:8b")]


@pytest.mark.parametrize(
    "place",
    [
        '{"message":{"content":%s}}',
        '{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"x":%s}}}]}}',
        '{"message":{},"error":%s}',
        '{"message":{},"done_reason":%s}',
        '{"detail":%s}',
        "%s",
    ],
)
@pytest.mark.parametrize("depth", [3, 300, 900, 100_000])
def test_json_however_deep_never_breaks_the_decoder(place: str, depth: int) -> None:
    for left, right in (("[", "]"), ('{"text":', "}"), ('{"message":', "}")):
        deep = left * depth + ('"\\ud83e"' if left == "[" else "1") + right * depth
        document = place.replace("%s", deep).encode()
        for answer in (decode([document + b"\n"]), whole(document)):
            assert answer.failure is not None
            msgspec.json.encode([answer.events, answer.failure.message])


def whole(document: bytes) -> Answer:
    try:
        return Answer(Decoder().whole(document))
    except ProviderError as error:
        return Answer(failure=error)
