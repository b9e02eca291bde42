"""Options of Anthropic requests: what each model family supports, and what is dropped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest
from dragoman.messages import Message, ReasoningPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.anthropic.capabilities import model_capabilities
from dragoman.wire.anthropic.request import check_request, encode_request, rejected_field

OLD, MIDDLE, NEW, STRICT = "claude-sonnet-4-5", "claude-opus-4-6", "claude-opus-5", "claude-fable-5-1"
HI = Message("u", "user", (TextPart("Hi"),))
TOOLS = (Tool("f", "", {}), Tool("g", "", {}))
BESIDE = ("model", "stream", "messages", "tools")


def make_request(model: str = OLD, *messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(model=model, messages=messages or (HI,), **fields)


def body(request: ModelRequest, **settings: Any) -> dict[str, Any]:
    """The body without the messages and tools."""
    decoded = msgspec.json.decode(encode_request(request, **settings))
    return {name: value for name, value in decoded.items() if name not in BESIDE}


def options(model: str = OLD, **request_options: Any) -> tuple[dict[str, Any], list[str]]:
    """The body's fields for these options, and the names of dropped ones."""
    request = make_request(model, options=request_options)
    fields = body(request)
    if fields["max_tokens"] == model_capabilities(model).default_max_tokens:
        del fields["max_tokens"]
    return fields, list(check_request(request))


@pytest.mark.parametrize(
    ("request_options", "fields", "left_out"),
    [
        ({}, {}, []),
        ({"max_tokens": 7}, {"max_tokens": 7}, []),
        ({"max_tokens": 7, "max_completion_tokens": 9}, {"max_tokens": 9}, []),
        ({"max_tokens": 0}, {"max_tokens": 0}, []),
        ({"temperature": -1}, {"temperature": 0}, []),
        ({"temperature": 2}, {"temperature": 1}, []),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5}, ["top_p"]),
        ({"top_p": 0.9, "top_k": 3}, {"top_p": 0.9, "top_k": 3}, []),
        ({"stop": "END"}, {"stop_sequences": ["END"]}, []),
        ({"stop": ["\n", "END"]}, {"stop_sequences": ["END"]}, ["stop"]),
        ({"stop": "\n\n"}, {}, ["stop"]),
        ({"stop": None, "seed": None, "n": 1}, {}, []),
        ({"seed": 0, "logprobs": False, "presence_penalty": 0}, {}, ["seed"]),
        ({"user": "a", "safety_identifier": "b"}, {"metadata": {"user_id": "b"}}, []),
        (
            {"user": "a", "metadata": {"user_id": "c", "team": "x"}},
            {"metadata": {"user_id": "c"}},
            ["metadata.team"],
        ),
        ({"service_tier": "auto"}, {"service_tier": "auto"}, []),
        ({"service_tier": "default"}, {"service_tier": "standard_only"}, []),
        ({"service_tier": "flex"}, {}, ["service_tier"]),
        (
            {"seed": 1, "logprobs": True, "top_logprobs": 2, "logit_bias": {"1": 2}, "presence_penalty": 1},
            {},
            ["logit_bias", "logprobs", "presence_penalty", "seed", "top_logprobs"],
        ),
        ({"logprobs": False, "frequency_penalty": 0, "logit_bias": {}, "store": False}, {}, []),
        ({"verbosity": "low", "num_ctx": 5}, {}, ["num_ctx", "verbosity"]),
        ({"stream_options": {"include_usage": True}, "stream": False, "modalities": ["text"]}, {}, []),
        (
            {"cache_control": {"type": "ephemeral"}, "container": "c", "speed": "fast"},
            {"cache_control": {"type": "ephemeral"}, "container": "c", "speed": "fast"},
            [],
        ),
        ({"response_format": {"type": "text"}}, {}, []),
    ],
)
def test_options_are_converted_to_anthropics_fields(
    request_options: dict[str, Any], fields: Any, left_out: list[str]
) -> None:
    assert options(**request_options) == (fields, left_out)


