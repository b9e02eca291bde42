"""Requests as the upstream receives them: unchanged in its dialect, translated from another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.gateway.recordings import ANTHROPIC, OLLAMA, OPENAI
from tests.gateway.sdk_clients import HI, USAGE, Pair, completion, final, heard, message, snapshot
from tests.gateway.upstream import LINES, Answer, Stage
from tests.wire.anthropic_bodies import PICTURE, claude_code
from tests.wire.anthropic_streams import MODEL, STOP, block, call, sse, start, stop, text

PNG = f"data:image/png;base64,{PICTURE}"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
ASKED: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this, and what is the weather?"},
                {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Snow"},
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "stop": ["END"],
    "max_completion_tokens": 77,
    "parallel_tool_calls": False,
    "reasoning_effort": "high",
}
ONLY_OPENAI: dict[str, Any] = {
    "response_format": FORMAT,
    "seed": 7,
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"50256": -100},
    "temperature": 0.1,
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "verbosity": "low",
    "extra_body": {"x_unknown": {"deep": [1, 2.50, None]}, "provider": {"order": ["a"]}},
}


def test_an_openai_request_arrives_as_the_client_sent_it(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    request = {**ASKED, **ONLY_OPENAI}
    snapshot(chat.straight, "m", **request)
    straight = stage.upstream.requests[-1]
    snapshot(chat.hub, "oai/m", **request)
    received = stage.upstream.requests[-1]
    assert received.line == straight.line
    assert msgspec.json.decode(received.body, type=dict[str, msgspec.Raw]) == msgspec.json.decode(
        straight.body, type=dict[str, msgspec.Raw]
    )
    assert received["authorization"] == "Bearer sk-upstream-0123456789abcdef"
    assert stage.key not in str(received.headers)


def test_openais_headers_pass(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    headers = {"openai-organization": "org-1", "openai-project": "p-1", "idempotency-key": "i-1"}
    snapshot(chat.hub, "oai/m", extra_headers=headers)
    assert {name: stage.upstream.requests[-1][name] for name in headers} == headers


def claude() -> dict[str, Any]:
    """Claude Code's request, as arguments of the SDK; it streams by itself."""
    body = claude_code()
    beyond = {name: body.pop(name) for name in ("context_management", "model", "stream", "temperature")}
    return {**body, "extra_body": {"context_management": beyond["context_management"], "x_new": [1.50]}}


def test_an_anthropic_request_arrives_as_the_client_sent_it(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(Answer(body=ANTHROPIC["text"]))
    headers = {"anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27"}
    final(messages.straight, "m", extra_headers=headers, **claude())
    straight = stage.upstream.requests[-1]
    final(messages.hub, "ant/m", extra_headers=headers, **claude())
    received = stage.upstream.requests[-1]
    assert received.line == straight.line
    assert msgspec.json.decode(received.body, type=dict[str, msgspec.Raw]) == msgspec.json.decode(
        straight.body, type=dict[str, msgspec.Raw]
    )
    for name in ("anthropic-beta", "anthropic-version"):
        assert received[name] == straight[name] != ""
    assert received["x-api-key"] == "sk-upstream-0123456789abcdef"
    assert stage.key not in str(received.headers)


def test_an_openai_request_becomes_one_of_anthropic(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(Answer(body=ANTHROPIC["text"]))
    snapshot(chat.hub, "ant/m", **{**ASKED, "reasoning_effort": None})
    body = stage.upstream.body
    calls = [
        {"type": "tool_use", "id": id, "name": "weather", "input": {"city": "Oslo"}}
        for id in ("call_1", "call_2")
    ]
    results = [
        {"type": "tool_result", "tool_use_id": id, "content": reply}
        for id, reply in (("call_1", "Rain"), ("call_2", "Snow"))
    ]
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    text = {"type": "text", "text": "What is this, and what is the weather?"}
    assert body == {
        "model": "m",
        "stream": True,
        "max_tokens": 77,
        "stop_sequences": ["END"],
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [text, {"type": "image", "source": source}]},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": results},
        ],
        "tools": [
            {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA, "strict": True},
        ],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    }


def test_what_the_provider_has_no_word_for_is_named(stage: Stage, chat: Pair) -> None:
    stage.upstream.play(Answer(body=ANTHROPIC["text"]))
    raw = chat.hub.chat.completions.with_raw_response.create(
        model="ant/m", messages=HI, seed=7, logit_bias={"1": 2}, presence_penalty=0.5
    )
    assert set(raw.headers["x-dragoman-dropped"].split(",")) == {"seed", "logit_bias", "presence_penalty"}


@pytest.mark.parametrize("model", ["ant/m", "oll/m"])
def test_several_choices_are_refused_where_there_is_but_one(stage: Stage, chat: Pair, model: str) -> None:
    stage.upstream.play(Answer(body=ANTHROPIC["text"]))
    report = heard(completion, chat.hub, model, n=2)
    assert (report.kind, report.status) == ("BadRequestError", 400)
    assert stage.upstream.requests == []


