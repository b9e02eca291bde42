"""Scripted models behind the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serving import serving

STEPS: list[dict[str, Any]] = [
    {"text": "I look.", "tools": [{"name": "look", "input": {"at": "sky"}}]},
    {"text": "Once more.", "tools": [{"name": "look", "input": {"at": "sea"}}]},
    {"text": "It gave {outputs}."},
]
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"name": "look", "description": "Look.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
REMINDER = {"type": "text", "text": "<system-reminder>Keep a list.</system-reminder>"}
NOTE = {"role": "system", "content": [{"type": "text", "text": "There are agents."}]}


async def messages(hub: Any, replies: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "sim/any", "max_tokens": 99, "messages": replies, "tools": [TOOL]}
    request = await hub.http.post("/v1/messages", json=body)
    assert request.status_code == 200, request.text
    found: dict[str, Any] = request.json()
    return found


def results(answer: dict[str, Any], *beside: dict[str, Any]) -> list[dict[str, Any]]:
    """What a client of Anthropic's API sends next."""
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    inputs = [{"type": "tool_result", "tool_use_id": call["id"], "content": "blue"} for call in calls]
    return [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [*inputs, *beside]},
    ]


@pytest.mark.parametrize("beside", [(), (REMINDER,)])
async def test_a_script_goes_on_for_a_client_of_anthropics_api(
    tmp_path: Path, beside: tuple[dict[str, Any], ...]
) -> None:
    async with serving(tmp_path, STEPS, play="turns") as hub:
        replies: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, NOTE]
        for step in ("I look.", "Once more."):
            answer = await messages(hub, replies)
            assert answer["content"][0]["text"] == step
            replies += results(answer, *beside)
        last = await messages(hub, replies)
        assert last["content"][0]["text"] == 'It gave "blue".'
        replies += [{"role": "assistant", "content": last["content"]}, {"role": "user", "content": "again"}]
        assert (await messages(hub, replies))["content"][0]["text"] == "I look."


async def test_a_script_goes_on_for_a_client_of_openais_api(tmp_path: Path) -> None:
    async with serving(tmp_path, STEPS, play="turns") as hub:
        replies: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
        texts = []
        for _ in STEPS:
            body = {"model": "sim/any", "messages": replies, "tools": [FUNCTION]}
            answer = (await hub.http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
            texts.append(answer["content"])
            calls = answer.get("tool_calls") or []
            inputs = [{"role": "tool", "tool_call_id": call["id"], "content": "blue"} for call in calls]
            replies += [answer, *inputs]
        assert texts == ["I look.", "Once more.", 'It gave "blue".']


async def test_an_answer_that_nobody_counted_is_estimated_for_a_client_that_must_have_numbers(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, [{"text": "Twelve chars"}], play="turns") as hub:
        usage = (await messages(hub, [{"role": "user", "content": "hi"}]))["usage"]
        [row] = (await hub.http.get("/api/usage")).json()["rows"]
        assert usage == {"input_tokens": usage["input_tokens"], "output_tokens": 3, "estimated": True}
        assert row["usage"]["outputTokens"] == 3
