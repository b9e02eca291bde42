"""Usage in every vendor's format and position."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import events as e

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
