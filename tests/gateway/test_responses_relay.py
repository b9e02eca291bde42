"""Providers that speak the Responses API: relayed to its clients, translated for all others."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import msgspec
import openai
import pytest

from dragoman.wire.responses.opaque_reasoning import PREFIX
from tests.gateway.upstream import Answer, Stage, document
from tests.wire.responses_streams import (
    STREAMS,
    THOUGHT,
    call_events,
    ending,
    function_call,
    message,
    opening,
    response,
    sse,
    text_events,
)

ANSWER = {"type": "function_call_output", "call_id": "call_1", "output": "Rain"}
HI: Any = {"model": "res/gpt-5.1", "input": "hi"}
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
NO_PRICE = b": x-dragoman-cost"


def post(stage: Stage, path: str = "/v1/responses", **body: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {stage.key}"}
    return httpx2.post(f"{stage.url}{path}", json={**HI, **body}, headers=headers, timeout=30)


@pytest.mark.parametrize("name", ["text", "calls", "tools", "custom", "refusal", "cut"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_stream_is_relayed_as_the_provider_sent_it(stage: Stage, name: str, seed: int | None) -> None:
    stage.upstream.play(Answer(body=STREAMS[name], seed=seed))
    raw = post(stage, stream=True).content
    assert raw.partition(NO_PRICE)[0] == STREAMS[name]
    assert stage.upstream.body == {**HI, "model": "gpt-5.1", "stream": True}
    assert stage.upstream.requests[-1].line.startswith("POST /v1/responses ")


def test_a_document_is_relayed_as_the_provider_sent_it_and_counted(stage: Stage) -> None:
    whole = msgspec.json.encode(response("completed", [THOUGHT, message("Hi")]))
    stage.upstream.play(document(whole))
    answer = post(stage, unknown={"a": 1})
    assert answer.content == whole
    assert float(answer.headers["x-dragoman-cost"]) == pytest.approx(36e-6 + 12 * 2e-6)
    assert stage.upstream.body["unknown"] == {"a": 1}


def test_an_end_without_items_gets_those_that_were_sent_before(stage: Stage) -> None:
    """As the servers of Codex send it: OpenAI's library reads the output there."""
    items = [message("I look."), function_call("weather", "{}")]
    events = [*opening(), *text_events(0, items[0], "I look."), *call_events(1, items[1], "{}"), ending()]
    stage.upstream.play(Answer(body=sse(*events)))
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0)
    with client.responses.stream(**HI) as stream:
        final = stream.get_final_response()
    assert (final.output_text, [item.type for item in final.output]) == (
        "I look.",
        ["message", "function_call"],
    )
    stage.upstream.play(Answer(body=STREAMS["text"]))
    client.responses.create(**{**HI, "input": [ANSWER]}, previous_response_id=final.id, stream=True).close()
    assert [item.get("type") for item in stage.upstream.body["input"]][1:3] == ["message", "function_call"]


def test_a_status_in_other_words_is_an_answer_for_clients_of_both_forms(stage: Stage) -> None:
    stage.upstream.play(document(msgspec.json.encode(response("complete", [message("Hi")]))))
    assert post(stage).json()["output"] == [message("Hi")]
    assert b"response.completed" in post(stage, stream=True).content


def test_openais_client_streams_what_is_relayed(stage: Stage) -> None:
    stage.upstream.play(Answer(body=STREAMS["calls"]))
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0)
    with client.responses.stream(**HI) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert final.output_text == "I look."