@pytest.mark.parametrize(
    ("request_options", "field"),
    [
        ({"n": 2}, "n"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"reasoning_effort": ["low"]}, "reasoning_effort"),
    ],
)
def test_options_that_cannot_be_dropped_are_rejected_by_name(
    request_options: dict[str, Any], field: str
) -> None:
    for refuse in (encode_request, check_request):
        with pytest.raises(BadRequest) as refused:
            refuse(make_request(options=request_options))
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("model", "request_options", "fields", "left_out"),
    [
        (NEW, {"temperature": 0.5, "top_p": 0.9, "top_k": 3}, {}, ["temperature", "top_k", "top_p"]),
        ("claude-opus-4-7-20260401", {"temperature": 0}, {}, ["temperature"]),
        ("anthropic.claude-sonnet-5-v1:0", {"temperature": 0}, {}, ["temperature"]),
        ("claude-mythos-preview", {"temperature": 0}, {}, ["temperature"]),
        ("anthropic/claude-opus-4.8", {"temperature": 0}, {}, ["temperature"]),
        ("claude-opus-4-20250514", {"temperature": 0, "top_p": 1}, {"temperature": 0, "top_p": 1}, []),
        ("claude-3-7-sonnet-20250219", {"temperature": 0}, {"temperature": 0}, []),
        ("kimi-k3", {"temperature": 0, "top_p": 1}, {"temperature": 0, "top_p": 1}, []),
    ],
)
def test_sampling_options_are_dropped_for_families_that_reject_them(
    model: str, request_options: dict[str, Any], fields: Any, left_out: list[str]
) -> None:
    assert options(model, **request_options) == (fields, left_out)


@pytest.mark.parametrize(
    ("model", "request_options", "fields", "left_out"),
    [
        (NEW, {"reasoning_effort": "minimal"}, {"thinking": "adaptive", "effort": "low"}, []),
        (NEW, {"reasoning_effort": "xhigh"}, {"thinking": "adaptive", "effort": "xhigh"}, []),
        (MIDDLE, {"reasoning_effort": "xhigh"}, {"thinking": "adaptive", "effort": "max"}, []),
        (
            MIDDLE,
            {"reasoning_effort": "high", "temperature": 0},
            {"thinking": "adaptive", "effort": "high"},
            ["temperature"],
        ),
        (NEW, {"reasoning_effort": "none"}, {"thinking": "disabled"}, []),
        (OLD, {"reasoning_effort": "low"}, {"thinking": 2048, "max_tokens": 12_000 + 2048}, []),
        (OLD, {"reasoning_effort": "medium"}, {"thinking": 10_000, "max_tokens": 12_000 + 10_000}, []),
        (OLD, {"reasoning_effort": "high"}, {"thinking": 16_384, "max_tokens": 12_000 + 16_384}, []),
        (OLD, {"reasoning_effort": "high", "max_tokens": 4000}, {"thinking": 3000, "max_tokens": 4000}, []),
        (OLD, {"reasoning_effort": "high", "max_tokens": 1000}, {"max_tokens": 1000}, ["reasoning_effort"]),
        (
            OLD,
            {"reasoning_effort": "low", "temperature": 1, "top_p": 0.99, "top_k": 2},
            {"thinking": 2048, "max_tokens": 14_048, "top_p": 0.99},
            ["top_k"],
        ),
        (
            OLD,
            {"reasoning_effort": "low", "temperature": 0.2, "top_p": 0.5},
            {"thinking": 2048, "max_tokens": 14_048},
            ["temperature", "top_p"],
        ),
        (
            "claude-opus-4-5",
            {"reasoning_effort": "max"},
            {"thinking": 32_768, "max_tokens": 44_768, "effort": "high"},
            [],
        ),
        ("claude-3-5-haiku-latest", {"reasoning_effort": "low"}, {}, ["reasoning_effort"]),
        ("claude-3-5-haiku-latest", {"reasoning_effort": "none"}, {}, []),
        (
            OLD,
            {"thinking": {"type": "enabled", "budget_tokens": 5000}},
            {"thinking": 5000, "max_tokens": 17_000},
            [],
        ),
        (
            NEW,
            {"thinking": {"type": "between_tools"}, "reasoning_effort": "low"},
            {"thinking": "between_tools"},
            [],
        ),
    ],
)
def test_effort_becomes_what_the_family_supports(
    model: str, request_options: dict[str, Any], fields: dict[str, Any], left_out: list[str]
) -> None:
    written, names = options(model, **request_options)
    thinking = written.pop("thinking", None)
    if thinking is not None:
        written["thinking"] = thinking.get("budget_tokens", thinking["type"])
        assert ("budget_tokens" in thinking) == (thinking["type"] == "enabled")
    if "output_config" in written:
        written["effort"] = written.pop("output_config")["effort"]
    assert (written, names) == (fields, left_out)


