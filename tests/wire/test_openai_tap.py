"""The tap on relayed chat.completions answers: regular frames are passed on unchanged, usage is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.wire.openai.chunk import MAX_CHOICES
from dragoman.wire.openai.document_tap import read_completion
from dragoman.wire.openai.tap import OpenAITap
from dragoman.wire.openai.usage import has_counts
from dragoman.wire.sse import NamedFrame, SSEParser, encode_frame
from dragoman.wire.tap import AnswerDefaults

from .openai_streams import HEAD, NAMES, REGULAR, chunk, cut, cuts, decode, recording, sse

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
COUNTED = Usage(input_tokens=7, output_tokens=3, total_tokens=10)
HELLO = [chunk({"role": "assistant", "content": "Hel"}), chunk({"content": "lo"}), chunk(finish="stop")]
LAST = {**HEAD, "choices": [], "usage": USAGE}
CUT = "the provider's answer ended without a finish reason"


def run(tap: OpenAITap, reads: Iterable[bytes]) -> bytes:
    """The bytes that are passed on to the client."""
    return b"".join([*map(tap.feed, reads), tap.close()])


def frames(raw: bytes) -> list[tuple[str | None, bytes]]:
    """Names and payloads of a stream."""
    splitter = SSEParser()
    found = [*splitter.feed(raw), *splitter.close()]
    return [(payload.event if isinstance(payload, NamedFrame) else None, bytes(payload)) for payload in found]


def relay(raw: bytes, tap: OpenAITap | None = None) -> tuple[OpenAITap, list[tuple[str | None, bytes]]]:
    """The tap and the frames that it passes on: the same for all at once and byte by byte."""
    hides = tap is not None and tap._hide_usage
    lenient = tap is not None and tap._lenient_finish
    states = []
    for reads in ([raw], [raw[index : index + 1] for index in range(len(raw))]):
        read = OpenAITap(hide_usage=hides, lenient=lenient)
        states.append((read, frames(run(read, reads))))
    (whole, output), (single, again) = states
    assert output == again
    assert state(whole) == state(single)
    return whole, output


def state(tap: OpenAITap) -> tuple[Any, ...]:
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


def failed(tap: OpenAITap) -> ProviderError:
    assert not tap.done
    assert tap.failure is not None
    return tap.failure


def test_a_complete_stream_is_passed_on_and_recorded() -> None:
    raw = sse(*HELLO, LAST)
    tap, output = relay(raw)
    assert output == frames(raw)
    assert state(tap) == (True, None, "m-1", "stop", 5, COUNTED, True)


def test_a_regular_stream_is_passed_on_byte_for_byte() -> None:
    raw = sse(*HELLO, LAST)
    assert run(OpenAITap(), [raw]) == raw


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(6))
def test_recordings_are_passed_on_completely_with_the_usage_that_the_decoder_reads(
    name: str, seed: int
) -> None:
    raw = recording(name)
    tap = OpenAITap()
    output = frames(run(tap, cut(raw, cuts(raw, seed))))
    answer = decode([raw])
    if answer.finish is None or answer.failure is not None:
        assert tap.failure is not None
        return
    assert state(tap)[:2] == (True, None)
    whole = OpenAITap(defaults=AnswerDefaults())
    assert output == frames(run(whole, [raw]))
    assert tap.usage == answer.finish.usage
    if name in REGULAR:
        expected = [pair for pair in frames(raw) if pair[1].strip() not in (b"", b"[DONE]")]
        assert [pair for pair in output if pair[1] != b"[DONE]"] == expected


payloads = st.builds(
    lambda text, index, extra: msgspec.json.encode(
        {**HEAD, "choices": [{"index": index, "delta": {"content": text, **extra}}]}
    ),
    st.text(max_size=20),
    st.integers(0, 2),
    st.dictionaries(st.sampled_from(["x", "tool_calls", "reasoning_content"]), st.none(), max_size=2),
)
beside = st.sampled_from(
    [b": ping\n\n", b"id: 7\nretry: 10\n\n", b"event: heartbeat\ndata: {}\n\n", b": a\r\n\r\n"]
)


@given(
    parts=st.lists(payloads | beside, max_size=12),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    places=st.lists(st.integers(0, 3000), max_size=20),
    ended=st.booleans(),
)
def test_the_same_payloads_are_passed_on_however_the_stream_is_split(
    parts: list[bytes], end: bytes, places: list[int], *, ended: bool
) -> None:
    ending = [msgspec.json.encode(chunk(finish="stop") | {"choices": finishes()})] if ended else []
    body = [part if part.endswith(b"\n") else encode_frame(part) for part in [*parts, *ending]]
    raw = b"".join(body).replace(b"\r\n", b"\n").replace(b"\n", end) + (b"data: [DONE]" + end * 2)
    tap = OpenAITap()
    output = frames(run(tap, cut(raw, [index for index in places if index <= len(raw)])))
    sent = [pair for pair in frames(raw) if pair[0] != "heartbeat"]
    if ended:
        assert (output, tap.done) == (sent, True)
    elif tap.done:  # some text came: the finish that is missing is added
        assert [output[: len(sent) - 1], output[len(sent) :]] == [sent[:-1], sent[-1:]]
    else:
        assert output == sent[:-1]


def finishes() -> list[dict[str, Any]]:
    delta = {"role": "assistant"}  # which no other chunk here has
    return [{"index": index, "delta": delta, "finish_reason": "stop"} for index in range(3)]


# ---- the end --------------------------------------------------------------------------------------------


def test_done_after_an_answer_without_a_finish_reason_gets_one() -> None:
    tap, output = relay(sse(*HELLO[:2]))
    assert (tap.done, tap.failure, tap.finish_reason) == (True, None, "stop")
    assert output[:2] == frames(sse(*HELLO[:2], done=False))
    assert msgspec.json.decode(output[2][1]) == HELLO[2]
    assert output[3:] == [(None, b"[DONE]")]


def test_done_after_usage_without_a_finish_reason_gets_one_with_the_usage() -> None:
    tap, output = relay(sse(HELLO[0], LAST))
    assert (tap.done, tap.usage) == (True, COUNTED)
    assert msgspec.json.decode(output[2][1]) == {**HELLO[2], "usage": USAGE}
    tap, output = relay(sse(chunk({"role": "assistant"}), LAST), OpenAITap(hide_usage=True))
    assert [msgspec.json.decode(payload) for _, payload in output[1:-1]] == [HELLO[2]]


def test_done_after_calls_without_a_finish_reason_finishes_with_them() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    tap, output = relay(sse(chunk({"tool_calls": [call]})))
    assert (tap.done, tap.finish_reason) == (True, "tool_calls")
    assert msgspec.json.decode(output[1][1]) == chunk({"role": "assistant"}, finish="tool_calls")


@pytest.mark.parametrize("chunks", [[], [chunk({"role": "assistant", "content": ""})]])
def test_done_without_an_answer_is_a_failure_and_not_passed_on(chunks: list[Any]) -> None:
    tap, output = relay(sse(*chunks))
    assert (None, b"[DONE]") not in output
    assert "although it sent [DONE]" in failed(tap).message or "is empty" in failed(tap).message
    assert (failed(tap).category, failed(tap).transient) == ("network", True)


@pytest.mark.promise("a-cut-answer-is-an-error")
def test_an_end_without_a_finish_reason_is_a_failure() -> None:
    tap, output = relay(sse(*HELLO[:2], done=False))
    assert len(output) == 2
    assert failed(tap).message == CUT


def test_an_empty_body_is_a_failure() -> None:
    assert failed(relay(b"")[0]).message == "the provider's answer is empty"
    assert failed(relay(b": hello\n\n")[0]).message == "the provider's answer is empty"


def test_a_stream_without_done_after_its_finish_reason_is_complete_and_no_done_is_added() -> None:
    tap, output = relay(sse(*HELLO, done=False))
    assert (tap.done, tap.failure) == (True, None)
    assert (None, b"[DONE]") not in output


def test_a_last_frame_without_its_blank_line_is_read() -> None:
    raw = sse(*HELLO, LAST).removesuffix(b"\n\n")
    assert relay(raw)[1] == frames(raw)


def test_a_truncated_frame_is_removed_after_the_finish_and_a_failure_before_it() -> None:
    tap, output = relay(sse(*HELLO, done=False) + b'data: {"choi')
    assert (tap.done, len(output)) == (True, 3)
    tap, output = relay(sse(*HELLO[:2], done=False) + b'data: {"choi')
    assert (failed(tap).category, len(output)) == ("api_error", 2)


def test_nothing_is_passed_on_after_done() -> None:
    raw = sse(*HELLO)
    tap = OpenAITap()
    assert tap.feed(raw + sse(*HELLO)) == raw
    assert (tap.feed(sse(*HELLO)), tap.close(), tap.text_length) == (b"", b"", 5)


def test_with_lenient_finish_done_completes_the_answer() -> None:
    tap, output = relay(sse(*HELLO[:2]), OpenAITap(lenient=True))
    assert (tap.done, tap.finish_reason, output[-1]) == (True, "stop", (None, b"[DONE]"))
    tap, _ = relay(sse(chunk({"role": "assistant", "content": ""})), OpenAITap(lenient=True))
    assert tap.done
    assert failed(relay(sse(*HELLO[:2], done=False), OpenAITap(lenient=True))[0]).message == CUT
    assert failed(relay(sse(), OpenAITap(lenient=True))[0]).message.startswith(
        "the provider's answer is empty"
    )


@pytest.mark.parametrize("closing", [b"data: [DONE] \n\n", b"data:[DONE]\n\n", b"data:  [DONE]\n\n"])
def test_done_may_have_spaces_around_it(closing: bytes) -> None:
    tap, output = relay(sse(*HELLO, done=False) + closing)
    assert (tap.done, tap.failure, output[-1]) == (True, None, (None, b"[DONE]"))


def test_every_choice_gets_a_finish_reason() -> None:
    def say(index: int, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": {"content": "ab"}, "finish_reason": finish}
        return {**HEAD, "choices": [choice]}

    talk = [say(0), say(1), say(1, "length"), say(0), say(2)]
    tap, output = relay(sse(*talk, say(0, "stop")))
    assert (tap.done, tap.finish_reason, len(output)) == (True, "length", 8)
    added = {"index": 2, "delta": {"role": "assistant"}, "finish_reason": "stop"}
    assert msgspec.json.decode(output[6][1]) == {**HEAD, "choices": [added]}
    assert failed(relay(sse(*talk, say(0, "stop"), done=False))[0]).message == CUT
    tap, output = relay(sse(*talk, say(0, "stop"), say(2, "stop")))
    assert (tap.done, tap.finish_reason, tap.text_length, len(output)) == (True, "length", 14, 8)


# ---- usage ----------------------------------------------------------------------------------------------


def test_the_usage_chunk_is_removed_only_if_the_hub_requested_it() -> None:
    raw = sse(*HELLO, LAST)
    tap, output = relay(raw, OpenAITap(hide_usage=True))
    assert output == frames(sse(*HELLO))
    assert tap.usage == COUNTED
    assert relay(raw)[1] == frames(raw)


@pytest.mark.parametrize(
    "fields",
    [
        chunk(finish="stop", usage=USAGE),
        {**HEAD, "choices": [], "usage": None, "prompt_filter_results": []},
        {**HEAD, "choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}},
        {**HEAD, "choices": []},
    ],
    ids=["beside a finish", "a filter's results", "counts nothing", "nothing at all"],
)
def test_a_chunk_with_more_than_usage_is_never_removed(fields: dict[str, Any]) -> None:
    raw = sse(*HELLO, fields)
    tap, output = relay(raw, OpenAITap(hide_usage=True))
    assert (output, tap.done) == (frames(raw), True)


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([*HELLO, LAST], COUNTED),
        ([*HELLO[:2], chunk(finish="stop", usage=USAGE)], COUNTED),
        ([*HELLO[:2], chunk(finish="stop", x_groq={"id": "r", "usage": USAGE})], COUNTED),
        (
            [
                chunk({"content": "a"}, usage={**USAGE, "completion_tokens": 1, "total_tokens": 8}),
                *HELLO,
                LAST,
            ],
            COUNTED,
        ),
        ([*HELLO, LAST, {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}], COUNTED),
        ([*HELLO, {"choices": None, "usage": USAGE}], COUNTED),
        ([*HELLO, {"usage": USAGE}], COUNTED),
        ([chunk({"content": "a"}, usage=None), *HELLO], None),
        ([*HELLO], None),
        (
            [
                *HELLO,
                {"choices": [], "usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": 2}}},
            ],
            Usage(7, 3, 10, reasoning_tokens=2),
        ),
        (
            [*HELLO, {"choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}}],
            Usage(7, 3, 10, cached_input_tokens=4),
        ),
    ],
)
def test_usage_is_found_in_any_position(chunks: list[dict[str, Any]], usage: Usage | None) -> None:
    tap, output = relay(sse(*chunks))
    assert (tap.usage, tap.done, len(output)) == (usage, True, len(chunks) + 1)
    if usage is not None:  # the SDKs take the usage of the last chunk
        assert has_counts(msgspec.json.decode(output[-2][1])["usage"])


def test_generation_is_finished_after_the_last_finish_reason() -> None:
    tap = OpenAITap()
    tap.feed(sse(*HELLO[:2], done=False))
    assert not tap.generation_finished
    tap.feed(sse(HELLO[2], done=False))
    assert (tap.generation_finished, tap.done) == (True, False)


@pytest.mark.parametrize(
    ("delta", "length"),
    [
        ({"content": "abc"}, 3),
        ({"reasoning_content": "abcd"}, 4),
        ({"content": "", "reasoning_content": "abcd"}, 4),
        ({"content": None, "reasoning": "abcde"}, 5),
        ({"content": "", "reasoning": "abcde"}, 5),
        ({"content": [{"type": "text", "text": "ab"}]}, 2),
        ({}, 0),
    ],
)
def test_the_text_length_counts_what_the_model_wrote(delta: dict[str, Any], length: int) -> None:
    tap, _ = relay(sse(chunk({"role": "assistant"}), chunk(delta), chunk(delta), done=False))
    assert tap.text_length == 2 * length


def test_the_text_length_includes_call_arguments() -> None:
    call = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x" * 300}}]})
    assert relay(sse(call, done=False))[0].text_length > 90
    assert relay(sse(chunk({"role": "assistant"}), call, done=False))[0].text_length > 90


# ---- failures -------------------------------------------------------------------------------------------

OVERLOADED = {"error": {"message": "Overloaded", "type": "overloaded_error", "code": 503}}


@pytest.mark.parametrize(
    ("bad", "category"),
    [
        (OVERLOADED, "overloaded"),
        (encode_frame(b'{"error": "rate limit reached"}'), "rate_limit"),
        (b'event: error\ndata: {"message": "Overloaded"}\n\n', "overloaded"),
        (b"event: error\ndata: server is busy\n\n", "overloaded"),
        (b'error: {"message": "Overloaded"}\n\n', "overloaded"),
        (b'{"error": {"message": "Overloaded"}}\n\n', "overloaded"),
        (encode_frame(b'[{"error": {"code": 503, "message": "Overloaded"}}]'), "overloaded"),
        (chunk(finish="error"), "api_error"),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "gone"}}]}, "api_error"),
        ({"object": "error", "message": "boom", "code": 500}, "api_error"),
        (encode_frame(b"<html>"), "api_error"),
        (encode_frame(b"not json"), "api_error"),
        (encode_frame(b"7"), "api_error"),
    ],
)
def test_an_error_ends_the_stream_after_the_frames_before_it(bad: Any, category: str) -> None:
    before = sse(*HELLO[:2], done=False)
    tap, output = relay(before + sse(bad, *HELLO))
    assert output == frames(before)
    assert failed(tap).category == category
    assert (tap.feed(sse(*HELLO)), tap.close()) == (b"", b"")


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": [{"index": "0", "delta": {"content": 7}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"delta": {"content": "x"}}]},
        {"choices": [{"index": 0, "delta": "text"}]},
        {"model": ["m"], "choices": [{"index": 0, "delta": {"content": "x"}}]},
        {"unknown": {"deep": [1]}},
        encode_frame(b'{"choices":[{"index":0,"delta":{"content":"\xff"}}]}'),
        encode_frame(b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}'),
        encode_frame(b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":NaN}]}'),
        b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"a"}}]}\n\n',
        b"event: completion\ndata: {}\n\n",
        b"event: heartbeat\ndata: still there\n\n",
    ],
)
def test_an_irregular_frame_becomes_one_that_is_regular(odd: Any) -> None:
    raw = sse(HELLO[0], odd, *HELLO[1:])
    tap, output = relay(raw)
    assert (tap.failure, tap.done) == (None, True)
    assert [output[0], *output[-3:]] == frames(sse(*HELLO))
    for _, payload in output[1:-3]:  # nothing is passed on for a heartbeat
        assert OpenAITap().feed(encode_frame(payload)) == encode_frame(payload)


def test_a_comment_is_passed_on_as_a_keep_alive() -> None:
    tap = OpenAITap()
    assert tap.feed(b": OPENROUTER PROCESSING\n\n") == b": keep-alive\n\n"
    assert tap.feed(sse(HELLO[0], done=False) + b": x\n\n") == sse(HELLO[0], done=False)


def test_a_frame_over_the_limit_is_a_failure() -> None:
    tap = OpenAITap(limit=1000)
    before = sse(HELLO[0], done=False)
    assert tap.feed(before) == before
    for _ in range(3):
        assert tap.feed(b"data: " + b"x" * 500) == b""
    assert failed(tap).category == "api_error"
    assert "longer than 1000 bytes" in failed(tap).message


@pytest.mark.parametrize("size", range(990, 1012))
def test_a_frame_near_the_limit_never_raises(size: int) -> None:
    tap = OpenAITap(limit=1000)
    run(tap, [b"data: " + b"x" * (size - 6)])
    assert failed(tap).category == "api_error"


CHOICES: Mapping[str, Callable[[int], Any]] = {
    "regular": lambda index: {"index": index, "delta": {"content": "x"}},
    "irregular": lambda index: {"index": str(index), "delta": {"content": "x"}},
    "empty": lambda _: {},
    "calls": lambda index: {
        "index": index,
        "delta": {"tool_calls": [{"index": 0, "id": f"c{index}", "function": {"name": "f"}}]},
    },
}


@pytest.mark.parametrize("form", CHOICES)
def test_an_answer_of_very_many_choices_is_an_error(form: str) -> None:
    choices = [CHOICES[form](index) for index in range(MAX_CHOICES + 1)]
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    tap = OpenAITap()
    assert tap.feed(sse({**head, "choices": choices[:-1]}, done=False)) != b""
    assert tap.failure is None
    tap = OpenAITap()
    assert tap.feed(sse({**head, "choices": choices}, done=False)) == b""
    assert tap.failure is not None
    assert "more than 1000 choices" in tap.failure.message
    with pytest.raises(ProviderError, match="more than 1000 choices"):
        read_completion(msgspec.json.encode({**head, "object": "chat.completion", "choices": choices}))


def test_an_answer_whose_choices_come_one_by_one_has_no_more_of_them() -> None:
    tap = OpenAITap()
    for index in range(MAX_CHOICES + 1):
        assert tap.failure is None
        tap.feed(sse({**HEAD, "choices": [{"index": index, "delta": {"content": "x"}}]}, done=False))
    assert tap.failure is not None
