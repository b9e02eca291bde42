"""The chat.completions decoder: finishes, failures, batches, documents."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.quirks import Quirks

from .openai_streams import chunk, decode, document_failure, sse, summarise

HELLO = chunk({"content": "Hello"})
STOP = chunk(finish="stop")


def finish_of(*chunks: Any, done: bool = True, quirks: Quirks | None = None) -> str | None:
    """The finish reason of a stream, or the category of its failure."""
    answer = decode([sse(*chunks, done=done)], quirks)
    if answer.failure is not None:
        return answer.failure.category
    return answer.finish.finish_reason if answer.finish else None


@pytest.mark.parametrize("done", [True, False])
def test_a_finish_reason_completes_an_answer_with_or_without_done(done: bool) -> None:
    assert finish_of(HELLO, STOP, done=done) == "stop"


@pytest.mark.parametrize("reason", [None, ""])
def test_a_finish_is_never_invented(reason: str | None) -> None:
    answer = decode([sse(HELLO, chunk(finish=reason), done=False)])
    assert answer.failure is not None
    assert "without a finish reason" in answer.failure.message
    assert (answer.failure.category, answer.failure.transient, answer.finish) == ("network", True, None)
    assert summarise(answer.events) == [("text", "Hello")]


def test_with_lenient_finish_done_completes_an_answer_and_a_bare_end_does_not() -> None:
    call = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]})
    lenient = Quirks(lenient_finish=True)
    assert finish_of(HELLO, quirks=lenient) == "stop"
    assert finish_of(call, quirks=lenient) == "tool-calls"
    assert finish_of(HELLO, done=False, quirks=lenient) == "network"


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b": ping\n\n", b"data: [DONE]\n\n", b"<html>no</html>", b"data:\n\n"]
)
def test_an_empty_answer_is_a_failure(raw: bytes) -> None:
    answer = decode([raw])
    assert answer.events == []
    assert answer.failure is not None
    assert "is empty" in answer.failure.message


@pytest.mark.parametrize(
    ("reasons", "finish"),
    [
        (["stop", "stop"], "stop"),
        (["stop", "length"], "length"),
        (["length", "stop"], "length"),
        (["stop", "tool_calls"], "tool-calls"),
        (["tool_calls", "stop"], "tool-calls"),
        (["content_filter", "length"], "content-filter"),
        (["eos"], "stop"),
        (["STOP"], "stop"),
        (["MAX_TOKENS"], "length"),
        (["model_length"], "length"),
        (["tool-calls"], "tool-calls"),
        (["function_call"], "tool-calls"),
        (["SAFETY"], "content-filter"),
        (["something new"], "other"),
        (["something new", "stop"], "stop"),
        (["error"], "api_error"),
        (["stop", "error"], "api_error"),
        (["insufficient_system_resource"], "api_error"),
    ],
)
def test_finish_reasons_of_every_vendor_are_recognised(reasons: list[str], finish: str) -> None:
    assert finish_of(HELLO, *(chunk(finish=reason) for reason in reasons)) == finish


def test_nothing_is_read_after_done() -> None:
    decoder = OpenAIDecoder()
    events = decoder.feed(sse(HELLO, STOP) + sse(HELLO))
    assert decoder.done
    assert summarise(events) == [("text", "Hello"), ("finish", "stop", "m-1")]
    assert decoder.feed(b"data: rubbish\n\n") == []
    assert decoder.close() == []


def test_events_before_a_failure_are_returned_first() -> None:
    decoder = OpenAIDecoder()
    events = decoder.feed(sse(HELLO, {"error": {"message": "broken", "code": 500}}, HELLO, done=False))
    assert summarise(events) == [("text", "Hello")]
    assert decoder.failure is not None
    with pytest.raises(ProviderError, match="broken"):
        decoder.feed(b"")
    with pytest.raises(ProviderError, match="broken"):
        decoder.close()


@pytest.mark.parametrize(
    ("error", "category", "transient", "words"),
    [
        ({"error": {"message": "slow down", "code": 429}}, "rate_limit", True, "slow down"),
        ({"error": {"message": "x", "type": "overloaded_error"}}, "overloaded", True, "x"),
        ({"error": {"message": "x", "code": "context_length_exceeded"}}, "context_limit", False, "x"),
        (
            {"error": {"message": "This model's maximum context length is 8"}},
            "context_limit",
            False,
            "maximum",
        ),
        ({"error": {"message": "x", "code": "content_filter"}}, "content_filter", False, "x"),
        ({"error": {"message": "x", "type": "invalid_request_error"}}, "bad_request", False, "x"),
        ({"error": {"message": "x", "code": "invalid_api_key"}}, "auth", False, "x"),
        ({"error": {"message": "Timed out"}}, "timeout", True, "Timed out"),
        ({"error": "just words"}, "api_error", True, "just words"),
        ({"error": {"code": 503}}, "overloaded", True, "503"),
        ({"error": True}, "api_error", True, "True"),
        ({"detail": "Not Found"}, "bad_request", False, "Not Found"),
        ({"errors": [{"message": "No", "code": 401}]}, "auth", False, "No"),
        ({"code": 400, "message": "Bad", "type": "Bad Request"}, "bad_request", False, "Bad"),
        ({"code": 500, "msg": "NOT_FOUND", "success": False}, "api_error", True, "NOT_FOUND"),
        ({"base_resp": {"status_code": 1004, "status_msg": "rate limit"}}, "rate_limit", True, "rate limit"),
        ({"object": "error", "message": "no", "code": 404}, "bad_request", False, "no"),
        (
            {"choices": [{"index": 0, "delta": {}, "error": {"message": "no", "code": 502}}]},
            "api_error",
            True,
            "no",
        ),
    ],
)
def test_an_error_in_the_stream_is_recognised_in_every_shape(
    error: dict[str, Any], category: str, transient: bool, words: str
) -> None:
    answer = decode([sse(HELLO, error, STOP)])
    assert summarise(answer.events) == [("text", "Hello")]
    assert answer.failure is not None
    assert words in answer.failure.message
    assert (answer.failure.category, answer.failure.transient) == (category, transient)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (b"event: error\ndata: out of memory\n\n", "out of memory"),
        (b"event: error\n\n", "without a message"),
        (b'event: error\ndata: {"reason": 1}\n\n', "without a message"),
        (b'error: {"detail": "failed"}\n\n', "failed"),
        (b'{"error": {"message": "bare"}}\n', "bare"),
        (b"data: <html>\n\n", "invalid JSON"),
        (b'data: {"choices": [\n\n', "invalid JSON"),
        (b'data: "words"\n\n', "invalid JSON"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "nested too deeply"),
    ],
)
def test_an_error_frame_is_recognised_and_invalid_json_is_a_failure(frames: bytes, words: str) -> None:
    answer = decode([sse(HELLO, frames, STOP)])
    assert summarise(answer.events) == [("text", "Hello")]
    assert answer.failure is not None
    assert words in answer.failure.message


@pytest.mark.parametrize("value", [None, {}, "", False, []])
def test_an_empty_error_is_not_an_error(value: object) -> None:
    assert finish_of({**HELLO, "error": value}, STOP) == "stop"


def test_a_truncated_frame_after_the_finish_is_ignored() -> None:
    raw = sse(HELLO, STOP, done=False)
    for stump in (b"data: [DO", b'data: {"choices":[],"us', b"da"):
        assert decode([raw + stump]).finish is not None
    assert decode([sse(HELLO, done=False) + b'data: {"choices":[{"fini']).failure is not None


def test_a_frame_over_the_limit_is_rejected() -> None:
    decoder = OpenAIDecoder(limit=1000)
    assert decoder.feed(sse(HELLO, done=False)) != []
    with pytest.raises(ProviderError, match="longer than 1000 bytes"):
        decoder.feed(b"data: " + b"x" * 2000)


def test_the_finish_names_the_model_that_served_and_the_provider() -> None:
    finish = e.FinishStep("stop", None, "served", "up")
    decoder = OpenAIDecoder(provider="up", model="asked")
    assert decoder.feed(sse({"model": "", "choices": []}, {**STOP, "model": "served"}))[-1] == finish
    unnamed = OpenAIDecoder(provider="up", model="asked")
    assert unnamed.feed(sse({"choices": [{"finish_reason": "stop"}]}))[-1] == e.FinishStep(
        "stop", None, "asked", "up"
    )


def test_adjacent_deltas_of_one_read_are_merged() -> None:
    reasoning, text = chunk({"reasoning": "a"}), chunk({"content": "b"})
    call = chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "[1"}}]})
    more = chunk({"tool_calls": [{"index": 0, "function": {"arguments": ",2"}}]})
    assert OpenAIDecoder().feed(
        sse(reasoning, reasoning, text, text, text, call, more, more, text, done=False)
    ) == [
        e.ReasoningStart("reasoning-1"),
        e.ReasoningDelta("reasoning-1", "aa"),
        e.ReasoningEnd("reasoning-1"),
        e.TextStart("text-1"),
        e.TextDelta("text-1", "bbb"),
        e.TextEnd("text-1"),
        e.ToolInputStart("c", "f"),
        e.ToolInputDelta("c", "[1,2,2"),
        e.TextStart("text-2"),
        e.TextDelta("text-2", "b"),
    ]


def test_reasoning_between_texts_starts_new_blocks() -> None:
    text, reasoning = chunk({"content": "a"}), chunk({"reasoning_content": "b"})
    blocks = [("text", "a"), ("reasoning", "b"), ("text", "a"), ("refusal", "no"), ("text", "a")]
    raw = sse(text, reasoning, text, chunk({"refusal": "no"}), text, STOP)
    assert decode([raw]).story == [*blocks, ("finish", "stop", "m-1")]


def test_a_document_gives_the_same_events_as_a_stream() -> None:
    message = {
        "role": "assistant",
        "reasoning_content": "Hm",
        "content": "Look",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "a", "type": "function", "function": {"name": "g", "arguments": {}}},
        ],
        "annotations": [{"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}],
    }
    body = {
        "model": "m",
        "choices": [{"index": 0, "message": message, "delta": {}, "finish_reason": "tool_calls"}],
    }
    assert summarise(OpenAIDecoder().decode_document(b" " + msgspec.json.encode(body))) == [
        ("reasoning", "Hm"),
        ("text", "Look"),
        ("source", "https://a.example", "A"),
        ("call", "a", "f", '{"x":1}', {"x": 1}),
        ("call", "call_1", "g", "", {}),
        ("finish", "tool-calls", "m"),
    ]


@pytest.mark.parametrize(
    ("body", "category"),
    [
        (b'{"error":{"message":"no","code":401}}', "auth"),
        (b'[{"error":{"message":"no","code":503}}]', "overloaded"),
        (b'{"choices":[]}', "api_error"),
        (b'{"choices":[{"message":{"content":"a"},"finish_reason":"error"}]}', "api_error"),
        (b'{"choices":[{"message"', "api_error"),
        (b"", "api_error"),
        (b"[" * 100_000, "api_error"),
    ],
)
def test_a_document_that_is_not_an_answer_is_a_failure(body: bytes, category: str) -> None:
    failure = document_failure(OpenAIDecoder(), body)
    assert failure is not None
    assert failure.category == category
