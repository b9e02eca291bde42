"""Options of chat.completions requests, including those in Anthropic's terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletionToolChoiceOptionParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter

from dragoman.errors import BadRequest
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.openai.request import check_request, encode_request

HI = Message("u", "user", (TextPart("Hi"),))
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
STRICT = Quirks(accepted_options=frozenset(), uses_max_completion_tokens=True)
NATIVE = Quirks(accepted_options=frozenset({"thinking"}))


def make_request(options: dict[str, Any], model: str = "m") -> ModelRequest:
    return ModelRequest(model=model, messages=[HI], options=options)


def encode(options: dict[str, Any], quirks: Quirks | None = None, model: str = "m") -> dict[str, Any]:
    """The body without the model, its messages and the stream flag."""
    body = msgspec.json.decode(encode_request(make_request(options, model), quirks=quirks))
    usual = ("model", "messages", "stream", "stream_options")
    return {name: value for name, value in body.items() if name not in usual}


@pytest.mark.parametrize(
    ("options", "effort", "names"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low", []),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "low", []),
        ({"thinking": {"type": "enabled", "budget_tokens": 12_000}}, "medium", []),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, "high", []),
        ({"thinking": {"type": "adaptive"}}, None, []),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}, "medium", []),
        ({"output_config": {"effort": "low"}}, "low", []),
        ({"output_config": {"effort": "xhigh"}}, "high", []),
        ({"output_config": {"effort": "max"}}, "high", []),
        ({"output_config": {"effort": "extreme"}}, None, ["output_config.effort"]),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, None, ["thinking"]),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "none"}, "none", []),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "reasoning_effort": "xhigh"}, "xhigh", []),
        ({"reasoning_effort": None, "output_config": {"effort": "low"}}, "low", []),
    ],
)
def test_thinking_becomes_a_reasoning_effort(
    options: dict[str, Any], effort: str | None, names: list[str]
) -> None:
    assert encode(options) == ({"reasoning_effort": effort} if effort else {})
    assert check_request(make_request(options), Quirks()) == names


def test_a_vendor_that_supports_thinking_gets_it_unchanged() -> None:
    for kind, sent in (("enabled", "enabled"), ("adaptive", "enabled"), ("disabled", "disabled")):
        options = {"thinking": {"type": kind}}
        assert encode(options, NATIVE) == {"thinking": {"type": sent}}
        assert check_request(make_request(options), NATIVE) == []


def test_an_output_schema_becomes_a_response_format() -> None:
    theirs = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    ours = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    assert encode(theirs) == {"response_format": ours}
    own_format = {"response_format": {"type": "json_object"}}
    assert encode(theirs | own_format) == own_format
    assert check_request(make_request(theirs), Quirks()) == []


def test_options_that_only_anthropic_supports_are_dropped_and_reported() -> None:
    options: dict[str, Any] = {
        "anthropic_beta": ["x"],
        "anthropic-version": "2023-06-01",
        "billing_policy": {"type": "default"},
        "cache_control": {"type": "ephemeral"},
        "compaction": {"enabled": True},
        "container": None,
        "context_management": {"edits": []},
        "fallback_credit_token": "t",
        "mcp_servers": [],
        "output_config": {"task_budget": {"total": 9}},
        "speed": "fast",
        "thread": {"type": "create"},
        "temperature": 1,
        "top_k": 5,
        "seed": None,
        "vendors_own": {"x": 1},
    }
    names = [
        "anthropic-version",
        "anthropic_beta",
        "billing_policy",
        "cache_control",
        "compaction",
        "context_management",
        "fallback_credit_token",
        "mcp_servers",
        "speed",
        "thread",
        "output_config.task_budget",
    ]
    supported = {"temperature": 1, "seed": None, "vendors_own": {"x": 1}}
    assert encode(options) == supported | {"top_k": 5}
    assert check_request(make_request(options), Quirks()) == names
    assert encode(options, STRICT) == supported
    assert set(check_request(make_request(options), STRICT)) == {*names, "top_k"}


def test_mcp_servers_for_the_provider_are_rejected() -> None:
    request = make_request({"mcp_servers": [{"url": "https://a.example"}]})
    for ask in (encode_request, lambda request: check_request(request, Quirks())):
        with pytest.raises(BadRequest, match="MCP") as caught:
            ask(request)
        assert caught.value.field == "mcp_servers"


def test_a_service_tier_is_converted_to_openais_name() -> None:
    assert encode({"service_tier": "standard_only"}) == {"service_tier": "default"}
    assert encode({"service_tier": "flex"}) == {"service_tier": "flex"}


@pytest.mark.parametrize(
    ("model", "quirks", "name"),
    [
        ("o1", STRICT, "max_completion_tokens"),
        ("o4-mini", STRICT, "max_completion_tokens"),
        ("gpt-5", STRICT, "max_completion_tokens"),
        ("gpt-6.1-terra", STRICT, "max_completion_tokens"),
        ("gpt-10", STRICT, "max_completion_tokens"),
        ("gpt-4o", STRICT, "max_tokens"),
        ("gpt-3.5-turbo", STRICT, "max_tokens"),
        ("omni", STRICT, "max_tokens"),
        ("gpt-5", None, "max_tokens"),
    ],
)
def test_openais_reasoning_models_get_max_completion_tokens(
    model: str, quirks: Quirks | None, name: str
) -> None:
    assert encode({"max_tokens": 9}, quirks, model) == {name: 9}
    both = {"max_tokens": 9, "max_completion_tokens": 8}
    assert encode(both, quirks, model) == (both if name == "max_tokens" else {"max_completion_tokens": 8})


def test_tools_may_be_strict_and_one_may_be_named() -> None:
    tools = [Tool("hub.call", "Calls.", SCHEMA, strict=True), Tool("f", "", {}, strict=False)]
    request = ModelRequest(model="m", messages=[HI], tools=tools, tool_choice=NamedToolChoice("hub.call"))
    body = msgspec.json.decode(encode_request(request))
    TypeAdapter(list[ChatCompletionToolUnionParam]).validate_python(body["tools"])
    TypeAdapter(ChatCompletionToolChoiceOptionParam).validate_python(body["tool_choice"])
    assert [tool["function"].get("strict") for tool in body["tools"]] == [True, False]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "hub_call"}}
