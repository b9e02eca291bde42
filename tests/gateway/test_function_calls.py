"""Clients that send `functions`, the form before `tools`, read a call as a `function_call`."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from tests.gateway.sdk_clients import HI, Pair
from tests.gateway.test_tool_names import answer_of
from tests.gateway.upstream import Stage, document

FUNCTIONS: Any = [{"name": "look", "description": "Looks.", "parameters": {"type": "object"}}]


def call_of(client: openai.OpenAI, model: str, stream: bool) -> tuple[Any, Any, list[Any]]:
    """The function call of an answer, its finish reason, and its calls in the newer form."""
    request: Any = {"model": model, "messages": HI, "functions": FUNCTIONS, "function_call": "auto"}
    if not stream:
        [choice] = client.chat.completions.create(**request).choices
        call = choice.message.function_call
        assert call is not None
        return (call.name, call.arguments), choice.finish_reason, choice.message.tool_calls or []
    name, arguments, finish = "", "", None
    others: list[Any] = []
    for chunk in client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            call = choice.delta.function_call
            name += (call and call.name) or ""
            arguments += (call and call.arguments) or ""
            others += choice.delta.tool_calls or []
            finish = choice.finish_reason or finish
    return (name, arguments), finish, others


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["ant", "res"])
def test_a_client_of_functions_reads_a_call_in_its_own_form(
    stage: Stage, chat: Pair, provider: str, stream: bool
) -> None:
    stage.upstream.play(document(answer_of(provider, "look")))
    assert call_of(chat.hub, f"{provider}/m", stream) == (("look", "{}"), "function_call", [])
    body = stage.upstream.body
    one_call = body.get("parallel_tool_calls", body["tool_choice"])
    assert one_call in (False, {"type": "auto", "disable_parallel_tool_use": True})


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_tools_reads_a_call_as_ever(stage: Stage, stream: bool) -> None:
    stage.upstream.play(document(answer_of("ant", "look")))
    tools = [{"type": "function", "function": FUNCTIONS[0]}]
    body = {"model": "ant/m", "messages": HI, "functions": FUNCTIONS, "tools": tools, "stream": stream}
    headers = {"authorization": f"Bearer {stage.key}"}
    url = f"{stage.url}/v1/chat/completions"
    answer = httpx2.post(url, json=body, headers=headers, trust_env=False, timeout=60).text
    assert '"tool_calls":[{' in answer
    assert "function_call" not in answer
