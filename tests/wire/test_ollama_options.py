"""Options of /api/chat requests, in every family's terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from ollama._types import ChatRequest

from dragoman.errors import BadRequest
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest
from dragoman.wire.ollama.request import check_request, encode_request, rejected_field

HI = Message("u", "user", (TextPart("Hi"),))
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


def make_request(options: dict[str, Any], model: str = "qwen3:8b") -> ModelRequest:
    return ModelRequest(model=model, messages=[HI], options=options)


def encode(options: dict[str, Any], model: str = "qwen3:8b", **how: Any) -> dict[str, Any]:
    """The body without the model, its messages and the stream flag."""
    body = msgspec.json.decode(encode_request(make_request(options, model), **how))
    ChatRequest.model_validate(body)
    return {name: value for name, value in body.items() if name not in ("model", "messages", "stream")}


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, {}),
        (
            {
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 40,
                "seed": 7,
                "presence_penalty": 1,
                "frequency_penalty": 2,
                "max_tokens": 9,
                "stop": "END",
                "model": "other",
                "stream": False,
                "messages": [],
            },
            {
                "options": {
                    "temperature": 0.5,
                    "top_p": 0.9,
                    "top_k": 40,
                    "seed": 7,
                    "presence_penalty": 1,
                    "frequency_penalty": 2,
                    "num_predict": 9,
                    "stop": ["END"],
                }
            },
        ),
        ({"max_tokens": 9, "max_completion_tokens": 8}, {"options": {"num_predict": 8}}),
        ({"max_tokens": None, "temperature": None, "think": None, "response_format": None}, {}),
        ({"num_predict": 5, "max_tokens": 9}, {"options": {"num_predict": 5}}),
        (
            {
                "options": {"num_gpu": 1, "temperature": 0},
                "temperature": 1,
                "num_ctx": 64,
                "stop": ["a"],
            },
            {"options": {"num_ctx": 64, "num_gpu": 1, "stop": ["a"], "temperature": 0}},
        ),
        (
            {"keep_alive": "10m", "truncate": False, "shift": False, "format": "json", "think": "high"},
            {"keep_alive": "10m", "truncate": False, "shift": False, "format": "json", "think": "high"},
        ),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"format": "json"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"format": SCHEMA},
        ),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, {"format": SCHEMA}),
        ({"format": SCHEMA, "response_format": {"type": "json_object"}}, {"format": SCHEMA}),
    ],
)
def test_every_option_is_converted(options: dict[str, Any], body: dict[str, Any]) -> None:
    assert encode(options) == body
    assert check_request(make_request(options)) == []


@pytest.mark.parametrize(
    ("options", "usual", "levelled"),
    [
        ({"reasoning_effort": "none"}, False, False),
        ({"reasoning_effort": "minimal"}, True, "low"),
        ({"reasoning_effort": "low"}, True, "low"),
        ({"reasoning_effort": "medium"}, True, "medium"),
        ({"reasoning_effort": "high"}, True, "high"),
        ({"reasoning_effort": "xhigh"}, True, "max"),
        ({"reasoning_effort": "max"}, True, "max"),
        ({"think": False, "reasoning_effort": "high"}, False, False),
        ({"think": "low"}, "low", "low"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, False, False),
        ({"thinking": {"type": "adaptive"}}, True, True),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, True, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, True, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 12_000}}, True, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, True, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "reasoning_effort": "high"}, True, "high"),
    ],
)
def test_the_effort_becomes_a_switch_or_a_level_depending_on_the_model(
    options: dict[str, Any], usual: object, levelled: object
) -> None:
    assert encode(options) == {"think": usual}
    assert encode(options, "hf.co/openai/gpt-oss:20b") == {"think": levelled}
    assert check_request(make_request(options)) == []


def test_the_context_size_is_the_requests_or_the_configured_one() -> None:
    assert encode({}, num_ctx=8192) == {"options": {"num_ctx": 8192}}
    assert encode({"num_ctx": 64}, num_ctx=8192) == {"options": {"num_ctx": 64}}
    assert encode({"options": {"num_ctx": 32}, "num_ctx": 64}, num_ctx=8192) == {"options": {"num_ctx": 32}}


def test_a_field_that_the_model_rejected_is_dropped() -> None:
    options = {"reasoning_effort": "high", "temperature": 1, "seed": 2}
    assert encode(options, drop=["think", "seed"]) == {"options": {"temperature": 1}}
    assert encode({"seed": 2}, drop={"seed"}) == {}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            {
                "logit_bias": {"1": 2},
                "logprobs": True,
                "top_logprobs": 2,
                "user": "u",
                "metadata": {},
                "service_tier": "flex",
                "parallel_tool_calls": False,
                "verbosity": "low",
                "context_management": {},
                "cache_control": {},
            },
            [
                "cache_control",
                "context_management",
                "logit_bias",
                "logprobs",
                "metadata",
                "parallel_tool_calls",
                "service_tier",
                "top_logprobs",
                "user",
                "verbosity",
            ],
        ),
        (
            {
                "n": 1,
                "logprobs": False,
                "parallel_tool_calls": True,
                "modalities": ["text"],
                "service_tier": "auto",
                "store": False,
                "user": None,
                "stream_options": {"include_usage": True},
            },
            [],
        ),
        ({"reasoning_effort": "extreme"}, ["reasoning_effort"]),
        (
            {"output_config": {"effort": "extreme", "task_budget": {}}},
            ["output_config.effort", "output_config.task_budget"],
        ),
    ],
)
def test_unsupported_options_are_dropped_and_reported(options: dict[str, Any], names: list[str]) -> None:
    assert encode(options) == {}
    assert check_request(make_request(options)) == names


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"n": 2}, "n"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"mcp_servers": [{"url": "https://a.example"}]}, "mcp_servers"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
    ],
)
def test_options_that_cannot_be_dropped_are_rejected(options: dict[str, Any], field: str) -> None:
    for ask in (check_request, encode_request):
        with pytest.raises(BadRequest) as caught:
            ask(make_request(options))
        assert caught.value.field == field


def test_the_same_request_gives_the_same_bytes() -> None:
    once = {"top_p": 1, "seed": 2, "think": True, "keep_alive": 5, "format": SCHEMA}
    again = {name: once[name] for name in reversed(once)}
    assert encode_request(make_request(once), num_ctx=1) == encode_request(make_request(again), num_ctx=1)
    assert b'"properties":{"b":{},"a":{}}' in encode_request(make_request(once))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ('"gemma3:4b" does not support thinking', "think"),
        ('think value "low" is not supported for this model', "think"),
        ('invalid think value: "max" (must be "high", "medium", "low", true, or false)', "think"),
        ("registry/gemma3:4b does not support tools", None),
        ("model 'x' not found", None),
    ],
)
def test_a_rejection_names_the_field_to_drop(message: str, field: str | None) -> None:
    assert rejected_field(message) == field
