"""Anthropic streams that end early or are invalid: a failure with its reason, never half a finish."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dragoman.errors import ProviderError
from dragoman.wire.anthropic.decoder import AnthropicDecoder

from .anthropic_streams import (
    OVERLOADED,
    PING,
    STOP,
    STREAMS,
    UNKNOWN,
    decode,
    sse,
    start,
    stop,
    text,
)

AGAIN = {"type": "message_start", "message": {**start()["message"], "id": "msg_02"}}
ALL = {**STREAMS, "unknown": UNKNOWN}


@pytest.mark.parametrize("name", ALL)
def test_a_stream_that_ends_early_is_a_failure_and_never_a_finish(name: str) -> None:
    raw = ALL[name]
    border = raw.index(b'"type":"message_stop"')
    for end in range(0, border, 3):
        answer = decode([raw[:end]])
        if re.search(rb'"stop_reason": ?"', raw[:end]) and answer.failure is None:
            assert answer.finish is not None  # only message_stop is missing
            continue
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
        (sse(start(), *text(0, "Hi"), STOP), "without a stop reason"),
        (sse(start(), *text(0, "Hi"), stop(None), STOP), "without a stop reason"),
        (sse(start(), *text(0, "Hi"), stop("end_turn"), STOP)[:-9], "inside an event"),
        (sse(start(), *text(0, "Hi")[:2], AGAIN, *text(0, "Ho"), stop("end_turn"), STOP), "began again"),
    ],
)
def test_a_finish_is_never_invented(raw: bytes, words: str) -> None:
    answer = decode([raw])
    assert answer.finish is None
    assert answer.failure is not None
    assert words in answer.failure.message
    assert (answer.failure.category, answer.failure.transient) == ("network", True)


def test_the_last_event_is_read_without_its_blank_line() -> None:
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
def test_an_error_in_the_stream_is_identified_by_its_type(
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
def test_events_before_an_error_are_returned_first(before: list[Any]) -> None:
    decoder = AnthropicDecoder()
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
def test_an_error_is_recognised_in_every_shape(raw: bytes) -> None:
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
def test_a_frame_that_is_not_a_json_object_is_a_failure(raw: bytes) -> None:
    answer = decode([sse(start(), *text(0, "Hi"), raw, stop("end_turn"), STOP)])
    assert answer.finish is None
    assert answer.failure is not None
    assert (answer.failure.category, answer.failure.transient) == ("api_error", True)
    assert "invalid JSON" in answer.failure.message


@pytest.mark.parametrize(
    "raw", [b"event: ping\ndata: ping\n\n", b"data:\n\n", b"data: null\n\n", b"event: x\n\n"]
)
def test_heartbeats_of_gateways_are_ignored(raw: bytes) -> None:
    answer = decode([sse(start(), raw, *text(0, "Hi"), raw, stop("end_turn"), STOP)])
    assert answer.failure is None


def test_an_event_that_is_too_long_is_a_failure() -> None:
    answer = decode([sse(start(), *text(0, "x" * 5000), stop("end_turn"), STOP)], limit=4000)
    assert answer.failure is not None
    assert answer.failure.category == "api_error"
    assert "longer than 4000 bytes" in answer.failure.message
