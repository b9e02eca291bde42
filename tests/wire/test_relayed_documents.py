"""Answers that are relayed as one document: their usage, and which are invalid."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.wire.anthropic.tap import read_message
from dragoman.wire.openai.document_tap import read_completion, read_embeddings
from dragoman.wire.openai.usage import read_usage
from dragoman.wire.tap import AnswerSummary

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
OVERLOADED = {"error": {"message": "Overloaded", "type": "overloaded_error"}}


def completion(*reasons: str | None, **more: Any) -> bytes:
    choices = [{"index": index, "finish_reason": reason} for index, reason in enumerate(reasons)]
    return msgspec.json.encode({"model": "m-1", "choices": choices, "usage": USAGE, **more})


def message(**more: Any) -> bytes:
    document = {"type": "message", "model": "claude", "content": [], "stop_reason": "end_turn"}
    return msgspec.json.encode({**document, "usage": {"input_tokens": 5, "output_tokens": 2}, **more})


def test_a_completion_document_has_usage_model_and_finish_reason() -> None:
    whole = read_completion(completion("length", "stop"))
    assert (whole.usage, whole.model, whole.finish_reason) == (Usage(7, 3, 10), "m-1", "length")
    assert read_completion(completion("stop", usage=None)).usage is None
    assert read_completion(completion("stop", model=7)).model is None


@pytest.mark.parametrize(
    ("raw", "category"),
    [
        (b"", "network"),
        (b"  ", "network"),
        (b"<html>", "api_error"),
        (b"null", "network"),
        (b"{}", "network"),
        (b"[]", "network"),
        (completion(), "api_error"),
        (completion("error"), "api_error"),
        (msgspec.json.encode(OVERLOADED), "overloaded"),
        (completion("stop", **OVERLOADED), "overloaded"),
        (completion("stop")[:-7], "api_error"),
        (b"[" * 200_000, "api_error"),
    ],
)
def test_an_invalid_completion_document_is_a_failure(raw: bytes, category: str) -> None:
    with pytest.raises(ProviderError) as wrong:
        read_completion(raw)
    assert wrong.value.category == category


def test_an_embeddings_document_has_usage() -> None:
    document = {
        "data": [{"embedding": [0.1]}],
        "model": "e",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    whole = read_embeddings(msgspec.json.encode(document))
    assert (whole.usage, whole.model) == (Usage(input_tokens=5, total_tokens=5), "e")
    with pytest.raises(ProviderError, match="no data"):
        read_embeddings(b'{"data": []}')


def test_a_message_document_has_usage_model_and_finish_reason() -> None:
    whole = read_message(message())
    assert (whole.usage, whole.model, whole.finish_reason) == (Usage(5, 2, 7), "claude", "end_turn")
    assert read_message(message(usage=None)).usage is None


def test_the_input_tokens_of_a_message_include_cached_tokens() -> None:
    counts = {
        "input_tokens": 5,
        "output_tokens": 2,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 30,
        "output_tokens_details": {"thinking_tokens": 1},
    }
    assert read_message(message(usage=counts)).usage == Usage(
        input_tokens=135,
        output_tokens=2,
        total_tokens=137,
        reasoning_tokens=1,
        cached_input_tokens=100,
        cache_write_tokens=30,
    )


@pytest.mark.parametrize(
    ("raw", "category"),
    [
        (b"", "network"),
        (b"<html>", "api_error"),
        (b"{}", "network"),
        (b"[]", "network"),
        (msgspec.json.encode({"type": "error", **OVERLOADED}), "overloaded"),
        (message(content=None), "api_error"),
        (message(**OVERLOADED), "overloaded"),
        (message(stop_reason=None), "network"),
        (message()[:-3], "api_error"),
    ],
)
def test_an_invalid_message_document_is_a_failure(raw: bytes, category: str) -> None:
    with pytest.raises(ProviderError) as wrong:
        read_message(raw)
    assert wrong.value.category == category


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
        {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 20},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_cache_hit_tokens": 4},
    ],
)
def test_the_fast_path_reads_the_same_usage(usage: dict[str, Any]) -> None:
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    answer = {**head, "choices": [choice], "usage": usage}
    whole = read_completion(msgspec.json.encode(answer))
    assert whole == AnswerSummary(read_usage(usage, model="m"), "m", "stop")