def test_budget_thinking_is_not_switched_on_between_calls() -> None:
    call = ToolPart("tool-f", "a", "output-available", input={}, output="1")
    thought = ReasoningPart("Hm.", "done", {"anthropic": {"signature": "s"}})
    bare, signed = Message("a", "assistant", (call,)), Message("a", "assistant", (thought, call))
    effort = {"reasoning_effort": "low"}
    assert "thinking" not in body(make_request(OLD, HI, bare, options=effort))
    assert list(check_request(make_request(OLD, HI, bare, options=effort))) == ["reasoning_effort"]
    assert "thinking" in body(make_request(OLD, HI, signed, options=effort))
    assert "thinking" in body(make_request(MIDDLE, HI, bare, options=effort))


@pytest.mark.parametrize(
    ("model", "choice", "request_options", "written", "left_out"),
    [
        (OLD, None, {}, None, []),
        (OLD, "auto", {}, {"type": "auto"}, []),
        (OLD, "none", {"parallel_tool_calls": False}, {"type": "none"}, []),
        (OLD, "required", {"parallel_tool_calls": True}, {"type": "any"}, []),
        (OLD, NamedToolChoice("g"), {}, {"type": "tool", "name": "g"}, []),
        (OLD, None, {"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}, []),
        (
            OLD,
            "required",
            {"parallel_tool_calls": False},
            {"type": "any", "disable_parallel_tool_use": True},
            [],
        ),
        (OLD, "required", {"reasoning_effort": "low"}, {"type": "auto"}, ["tool_choice"]),
        (OLD, "none", {"reasoning_effort": "low"}, {"type": "none"}, []),
        (MIDDLE, "required", {"reasoning_effort": "low"}, {"type": "any"}, []),
        (STRICT, NamedToolChoice("g"), {}, {"type": "auto"}, ["tool_choice"]),
    ],
)
def test_tool_choices_are_converted(
    model: str, choice: Any, request_options: Any, written: Any, left_out: list[str]
) -> None:
    request = make_request(model, tools=TOOLS, tool_choice=choice, options=request_options)
    assert body(request).get("tool_choice") == written
    assert list(check_request(request)) == left_out


def test_tools_keep_anthropics_own_fields() -> None:
    tool = Tool("a.b", "", {"type": "object"}, metadata={"anthropic": {"deferLoading": True}})
    decoded = msgspec.json.decode(encode_request(make_request(tools=(tool,))))
    assert decoded["tools"] == [
        {"name": "a_b", "input_schema": {"type": "object", "properties": {}}, "defer_loading": True}
    ]
    assert "tools" not in msgspec.json.decode(encode_request(make_request(tool_choice="auto")))


SCHEMA = {
    "type": "object",
    "description": "A bird.",
    "properties": {
        "name": {"type": "string", "minLength": 1, "format": "bird-name"},
        "born": {"type": "string", "format": "date"},
        "talks": {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/bird"}, "minItems": 2},
    },
    "required": ["name"],
    "$defs": {"bird": {"type": "object", "additionalProperties": True}},
}
CLOSED = {
    "type": "object",
    "description": "A bird.",
    "properties": {
        "name": {"type": "string", "description": 'minLength: 1, format: "bird-name"'},
        "born": {"type": "string", "format": "date"},
        "talks": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/bird"}, "description": "minItems: 2"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"bird": {"type": "object", "properties": {}, "additionalProperties": False}},
}
FORM = {"type": "json_schema", "json_schema": {"name": "bird", "strict": True, "schema": SCHEMA}}


def test_an_output_schema_is_closed_and_has_only_supported_keywords() -> None:
    fields, left_out = options(OLD, response_format=FORM, output_config={"effort": "low"})
    form = {"type": "json_schema", "schema": CLOSED}
    assert (fields, left_out) == ({"output_config": {"format": form, "effort": "low"}}, [])


def test_a_model_without_structured_output_gets_the_schema_in_the_system_message() -> None:
    fields, left_out = options("claude-3-7-sonnet-latest", response_format=FORM)
    assert fields["system"][0]["text"].endswith(msgspec.json.encode(SCHEMA).decode())
    assert left_out == ["response_format"]


def test_json_mode_is_requested_in_the_system_message() -> None:
    fields = body(make_request(instructions="Be kind.", options={"response_format": {"type": "json_object"}}))
    assert [block["text"][:30] for block in fields["system"]] == [
        "Be kind.",
        "Answer with one JSON object an",
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("`temperature` is deprecated for this model.", "temperature"),
        ("temperature: Extra inputs are not permitted", "temperature"),
        ("top_k: Extra inputs are not permitted", "top_k"),
        ("`temperature` and `top_p` cannot both be specified for this model.", "top_p"),
        ("`temperature` may only be set to 1 when thinking is enabled.", "temperature"),
        ("Thinking may not be enabled when tool_choice forces tool use.", "tool_choice"),
        ("thinking.type.enabled: this model wants adaptive", "thinking"),
        ("adaptive thinking is not supported on this model", "thinking"),
        ("output_config.effort: this model does not support 'xhigh'", "effort"),
        ("output_config.format: schema is too complex", "format"),
        ("tools.0.custom.strict: Extra inputs are not permitted", "strict"),
        (
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`",
            "thinking",
        ),
        ("messages.1.content.0: Invalid `signature` in `thinking` block", None),
        ("messages.0.content.1: the effort was in vain", None),
        ("prompt is too long: 200001 tokens > 200000 maximum", None),
        ("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024", None),
        ("`max_tokens` must be greater than `thinking.budget_tokens`.", None),
        ("tool_choice.name: Tool 'x' not found in provided tools", None),
    ],
)
def test_the_rejected_field_is_found_in_the_error_message(message: str, field: str | None) -> None:
    assert rejected_field(message) == field


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "top_k", "thinking", "effort", "tool_choice", "format"]
)
def test_a_rejected_field_is_not_sent_again(field: str) -> None:
    request_options = {
        "temperature": 0.5,
        "top_p": 1,
        "top_k": 2,
        "reasoning_effort": "low",
        "response_format": FORM,
    }
    for model in ("claude-opus-4-5", MIDDLE, "claude-opus-4-20250514"):
        request = make_request(model, tools=TOOLS, tool_choice="required", options=request_options)
        fields = body(request, drop=[field])
        assert field not in fields
        assert field not in fields.get("output_config", {})
        assert body(request, drop=[field]) == fields


def test_sampling_options_are_sent_when_thinking_is_dropped() -> None:
    request = make_request(OLD, options={"reasoning_effort": "low", "temperature": 0.5})
    assert body(request, drop=["thinking"]) == {"max_tokens": 12_000, "temperature": 0.5}


@given(
    st.sampled_from([OLD, MIDDLE, NEW, STRICT, "claude-3-5-haiku", "m"]),
    st.permutations(["temperature", "top_p", "top_k", "stop", "user", "seed", "max_tokens", "speed"]),
)
def test_the_same_options_give_the_same_bytes_in_any_order(model: str, names: list[str]) -> None:
    values: dict[str, Any] = {"stop": ["x"], "user": "u", "speed": "fast"}
    one = make_request(model, options={name: values.get(name, 1) for name in names})
    two = make_request(model, options={name: values.get(name, 1) for name in sorted(names)})
    assert encode_request(one) == encode_request(two)
    assert check_request(one) == check_request(two)


@pytest.mark.parametrize(
    ("model", "most"),
    [
        ("claude-3-5-haiku-latest", 4096), ("some/other", 4096), ("claude-3-7-sonnet-latest", 12_000),
        (OLD, 12_000), (MIDDLE, 32_000), (NEW, 32_000), ("claude-opus", 32_000),
    ],
)  # fmt: skip
def test_a_request_without_a_limit_gets_the_models_default(model: str, most: int) -> None:
    assert body(make_request(model))["max_tokens"] == most
    assert body(make_request(model), max_tokens=99)["max_tokens"] == 99
    assert body(make_request(model, options={"max_tokens": 7}))["max_tokens"] == 7
