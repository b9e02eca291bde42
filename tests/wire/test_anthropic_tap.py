"""The tap on relayed Messages answers: frames are passed on unchanged, usage is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.wire.anthropic.tap import AnthropicTap

from .anthropic_streams import MODEL, OVERLOADED, PING, STOP, block, call, sse, start, stop, text
from .openai_streams import cut
from .test_openai_tap import frames

HELLO = [start(), *text(0, "Hel", "lo"), stop("end_turn"), STOP]
CUT = "the provider's answer ended without a finish reason"
HALF = text(0, "HALF")[1]


def run(tap: AnthropicTap, reads: Iterable[bytes]) -> bytes:
    """The bytes that are passed on to the client."""
    return b"".join([*map(tap.feed, reads), tap.close()])


def state(tap: AnthropicTap) -> tuple[Any, ...]:
    failure = tap.failure and (tap.failure.category, tap.failure.message)
    return (
        tap.done,
        failure,
        tap.model,
        tap.finish_reason,
        tap.text_length,
        tap.usage,
        tap.generation_finished,
    )


def relay(raw: bytes) -> tuple[AnthropicTap, list[tuple[str | None, bytes]]]:
    """The tap and the frames that it passes on: the same for all at once and byte by byte."""
    whole, single = AnthropicTap(), AnthropicTap()
    output = frames(run(whole, [raw]))
    assert output == frames(run(single, [raw[index : index + 1] for index in range(len(raw))]))
    assert state(whole) == state(single)
    return whole, output


def failed(tap: AnthropicTap) -> ProviderError:
    assert not tap.done
    assert tap.failure is not None
    return tap.failure


def test_a_complete_stream_is_passed_on_unchanged_and_recorded() -> None:
    raw = sse(HELLO[0], PING, *HELLO[1:])
    tap = AnthropicTap()
    assert run(tap, [raw]) == raw
    assert state(tap) == (True, None, MODEL, "end_turn", 5, Usage(10, 25, 35), True)
    assert relay(raw)[1] == frames(raw)


deltas = st.tuples(
    st.sampled_from(["text_delta", "thinking_delta", "signature_delta", "citations_delta"]),
    st.text(max_size=20),
)
beside = st.sampled_from(
    [[PING], [b": hello\n\n"], [b"event: ping\ndata: \n\n"], [{"type": "new_event", "x": [1]}]]
)


@given(
    parts=st.lists(deltas | beside, max_size=8),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    places=st.lists(st.integers(0, 4000), max_size=20),
    ended=st.booleans(),
)
def test_the_same_payloads_are_passed_on_however_the_stream_is_split(
    *, parts: list[Any], end: bytes, places: list[int], ended: bool
) -> None:
    ending = [stop("end_turn")] if ended else []
    talk: list[Any] = []
    for part in parts:
        if isinstance(part, tuple):
            number = sum(isinstance(event, dict) and event["type"] == "content_block_start" for event in talk)
            kind, value = part
            delta = {"type": kind, kind.partition("_")[0]: value}
            talk += block(number, {"type": "text", "text": ""}, delta)
        else:
            talk += part
    raw = sse(start(), *talk, *ending, STOP).replace(b"\n", end)
    tap = AnthropicTap()
    output = frames(run(tap, cut(raw, [index for index in places if index <= len(raw)])))
    sent = frames(raw)
    assert output == (sent if ended else sent[:-1])
    assert (tap.done, tap.failure is None) == (ended, ended)


def test_text_thinking_and_arguments_count_towards_the_text_length() -> None:
    thought = block(0, {"type": "thinking"}, {"type": "thinking_delta", "thinking": "abc"})
    signed = block(1, {"type": "thinking"}, {"type": "signature_delta", "signature": "x" * 500})
    raw = sse(start(), *thought, *signed, *text(2, "de"), *call(3, "t", "f", '{"a"', ":1}"))
    assert relay(raw)[0].text_length == 3 + 2 + 7


# ---- the end --------------------------------------------------------------------------------------------


def test_a_stream_that_begins_another_message_in_its_middle_is_a_failure() -> None:
    again = {"type": "message_start", "message": {**start()["message"], "id": "msg_02"}}
    begun = [start(), *text(0, "Hel")[:2]]
    tap, output = relay(sse(*begun, again, *HELLO[1:]))
    assert output == frames(sse(*begun))
    assert "began again" in failed(tap).message
    for harmless in (sse(again, *HELLO), sse(start(), *HELLO)):  # nothing was lost
        assert relay(harmless)[0].done


@pytest.mark.promise("a-cut-answer-is-an-error")
@pytest.mark.parametrize("count", range(len(HELLO) - 1))
def test_a_stream_without_its_message_stop_is_a_failure(count: int) -> None:
    raw = sse(*HELLO[:count])
    tap, output = relay(raw)
    assert output == frames(raw)
    assert (failed(tap).message, failed(tap).category, failed(tap).transient) == (
        CUT if count else "the provider's answer is empty",
        "network",
        True,
    )


def test_a_message_stop_without_a_stop_reason_is_a_failure_and_not_passed_on() -> None:
    tap, output = relay(sse(*HELLO[:-2], STOP))
    assert output == frames(sse(*HELLO[:-2]))
    assert failed(tap).message == CUT


def test_a_stop_reason_in_the_start_counts() -> None:
    tap, _ = relay(sse(start(stop="refusal"), stop(None), STOP))
    assert (tap.done, tap.finish_reason) == (True, "refusal")


def test_nothing_is_passed_on_after_the_stop() -> None:
    raw = sse(*HELLO)
    tap = AnthropicTap()
    assert tap.feed(raw + raw + b"data: [DONE]\n\n") == raw
    assert (tap.feed(raw), tap.close(), tap.text_length) == (b"", b"", 5)


def test_a_stop_without_its_blank_line_is_read() -> None:
    raw = sse(*HELLO).removesuffix(b"\n\n")
    tap, output = relay(raw)
    assert (tap.done, output) == (True, frames(raw))


def test_events_without_names_are_named_by_their_types() -> None:
    raw = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in HELLO)
    tap, output = relay(raw)
    named = [(event["type"], data) for event, (_, data) in zip(HELLO, frames(raw), strict=True)]
    assert (tap.done, output) == (True, named)


# ---- usage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "end", "usage"),
    [
        ({"input_tokens": 10, "output_tokens": 1}, {"output_tokens": 25}, Usage(10, 25, 35)),
        ({"input_tokens": 10, "output_tokens": 1}, None, Usage(10, 1, 11)),
        ({"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 7, "output_tokens": 2}, Usage(7, 2, 9)),
        (
            {
                "input_tokens": 3,
                "cache_read_input_tokens": 40,
                "cache_creation_input_tokens": 5,
                "output_tokens": 1,
            },
            {"output_tokens": 9},
            Usage(48, 9, 57, cached_input_tokens=40, cache_write_tokens=5),
        ),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 40, "output_tokens": 1},
            {"input_tokens": 4, "cache_read_input_tokens": None, "output_tokens": 9},
            Usage(44, 9, 53, cached_input_tokens=40),
        ),
        ({"output_tokens": 1}, {"output_tokens": 9}, Usage(None, 9, None)),
        ({"input_tokens": "10", "output_tokens": -1}, {"output_tokens": 1.5}, None),
    ],
)
def test_the_last_counts_are_used_and_those_of_the_start_if_the_end_has_none(
    begin: dict[str, Any], end: dict[str, Any] | None, usage: Usage | None
) -> None:
    final = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end}
    tap, _ = relay(sse(start(**begin), final, STOP))
    assert (tap.usage, tap.done) == (usage, True)


def test_before_its_end_a_stream_has_the_input_counts_of_its_start() -> None:
    tap = AnthropicTap()
    tap.feed(sse(*HELLO[:3]))
    assert (tap.usage, tap.generation_finished) == (Usage(input_tokens=10), False)
    tap.feed(sse(*HELLO[3:-1]))
    assert (tap.usage, tap.generation_finished, tap.done) == (Usage(10, 25, 35), True, False)


def test_a_stream_without_counts_has_no_usage() -> None:
    begin = start()
    del begin["message"]["usage"]
    tap, _ = relay(sse(begin, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, STOP))
    assert (tap.usage, tap.done) == (None, True)


# ---- failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "category"),
    [
        (OVERLOADED, "overloaded"),
        ({"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}, "api_error"),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}, "rate_limit"),
        (
            b'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
            "overloaded",
        ),
        (b'event: error\ndata: {"message":"Overloaded"}\n\n', "overloaded"),
        (b"event: error\ndata: server is busy\n\n", "overloaded"),
        (b'error: {"message":"Overloaded"}\n\n', "overloaded"),
        (b'data: {"error":{"message":"Overloaded"}}\n\n', "overloaded"),
        (b"data: <html>\n\n", "api_error"),
        (b"event: content_block_delta\ndata: {bad\n\n", "api_error"),
        (b"data: 7\n\n", "api_error"),
    ],
)
def test_an_error_ends_the_stream_after_the_frames_before_it(bad: Any, category: str) -> None:
    before = sse(*HELLO[:3])
    tap, output = relay(before + sse(bad) + sse(*HELLO[3:]))
    assert output == frames(before)
    assert failed(tap).category == category
    assert (tap.feed(sse(*HELLO)), tap.close()) == (b"", b"")


@pytest.mark.parametrize(
    "odd",
    [
        b"event: ping\ndata: \n\n",
        sse(HALF).replace(b"HALF", b"\\ud83d"),
        b'event: x\ndata: {"type":"x",\ndata: "y":NaN}\n\n',
        b'data: {"type":"vendor_event","error":null}\n\n',
    ],
)
def test_irregular_frames_are_passed_on_unchanged(odd: bytes) -> None:
    raw = sse(*HELLO[:2]) + odd + sse(*HELLO[2:])
    tap, output = relay(raw)
    assert (output, tap.failure, tap.done) == (frames(raw), None, True)


@pytest.mark.parametrize("name", [b"", b"event: data\n", b"event: done\n", b"event: message_stop\n"])
@pytest.mark.parametrize("data", [b"[DONE]", b" [DONE] ", b'"[DONE]"'])
@pytest.mark.parametrize("place", [0, 2, len(HELLO) - 1, len(HELLO)])
def test_done_is_left_out_wherever_it_is(name: bytes, data: bytes, place: int) -> None:
    before, after = sse(*HELLO[:place]), sse(*HELLO[place:])
    tap, output = relay(before + name + b"data: " + data + b"\n\n" + after)
    assert (output, tap.failure, tap.done) == (frames(before + after), None, True)


def test_done_alone_is_an_empty_answer_and_nothing_is_passed_on() -> None:
    tap, output = relay(b"data: [DONE]\n\n")
    assert (output, failed(tap).message) == ([], "the provider's answer is empty")


def test_a_comment_is_passed_on_as_a_keep_alive() -> None:
    assert AnthropicTap().feed(b": still there\n\n") == b": keep-alive\n\n"


@pytest.mark.parametrize("size", [*range(990, 1012), 5000])
def test_a_frame_that_is_too_long_is_a_failure_without_an_exception(size: int) -> None:
    tap = AnthropicTap(limit=1000)
    before = sse(*HELLO[:1])
    output = run(tap, [before, b"data: " + b"x" * (size - 6)])
    assert (output, failed(tap).category) == (before, "api_error")
