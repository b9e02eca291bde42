"""Anthropic streams cut, ended or broken in any way: the same answer, or a failure; never half a finish."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.errors import ProviderError
from dragoman.wire.anthropic.decoder import Decoder

from .anthropic_streams import (
    OVERLOADED,
    PING,
    STOP,
    STREAMS,
    UNKNOWN,
    block,
    call,
    decode,
    folded,
    sse,
    start,
    stop,
    text,
)
from .openai_streams import Answer, cut

ALL = {**STREAMS, "unknown": UNKNOWN}


def told(answer: Answer) -> tuple[Any, ...]:
    """All that is said, without how it was cut; the order of events is checked on the way."""
    return folded(answer.events), answer.finish, answer.failure and str(answer.failure)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_cut_anywhere_changes_nothing(name: str, end: bytes) -> None:
    raw = b"\xef\xbb\xbf" + ALL[name].replace(b"\n", end)
    whole = told(decode([ALL[name]]))
    assert whole[1] is not None
    assert told(decode([raw])) == whole
    assert told(decode(raw[place : place + 1] for place in range(len(raw)))) == whole
    for place in range(0, len(raw), 1 if end == b"\n" else 7):
        assert told(decode(cut(raw, [place]))) == whole


@given(st.sampled_from(sorted(ALL)), st.lists(st.integers(0, 4000), max_size=30))
def test_many_cuts_change_nothing(name: str, places: list[int]) -> None:
    raw = ALL[name]
    assert told(decode(cut(raw, [place % len(raw) for place in places]))) == told(decode([raw]))


@pytest.mark.parametrize("name", ALL)
def test_a_stream_that_ends_early_is_a_failure_and_never_a_finish(name: str) -> None:
    raw = ALL[name]
    border = raw.index(b'"type":"message_stop"')
    for end in range(0, border, 3):
        answer = decode([raw[:end]])
        assert answer.finish is None
        assert answer.failure is not None
        assert (answer.failure.category, answer.failure.transient) == ("network", True)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b": hello\n\n", "is empty"),
        (b"<html>no</html>", "is empty"),
        (sse(PING), "is empty"),
        (b"data: [DONE]\n\n", "is empty"),
        (sse(start(), *text(0, "Hi")), "without message_stop"),
        (sse(start(), *text(0, "Hi"), stop("end_turn")), "without message_stop"),
        (sse(start(), *text(0, "Hi"), stop("end_turn"), b"data: [DONE]\n\n"), "without message_stop"),
        (sse(start(), *text(0, "Hi"), STOP), "without a stop reason"),
        (sse(start(), *text(0, "Hi"), stop(None), STOP), "without a stop reason"),
        (sse(start(), *text(0, "Hi"), stop("end_turn"), STOP)[:-9], "inside an event"),
    ],
)
def test_a_finish_is_never_invented(raw: bytes, words: str) -> None:
    answer = decode([raw])
    assert answer.finish is None
    assert answer.failure is not None
    assert words in answer.failure.message
    assert (answer.failure.category, answer.failure.transient) == ("network", True)


def test_the_last_event_counts_without_its_blank_line() -> None:
    assert decode([STREAMS["text"].rstrip(b"\n")]).finish == decode([STREAMS["text"]]).finish


@pytest.mark.parametrize(
    ("kind", "category", "transient", "status"),
    [
        ("overloaded_error", "overloaded", True, 529),
        ("rate_limit_error", "rate_limit", True, 429),
        ("api_error", "api_error", True, 500),
        ("timeout_error", "timeout", True, 504),
        ("authentication_error", "auth", False, 401),
        ("permission_error", "auth", False, 403),
        ("billing_error", "rate_limit", False, 402),
        ("not_found_error", "bad_request", False, 404),
        ("invalid_request_error", "bad_request", False, 400),
        ("request_too_large", "context_limit", False, 413),
        ("something_new", "api_error", True, None),
    ],
)
def test_an_error_in_the_stream_is_known_by_its_type(
    kind: str, category: str, transient: bool, status: int | None
) -> None:
    error = {"type": kind, "message": "It is so."}
    answer = decode([sse(start(), *text(0, "Hi"), {"type": "error", "error": error}, stop("end_turn"), STOP)])
    assert answer.failure is not None
    failure = answer.failure
    assert failure.message == "It is so."
    assert (failure.category, failure.transient, failure.upstream_status) == (category, transient, status)
    assert failure.details == error


@pytest.mark.parametrize("before", [[], [start()], [start(), *text(0, "Hi")[:2]]])
def test_what_came_before_an_error_is_given_out_first(before: list[Any]) -> None:
    decoder = Decoder()
    heard = []
    try:
        heard = decoder.feed(sse(*before, OVERLOADED, STOP))
    except ProviderError:
        assert len(before) < 2
    assert len(heard) == (2 if len(before) > 1 else 0)
    assert decoder.failure is not None
    assert decoder.failure.category == "overloaded"
    with pytest.raises(ProviderError, match="Overloaded"):
        decoder.feed(b"")
    with pytest.raises(ProviderError, match="Overloaded"):
        decoder.close()


BUSY = b'{"type":"overloaded_error","message":"Overloaded"}'


@pytest.mark.parametrize(
    "raw",
    [
        b'event: error\ndata: {"type":"error","error":' + BUSY + b"}\n\n",
        b'data: {"type":"error","error":' + BUSY + b"}\n\n",
        b"event: error\ndata: " + BUSY + b"\n\n",
        b'data: {"error":' + BUSY + b"}\n\n",
        b"error: " + BUSY + b"\n\n",
        b'data: [{"type":"error","error":' + BUSY + b"}]\n\n",
        b"event: error\ndata: Overloaded\n\n",
    ],
)
def test_an_error_is_heard_in_every_shape(raw: bytes) -> None:
    for stream in (raw, sse(start(), *text(0, "Hi"), raw, STOP)):
        answer = decode([stream])
        assert answer.failure is not None
        assert (answer.failure.message, answer.failure.category) == ("Overloaded", "overloaded")


@pytest.mark.parametrize(
    "raw",
    [
        b"data: rubbish\n\n",
        b'event: content_block_delta\ndata: {"type":\n\n',
        b"data: 7\n\n",
        b"data: {}}\n\n",
    ],
)
def test_what_is_no_json_object_is_a_failure(raw: bytes) -> None:
    answer = decode([sse(start(), *text(0, "Hi"), raw, stop("end_turn"), STOP)])
    assert answer.finish is None
    assert answer.failure is not None
    assert (answer.failure.category, answer.failure.transient) == ("api_error", True)
    assert "what is no JSON" in answer.failure.message


@pytest.mark.parametrize(
    "raw", [b"event: ping\ndata: ping\n\n", b"data:\n\n", b"data: null\n\n", b"event: x\n\n"]
)
def test_heartbeats_of_gateways_are_passed_over(raw: bytes) -> None:
    answer = decode([sse(start(), raw, *text(0, "Hi"), raw, stop("end_turn"), STOP)])
    assert answer.failure is None


def test_an_event_that_is_too_long_is_a_failure() -> None:
    answer = decode([sse(start(), *text(0, "x" * 5000), stop("end_turn"), STOP)], limit=4000)
    assert answer.failure is not None
    assert answer.failure.category == "api_error"
    assert "longer than 4000 bytes" in answer.failure.message


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 500)
    | st.floats(width=16)
    | st.sampled_from(["", "a", "{", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "type", "input", "url", "error_code"]), inner, max_size=3)
    ),
    max_leaves=5,
)
KINDS = ["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "x_tool_result", "new"]
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | VALUES},
    optional=dict.fromkeys(
        ["id", "tool_use_id", "name", "input", "text", "data", "content", "citations"], VALUES
    ),
)
DELTAS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text_delta", "thinking_delta", "input_json_delta", "citations_delta", "signature_delta", "new"]
        )
    },
    optional=dict.fromkeys(
        ["text", "thinking", "partial_json", "citation", "signature", "stop_reason"], VALUES
    ),
)
EVENTS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
            ]
        )
    },
    optional={
        "index": st.sampled_from([0, 1, 2, "1", None, 2.5]),
        "content_block": BLOCKS | VALUES,
        "delta": DELTAS | VALUES,
        "message": st.fixed_dictionaries({}, optional={"content": st.lists(BLOCKS | VALUES, max_size=2)})
        | VALUES,
        "usage": VALUES,
    },
)


@given(st.lists(EVENTS, max_size=8), st.lists(st.integers(0, 2000), max_size=8))
def test_whatever_a_server_sends_ends_in_a_finish_or_a_failure_and_cuts_change_nothing(
    events: list[Any], places: list[int]
) -> None:
    raw = sse(*events, stop("end_turn"), STOP)
    answer = decode([raw])
    assert (answer.failure is None) == (answer.finish is not None)
    msgspec.json.encode(answer.events)
    assert told(decode(cut(raw, [min(place, len(raw)) for place in places]))) == told(answer)


@example("calls", [(315, 0)])
@example("search", [(585, 0)])
@given(
    st.sampled_from(sorted(ALL)), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=6)
)
def test_damaged_bytes_never_break_the_decoder(name: str, damage: list[tuple[int, int]]) -> None:
    raw = bytearray(ALL[name])
    for place, byte in damage:
        raw[place % len(raw)] = byte
    answer = decode([bytes(raw)])
    assert (answer.failure is None) == (answer.finish is not None)
    assert told(decode(cut(bytes(raw), range(0, len(raw), 5)))) == told(answer)


@pytest.mark.parametrize("depth", [300, 900, 100_000])
@pytest.mark.parametrize(
    "event",
    [
        block(0, {"type": "new", "x": "<deep>"})[0],
        block(0, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "<deep>"}})[0],
        call(0, "a", "f")[0] | {"delta": "<deep>"},
        start(["<deep>"]),
        {"type": "error", "error": {"message": "<deep>"}},
    ],
)
def test_json_however_deep_never_breaks_the_decoder(event: dict[str, Any], depth: int) -> None:
    for left, right in (("[", "]"), ('{"message":', "}")):
        deep = (left * depth + "1" + right * depth).encode()
        answer = decode([sse(event, stop("end_turn"), STOP).replace(b'"<deep>"', deep)])
        assert (answer.failure is None) == (answer.finish is not None)