def test_reasoning_that_the_hub_sealed_is_not_sent_to_a_server_that_cannot_read_it(stage: Stage) -> None:
    stage.upstream.play(Answer(body=STREAMS["text"]))
    sealed = {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": PREFIX + "{}"}
    user = {"role": "user", "content": "hi"}
    assert post(stage, stream=True, input=[sealed, THOUGHT, user]).status_code == 200
    assert stage.upstream.body["input"] == [THOUGHT, user]


FAILED = ending(status="failed", error={"code": "server_error", "message": "The server had an error."})


@pytest.mark.parametrize("provider", ["res", "res-again"])
@pytest.mark.parametrize(
    ("body", "requests"),
    [
        (sse(*opening(), FAILED), 1),
        (sse(*opening(), *text_events(0, message("On"), "On")), 1),
        (sse(*opening(), {"type": "error", "code": "server_error", "message": "Oh.", "param": None}), 1),
        (sse({"type": "error", "code": "rate_limit_exceeded", "message": "Slow.", "param": None}), 3),
    ],
)
def test_a_stream_that_fails_ends_as_failed_and_is_asked_for_as_often_as_the_hub_retries(
    stage: Stage, provider: str, body: bytes, requests: int
) -> None:
    stage.upstream.play(Answer(body=body))
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=2)
    events = list(client.responses.create(**{**HI, "model": f"{provider}/gpt-5.1"}, stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "invalid_prompt"
    assert len(stage.upstream.requests) == (requests if provider == "res-again" else 1)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_clients_of_the_relay_do_not_multiply_what_the_hub_retries(stage: Stage, status: int) -> None:
    stage.upstream.play(document({"error": {"message": "No.", "type": "x", "code": None}}, status))
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=2)
    with pytest.raises(openai.APIStatusError):
        client.responses.create(**{**HI, "model": "res-again/gpt-5.1"})
    assert len(stage.upstream.requests) == (1 if status in (400, 401) else 3)


# ---- clients of other protocols


def test_a_chat_client_sends_encrypted_reasoning_back_to_the_server_that_it_came_from(stage: Stage) -> None:
    stage.upstream.play(Answer(body=STREAMS["calls"]))
    path, model = "/v1/chat/completions", "res/gpt-5.1"
    question = {"role": "user", "content": "hi"}
    answer = post(stage, path, messages=[question]).json()["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in answer["tool_calls"]]
    stage.upstream.play(Answer(body=STREAMS["text"]))
    assert post(stage, path, messages=[question, answer, *results], model=model).status_code == 200
    items = stage.upstream.body["input"]
    assert [item["encrypted_content"] for item in items if item.get("type") == "reasoning"] == ["gAAA+/="]


def test_a_chat_client_reads_text_reasoning_and_calls(stage: Stage) -> None:
    stage.upstream.play(Answer(body=STREAMS["calls"]))
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0)
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    answer = client.chat.completions.create(
        model="res/gpt-5.1",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        tools=[tool],
        max_tokens=99,
        reasoning_effort="low",
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert [call.id for call in choice.message.tool_calls or ()] == ["call_1", "call_2"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (36, 12)
    body = stage.upstream.body
    assert body["input"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert body["max_output_tokens"] == 99
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])


def test_a_messages_client_gets_thinking_back_to_its_server_byte_for_byte(stage: Stage) -> None:
    stage.upstream.play(Answer(body=STREAMS["calls"]))
    client = anthropic.Anthropic(base_url=stage.url, api_key=stage.key, max_retries=0)
    tools: Any = [{"name": "weather", "input_schema": {"type": "object"}}]
    ask: Any = {"model": "res/gpt-5.1", "max_tokens": 99, "tools": tools}
    question: Any = {"role": "user", "content": "hi"}
    answer = client.messages.create(**ask, messages=[question])
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    results: Any = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "3"}
        for block in answer.content
        if block.type == "tool_use"
    ]
    stage.upstream.play(Answer(body=STREAMS["text"]))
    turns: Any = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert client.messages.create(**ask, messages=[question, *turns]).content[0].type == "text"
    types = [item.get("type", item.get("role")) for item in stage.upstream.body["input"]]
    outputs = ["function_call_output"] * 2
    assert types == ["user", "reasoning", "message", "function_call", "function_call", *outputs]
    sent = stage.upstream.body["input"][1]
    assert (sent["id"], sent["encrypted_content"]) == (THOUGHT["id"], THOUGHT["encrypted_content"])


def test_a_field_that_the_model_refuses_is_left_out_and_not_sent_again(stage: Stage) -> None:
    refused = {
        "error": {"message": "Encrypted content is not supported with this model.", "param": "include"}
    }
    stage.upstream.play(document(refused, 400), Answer(body=STREAMS["text"]))
    ask = {"model": "res/old", "messages": [{"role": "user", "content": "hi"}]}
    for requests in (2, 3):
        answer = post(stage, "/v1/chat/completions", **ask)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello wörld 🦜"
        assert len(stage.upstream.requests) == requests
        assert "include" not in stage.upstream.body


def test_a_continued_response_is_sent_whole_and_without_the_id_that_only_the_hub_knows(stage: Stage) -> None:
    stage.upstream.play(Answer(body=STREAMS["text"]))
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0)
    with client.responses.stream(**HI) as first:
        id = first.get_final_response().id
    more: Any = {**HI, "input": "more"}
    with client.responses.stream(**more, previous_response_id=id) as second:
        second.get_final_response()
    body = stage.upstream.body
    assert body.get("previous_response_id") is None
    assert [item["type"] for item in body["input"]] == ["message", "message", "message"]


@pytest.mark.parametrize("events", [1, 2])
def test_a_relayed_response_fails_under_its_own_id(stage: Stage, events: int) -> None:
    """The SDK's accumulator refuses another id, and a second beginning."""
    error = {"code": "server_error", "message": "boom"}
    stage.upstream.play(Answer(body=sse(*opening()[:events], ending(status="failed", error=error))))
    client = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.key, max_retries=0)
    with client.responses.stream(model="res/m", input="hi", store=False) as stream:
        found = list(stream)
    last: Any = found[-1]
    assert [event.type for event in found].count("response.created") == 1
    assert [event.sequence_number for event in found] == list(range(events + 1))
    assert (last.type, last.response.id) == ("response.failed", "resp_1")
    assert "boom" in last.response.error.message
