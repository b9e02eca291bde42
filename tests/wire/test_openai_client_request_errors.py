"""A client's chat.completions request: an invalid field is rejected by its name."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest
from dragoman.wire.openai.client_request import parse_chat_completions_request
from dragoman.wire.openai.request import encode_request

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def refuse(raw: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as raised:
        parse_chat_completions_request(raw)
    return raised.value


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"messages": [HI, {"role": "assistant", **fields}]}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [HI, "Hi"]}, "messages[1]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{**HI, "role": "robot"}]}, "messages[0].role"),
        ({"messages": [{**HI, "role": ["user"]}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": 5}]}, "messages[0].content"),
        (user("Hi"), "messages[0].content[0]"),
        (user({"text": "Hi"}), "messages[0].content[0].type"),
        (user({"type": ["text"]}), "messages[0].content[0].type"),
        (user({"type": "video_url", "video_url": {}}), "messages[0].content[0].type"),
        (user({"type": "refusal", "refusal": "no"}), "messages[0].content[0].type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user({"type": "image_url"}), "messages[0].content[0].image_url"),
        (user({"type": "image_url", "image_url": {}}), "messages[0].content[0].image_url.url"),
        (user({"type": "image_url", "image_url": {"url": "QUJD"}}), "messages[0].content[0].image_url.url"),
        (
            user({"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>"}}),
            "messages[0].content[0].image_url.url",
        ),
        (
            user({"type": "image_url", "image_url": {"url": "https://a.example", "detail": 1}}),
            "messages[0].content[0].image_url.detail",
        ),
        (
            user({"type": "input_audio", "input_audio": {"data": "QQ=="}}),
            "messages[0].content[0].input_audio.format",
        ),
        (user({"type": "file", "file": {"file_id": "file-1"}}), "messages[0].content[0].file.file_id"),
        (user({"type": "file", "file": {}}), "messages[0].content[0].file.file_data"),
        (user({"type": "text", "text": "a", "cache_control": 1}), "messages[0].content[0].cache_control"),
        (
            user({"type": "text", "text": "a", "prompt_cache_breakpoint": {"ttl": 5}}),
            "messages[0].content[0].prompt_cache_breakpoint.ttl",
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (assistant(content=5), "messages[1].content"),
        (assistant(refusal=5), "messages[1].refusal"),
        (assistant(reasoning_content=5), "messages[1].reasoning_content"),
        (assistant(reasoning={}), "messages[1].reasoning"),
        (assistant(reasoning_details={}), "messages[1].reasoning_details"),
        (assistant(reasoning_details=[1]), "messages[1].reasoning_details[0]"),
        (assistant(thinking_blocks=["a"]), "messages[1].thinking_blocks[0]"),
        (assistant(tool_calls={}), "messages[1].tool_calls"),
        (assistant(tool_calls=[5]), "messages[1].tool_calls[0]"),
        (assistant(tool_calls=[CALL, {**CALL, "id": None}]), "messages[1].tool_calls[1].id"),
        (assistant(tool_calls=[{**CALL, "type": "custom"}]), "messages[1].tool_calls[0].type"),
        (assistant(tool_calls=[{"id": "a"}]), "messages[1].tool_calls[0].function"),
        (assistant(tool_calls=[{**CALL, "function": {}}]), "messages[1].tool_calls[0].function.name"),
        (
            assistant(tool_calls=[{**CALL, "function": {"name": "f", "arguments": 5}}]),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (assistant(function_call={"arguments": "{}"}), "messages[1].function_call.name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [HI, {"role": "tool", "tool_call_id": "c", "content": "x"}]},
            "messages[1].tool_call_id",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [CALL]},
                    *[{"role": "tool", "tool_call_id": "c1", "content": "x"}] * 2,
                ]
            },
            "messages[2].tool_call_id",
        ),
        ({"messages": [HI, {"role": "function", "name": "f", "content": "x"}]}, "messages[1].name"),
        ({"tools": {}}, "tools"),
        ({"tools": [TOOL, 5]}, "tools[1]"),
        ({"tools": [TOOL, {"type": "custom", "custom": {"name": "c"}}]}, "tools[1].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
            "tools[0].function.strict",
        ),
        ({"functions": [{}]}, "functions[0].name"),
        ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]},
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (
            {
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [TOOL]}},
                "tools": [TOOL],
            },
            "tool_choice.allowed_tools.mode",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [TOOL]}}},
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        ({"function_call": {"name": "f"}}, "function_call.name"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": "2"}, "n"),
        ({"stop": [1]}, "stop"),
        ({"stop": 1}, "stop"),
        ({"logprobs": 1}, "logprobs"),
        ({"logit_bias": []}, "logit_bias"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_the_invalid_field_is_named(fields: dict[str, Any], field: str) -> None:
    error = refuse(msgspec.json.encode({"model": "m", "messages": [HI], **fields}))
    assert error.field == field
    assert error.message.startswith(field)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'{"model":"m",}',
        b'{"model":NaN}',
        b"\xff\xfe{}",
        b'{"model":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_not_a_json_object_is_rejected(raw: bytes) -> None:
    assert refuse(raw).status == 400


@pytest.mark.parametrize("depth", [300, 900, 5000, 100_000])
def test_a_body_that_is_nested_too_deeply_is_rejected(depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    tools = b'[{"type":"function","function":{"name":"f","parameters":%b}}]' % deep
    assert "nested" in refuse(b'{"model":"m","messages":[],"tools":%b}' % tools).message
    arguments = {**CALL, "function": {"name": "f", "arguments": deep.decode()}}
    body = {"model": "m", "messages": [HI, {"role": "assistant", "tool_calls": [arguments]}]}
    [part] = parse_chat_completions_request(msgspec.json.encode(body)).request.messages[1].parts
    assert (part.input, part.raw_input) == ({}, deep.decode())  # type: ignore[union-attr]


def test_errors_do_not_repeat_long_values() -> None:
    error = refuse(msgspec.json.encode({"model": "m", "messages": [{**HI, "role": "x" * 100_000}]}))
    assert len(error.message) < 200


MARK = {"cache_control": {"type": "ephemeral"}}
SIGNED = {
    "type": "reasoning.text",
    "text": "f",
    "signature": "g",
    "format": "anthropic-claude-v1",
    "index": 0,
}
SEALED = {"type": "reasoning.encrypted", "data": "h", "format": "openai-responses-v1", "index": 1}
GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "a", **MARK}]},
        {
            "role": "user",
            "name": "u",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ==", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "QQ=="}},
                {"type": "text", "text": "b", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "c"}, {"type": "refusal", "refusal": "d"}],
            "reasoning_content": "e",
            "reasoning_details": [SIGNED, SEALED],
            "thinking_blocks": [{"type": "thinking", "thinking": "i", "signature": "j"}],
            "tool_calls": [{**CALL, "extra_content": {"k": 1}}],
            "function_call": {"name": "f", "arguments": "{}"},
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "l"}]},
        {"role": "function", "name": "f", "content": "m"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}, **MARK}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}},
    "functions": [{"name": "g"}],
    "function_call": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1,
    "stop": ["o"],
    "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {}}},
    "logit_bias": {"1": 1},
    "seed": 1,
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a JSON value."""
    found: list[tuple[Any, Any]] = []
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        found += [(value, key), *places(value[key])]
    return found


@given(st.randoms(use_true_random=False), st.lists(VALUES | st.just("drop"), min_size=1, max_size=3))
def test_any_body_is_parsed_or_rejected(chance: random.Random, values: list[Any]) -> None:
    body = json.loads(json.dumps(GOOD))
    for value in values:
        found = places(body)
        container, key = found[chance.randrange(len(found))] if found else (body, "model")
        if value == "drop":
            del container[key]
        else:
            container[key] = value
    with suppress(BadRequest):
        encode_request(parse_chat_completions_request(json.dumps(body).encode()).request)


def test_the_body_before_the_damage_is_valid() -> None:
    assert len(parse_chat_completions_request(json.dumps(GOOD).encode()).request.messages) == 3
