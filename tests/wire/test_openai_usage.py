"""Usage in every vendor's format and position."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import events as e
from dragoman.wire.anthropic.usage import read_usage as read_anthropic_usage
from dragoman.wire.openai.document_tap import read_completion
from dragoman.wire.openai.usage import read_usage

from .openai_streams import chunk, decode, sse

HELLO = chunk({"content": "Hello"})
STOP = chunk(finish="stop")

USAGES: list[tuple[dict[str, Any], str, e.Usage | None]] = [
    ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, "m", e.Usage(3, 4, 7)),
    ({"prompt_tokens": 3, "completion_tokens": 4}, "m", e.Usage(3, 4, 7)),
    ({"prompt_tokens": 3}, "m", e.Usage(3)),
    ({"input_tokens": 3, "output_tokens": 4}, "m", e.Usage(3, 4, 7)),
    ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, "m", None),
    ({}, "m", None),
    ({"prompt_tokens": 3.0, "completion_tokens": "4", "total_tokens": True}, "m", e.Usage(3, 4, 7)),
    ({"prompt_tokens": -1, "completion_tokens": 2.5}, "m", None),
    ({"prompt_tokens": 10**20, "completion_tokens": 1}, "m", e.Usage(10**20, 1, 10**20 + 1)),
    (
        {
            "prompt_tokens": 12,
            "completion_tokens": 2,
            "total_tokens": 354,
            "completion_tokens_details": {"reasoning_tokens": 340},
        },
        "any",
        e.Usage(12, 342, 354, reasoning_tokens=340),
    ),
    ({"prompt_tokens": 12, "completion_tokens": 35, "total_tokens": 109}, "gemini-2.5", e.Usage(12, 97, 109)),
    ({"prompt_tokens": 12, "completion_tokens": 35, "total_tokens": 409}, "voxtral", e.Usage(12, 35, 409)),
    (
        {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10, "prompt_cache_hit_tokens": 8},
        "m",
        e.Usage(9, 1, 10, cached_input_tokens=8),
    ),
    (
        {
            "prompt_tokens": 9,
            "completion_tokens": 1,
            "cache_read_input_tokens": 80,
            "cache_creation_input_tokens": 5,
        },
        "m",
        e.Usage(94, 1, 95, cached_input_tokens=80, cache_write_tokens=5),
    ),
    (
        {"prompt_tokens": 90, "completion_tokens": 1, "total_tokens": 91, "cache_read_input_tokens": 80},
        "m",
        e.Usage(90, 1, 91, cached_input_tokens=80),
    ),
    (
        {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        "m",
        e.Usage(9, 5, 14, reasoning_tokens=3, cached_input_tokens=4, cache_write_tokens=2),
    ),
    ({"prompt_tokens": "4", "completion_tokens": "9" * 5_000}, "m", e.Usage(4, 10**18 - 1, 10**18 + 3)),
    ({"prompt_tokens": "4", "completion_tokens": "²"}, "m", e.Usage(4)),
]


@pytest.mark.parametrize(("usage", "model", "counted"), USAGES)
def test_usage_of_every_vendor_is_converted(
    usage: dict[str, Any], model: str, counted: e.Usage | None
) -> None:
    answer = decode([sse({**HELLO, "model": model}, STOP, {"choices": [], "usage": usage})])
    assert answer.finish == e.FinishStep("stop", counted, model)


def test_the_last_usage_with_counts_is_used_in_any_position() -> None:
    one, two = {"prompt_tokens": 1, "completion_tokens": 1}, {"prompt_tokens": 1, "completion_tokens": 2}
    places: list[Any] = [
        [{**HELLO, "usage": one}, {**STOP, "usage": two}],
        [{**HELLO, "usage": one}, STOP, {"choices": [], "usage": two}, {"choices": [], "usage": None}],
        [HELLO, {**STOP, "x_groq": {"usage": two}}],
        [HELLO, STOP, {"choices": [], "usage": two}, {"choices": [], "usage": {}}, HELLO],
    ]
    for chunks in places:
        answer = decode([sse(*chunks)])
        assert answer.finish is not None
        assert answer.finish.usage == e.Usage(1, 2, 3)


# The prompts of vendors with a cache: 100 tokens, of which 60 were read and 30 written, or only 60 read.
# A count beside `prompt_tokens` shows in the total, or since it is larger than the prompt.
DETAILS = "prompt_tokens_details"
CACHES: dict[str, tuple[dict[str, Any], int | None, int | None]] = {
    "openai": ({"prompt_tokens": 100, "total_tokens": 105, DETAILS: {"cached_tokens": 60}}, 60, None),
    "openai, with writes": (
        {"prompt_tokens": 100, "total_tokens": 105, DETAILS: {"cached_tokens": 60, "cache_write_tokens": 30}},
        60,
        30,
    ),
    "openai's responses": (
        {"input_tokens": 100, "total_tokens": 105, "input_tokens_details": {"cached_tokens": 60}},
        60,
        None,
    ),
    "deepseek": (
        {
            "prompt_tokens": 100,
            "total_tokens": 105,
            "prompt_cache_hit_tokens": 60,
            "prompt_cache_miss_tokens": 40,
            DETAILS: {"cached_tokens": 60},
        },
        60,
        None,
    ),
    "deepseek, the prompt is what was missed": (
        {
            "prompt_tokens": 40,
            "total_tokens": 45,
            "prompt_cache_hit_tokens": 60,
            "prompt_cache_miss_tokens": 40,
        },
        60,
        None,
    ),
    "deepseek, hits beside the prompt": (
        {"prompt_tokens": 40, "total_tokens": 105, "prompt_cache_hit_tokens": 60},
        60,
        None,
    ),
    "moonshot": ({"prompt_tokens": 100, "total_tokens": 105, "cached_tokens": 60}, 60, None),
    "moonshot, beside the prompt": (
        {"prompt_tokens": 40, "total_tokens": 105, "cached_tokens": 60},
        60,
        None,
    ),
    "moonshot, without a total": ({"prompt_tokens": 40, "cached_tokens": 60}, 60, None),
    "moonshot, with zeros in the details": (
        {"prompt_tokens": 100, "total_tokens": 105, "cached_tokens": 60, DETAILS: {"cached_tokens": 0}},
        60,
        None,
    ),
    "dashscope": (
        {
            "prompt_tokens": 100,
            "total_tokens": 105,
            DETAILS: {
                "cached_tokens": 60,
                "cache_creation_input_tokens": 30,
                "cache_creation": {"ephemeral_5m_input_tokens": 30},
                "cache_type": "ephemeral",
            },
        },
        60,
        30,
    ),
    "litellm": (
        {
            "prompt_tokens": 100,
            "total_tokens": 105,
            DETAILS: {"cached_tokens": 60, "cache_creation_tokens": 30},
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 30,
        },
        60,
        30,
    ),
    "openrouter, writes beside the prompt": (
        {"prompt_tokens": 70, "total_tokens": 75, DETAILS: {"cached_tokens": 60, "cache_write_tokens": 30}},
        60,
        30,
    ),
    "gemini, written and read by one request": (
        {"prompt_tokens": 100, "total_tokens": 105, DETAILS: {"cached_tokens": 90, "cache_write_tokens": 90}},
        90,
        None,
    ),
    "databricks": (
        {
            "prompt_tokens": 10,
            "total_tokens": 15,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 30,
        },
        60,
        30,
    ),
    "databricks, with a whole total": (
        {
            "prompt_tokens": 10,
            "total_tokens": 105,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 30,
        },
        60,
        30,
    ),
    "anthropic's names without a total": (
        {"input_tokens": 70, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 30},
        0,
        30,
    ),
    "mistral": ({"prompt_tokens": 100, "total_tokens": 105, "num_cached_tokens": 60}, 60, None),
    "no prompt but a total": ({"total_tokens": 105, "cached_tokens": 60}, 60, None),
    "text and fractions": (
        {"prompt_tokens": "40", "total_tokens": 105.0, "cached_tokens": "60"},
        60,
        None,
    ),
    "reasoning and cache beside the others": (
        {
            "prompt_tokens": 40,
            "total_tokens": 112,
            "cached_tokens": 60,
            "completion_tokens_details": {"reasoning_tokens": 7},
        },
        60,
        None,
    ),
}


@pytest.mark.parametrize("vendor", CACHES)
def test_cached_tokens_are_part_of_the_input_wherever_a_vendor_counts_them(vendor: str) -> None:
    counts, read, written = CACHES[vendor]
    usage = {"completion_tokens" if "input_tokens" not in counts else "output_tokens": 5, **counts}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    document = msgspec.json.encode({**head, "choices": [choice], "usage": usage})
    stream = decode([sse({**HELLO, "model": "m"}, STOP, {"choices": [], "usage": usage})])
    assert stream.finish is not None
    for found in (read_usage(usage), read_completion(document).usage, stream.finish.usage):
        assert found is not None
        assert (found.input_tokens, found.cached_input_tokens, found.cache_write_tokens) == (
            100,
            read,
            written,
        )
        assert (found.output_tokens, found.total_tokens) in ((5, 105), (12, 112))


NAMES = [
    *("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"),
    *("cached_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "num_cached_tokens"),
    *("cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_tokens", "reasoning_tokens"),
]
token_counts = st.dictionaries(st.sampled_from(NAMES), st.integers(-1, 200) | st.none(), max_size=8)


@given(token_counts, token_counts)
def test_the_input_is_never_less_than_what_was_read_from_the_cache_and_written(
    counts: dict[str, Any], details: dict[str, Any]
) -> None:
    whole = {**counts, DETAILS: details}
    document = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": whole}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    raw = msgspec.json.encode({**document, "choices": [choice]})
    usage = read_usage(whole, model="m")
    assert read_completion(raw).usage == usage
    for found in (usage, read_anthropic_usage(counts)):
        if found is not None and found.input_tokens is not None:
            cached = (found.cached_input_tokens or 0) + (found.cache_write_tokens or 0)
            assert 0 <= cached <= found.input_tokens
            if found.output_tokens is not None:
                assert (found.total_tokens or 0) >= found.input_tokens + found.output_tokens
