"""Names of tools that a server would refuse: sent under others, called under their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from tests.gateway.upstream import Stage, document

NAMES = (
    "plain",
    "files.read",
    "files_read",
    "files/read",
    "mcp__a-server-with-a-long-name__a_tool_with_a_name_that_is_longer_than_sixty_four_characters",
    "mcp__a-server-with-a-long-name__a_tool_with_a_name_that_is_longer_than_sixty_four_characters_too",
    "wetter.für_heute",
    "x" * 200,
)
LIMITS = {"oai": 64, "res": 64, "ant": 128}
SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}


def answer_of(provider: str, name: str) -> Any:
    """A document of a provider: a call of the tool of this name."""
    match provider:
        case "oai":
            call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            return {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
        case "ant":
            block = {"type": "tool_use", "id": "c1", "name": name, "input": {}}
            answer: dict[str, Any] = {
                "id": "x",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "usage": USAGE,
            }
            return {**answer, "content": [block], "stop_reason": "tool_use", "stop_sequence": None}
        case _:
            item = {"type": "function_call", "id": "f", "call_id": "c1", "name": name, "arguments": "{}"}
            head: dict[str, Any] = {
                "id": "x",
                "object": "response",
                "created_at": 1,
                "model": "m",
                "usage": USAGE,
            }
            return {**head, "status": "completed", "output": [{**item, "status": "completed"}]}


def sent_names(body: Mapping[str, Any]) -> list[str]:
    """The names of the tools in a request, and last that of the call in its history."""
    tools = [tool.get("function", tool)["name"] for tool in body["tools"]]
    calls = calls_in(body.get("messages") or body["input"])
    return [*tools, *calls]


def calls_in(items: Any) -> list[str]:
    """The names of the calls in messages or items of any family."""
    found: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            found.append(item["name"])
        found += [call["function"]["name"] for call in item.get("tool_calls") or ()]
        content = item.get("content")
        blocks = content if isinstance(content, list) else []
        found += [block["name"] for block in blocks if block.get("type") == "tool_use"]
    return found


def chat_request(name: str) -> dict[str, Any]:
    call = {"id": "c0", "type": "function", "function": {"name": name, "arguments": "{}"}}
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c0", "content": "done"},
    ]
    tools = [{"type": "function", "function": {"name": each, "parameters": SCHEMA}} for each in NAMES]
    return {"messages": history, "tools": tools}


def messages_request(name: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "c0", "name": name, "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c0", "content": "done"}
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    tools = [{"name": each, "input_schema": SCHEMA} for each in NAMES]
    return {"messages": history, "tools": tools, "max_tokens": 3000}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [NAMES[1], NAMES[4], NAMES[6]], ids=["dotted", "long", "accented"])
@pytest.mark.parametrize(
    ("path", "provider"),
    [
        ("/v1/chat/completions", "ant"),
        ("/v1/chat/completions", "res"),
        ("/v1/messages", "oai"),
        ("/v1/messages", "res"),
    ],
)
def test_a_name_that_a_server_would_refuse_is_sent_under_another_and_comes_back_as_its_own(
    stage: Stage, path: str, provider: str, name: str, stream: bool
) -> None:
    request = chat_request(name) if path.endswith("completions") else messages_request(name)
    request |= {"model": f"{provider}/m", "stream": stream}
    headers = {"authorization": f"Bearer {stage.key}"}

    def ask() -> str:
        answer = httpx2.post(f"{stage.url}{path}", json=request, headers=headers, trust_env=False, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.text

    stage.upstream.play(document(answer_of(provider, "plain")))
    ask()
    *sent, called = sent_names(stage.upstream.body)
    assert len(set(sent)) == len(NAMES)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", each) and len(each) <= LIMITS[provider] for each in sent)
    assert called == sent[NAMES.index(name)]
    assert {"plain", "files_read"} <= set(sent), "what fits is sent as it is"
    stage.upstream.play(document(answer_of(provider, called)))
    assert f'"name":"{name}"' in ask()