def test_an_anthropic_request_becomes_one_of_openai(stage: Stage, messages: Pair) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    request = claude()
    final(messages.hub, "oai/m", **request)
    body = stage.upstream.body
    assert body["stream_options"] == USAGE
    assert body["reasoning_effort"] == "high"
    assert (body.get("max_completion_tokens") or body["max_tokens"]) == 32000
    assert [tool["function"]["name"] for tool in body["tools"]] == [tool["name"] for tool in request["tools"]]
    roles = [reply["role"] for reply in body["messages"]]
    assert roles[0] == "system"
    assert [reply["tool_call_id"] for reply in body["messages"] if reply["role"] == "tool"] == [
        "toolu_01",
        "toolu_02",
        "toolu_03",
        "toolu_04",
    ]
    assert PNG in msgspec.json.encode(body["messages"]).decode()
    calls = [made for reply in body["messages"] for made in reply.get("tool_calls", ())]
    assert [(made["id"], made["function"]["name"]) for made in calls] == [
        ("toolu_01", "Read"),
        ("toolu_02", "Read"),
        ("toolu_03", "Bash"),
        ("toolu_04", "Grep"),
    ]
    assert "signature" not in stage.upstream.requests[-1].body.decode()


def test_both_requests_become_one_of_ollama(stage: Stage, chat: Pair, messages: Pair) -> None:
    stage.upstream.play(Answer(body=OLLAMA["text"], headers=LINES))
    snapshot(chat.hub, "oll/m", **{**ASKED, "tool_choice": "auto", "response_format": FORMAT, "seed": 7})
    body = stage.upstream.body
    assert stage.upstream.requests[-1].line == "POST /api/chat HTTP/1.1"
    assert (body["model"], body["stream"], body["think"]) == ("m", True, True)
    assert body["format"] == SCHEMA
    assert body["options"] == {"stop": ["END"], "num_predict": 77, "seed": 7}
    assert body["messages"][1]["images"] == [PICTURE]
    assert [reply["role"] for reply in body["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert body["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    final(messages.hub, "oll/m", **claude())
    body = stage.upstream.body
    assert [reply["role"] for reply in body["messages"]][:2] == ["system", "user"]
    assert len(body["tools"]) == len(claude()["tools"])
    assert PICTURE in stage.upstream.requests[-1].body.decode()


# ---- loops ----------------------------------------------------------------------------------------------


SIGNED = {"type": "thinking", "thinking": "Let me see… ", "signature": "EqQBCgIYAhIM1gbcDa9/+=="}
REDACTED = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafP+sn4a=="}
THOUGHTFUL = sse(
    start(),
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see… "},
        {"type": "signature_delta", "signature": SIGNED["signature"]},
    ),
    *block(1, REDACTED),
    *text(2, "I look."),
    *call(3, "toolu_1", "weather", '{"city":', ' "Oslo"}'),
    stop("tool_use"),
    STOP,
)


@pytest.mark.parametrize("read", [snapshot, completion])
def test_signed_reasoning_returns_through_the_openai_endpoint_byte_for_byte(
    stage: Stage, chat: Pair, read: Callable[..., Any]
) -> None:
    """A tool loop over OpenAI's door with Anthropic behind it: the client sends back what it was given."""
    stage.upstream.play(Answer(body=THOUGHTFUL), Answer(body=ANTHROPIC["text"]))
    reply = read(chat.hub, "ant/m", tools=[TOOL]).choices[0].message
    value = reply.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": "toolu_1", "content": "Rain"}
    read(chat.hub, "ant/m", tools=[TOOL], messages=[*HI, value, result])
    request = stage.upstream.body["messages"]
    assert request[1]["content"] == [
        SIGNED,
        REDACTED,
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
    ]
    assert request[2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain"}]


@pytest.mark.parametrize("read", [final, message])
def test_reasoning_returns_through_the_anthropic_endpoint_to_an_openai_compatible_server(
    stage: Stage, messages: Pair, read: Callable[..., Any]
) -> None:
    stage.upstream.play(Answer(body=OPENAI["openrouter_encrypted"]), Answer(body=OPENAI["openai_text"]))
    report = read(messages.hub, "oai/m")
    [used] = [one for one in report.content if one.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "Noon"}
    turns = [
        *HI,
        {"role": "assistant", "content": [one.to_dict() for one in report.content]},
        {"role": "user", "content": [result]},
    ]
    read(messages.hub, "oai/m", messages=turns)
    assert [reply["role"] for reply in stage.upstream.body["messages"]] == ["user", "assistant", "tool"]
    assert stage.upstream.body["messages"][1]["tool_calls"][0]["id"] == used.id


def test_the_model_is_named_as_the_provider_knows_it(stage: Stage, chat: Pair, messages: Pair) -> None:
    stage.upstream.play(Answer(body=OPENAI["openai_text"]))
    snapshot(chat.hub, "short")
    assert stage.upstream.body["model"] == "m"
    stage.upstream.play(Answer(body=ANTHROPIC["text"]))
    assert final(messages.hub, "ant/claude-x").model == MODEL
    assert stage.upstream.body["model"] == "claude-x"
