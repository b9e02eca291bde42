"""OpenAI's own client reads the same from regular streams as our decoder."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from dragoman import events as e
from tests.providers.servers import Peer, serving

from .openai_streams import chunk, cut, cuts, decode, recording, sse

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
BEHAVED = [
    "azure_filtered",
    "dashscope",
    "deepseek",
    "openai_calls",
    "openai_forced_call",
    "openai_refusal",
    "openai_text",
    "openrouter_truncated_call",
    "xai",
]
REASONS = {"tool_calls": "tool-calls", "content_filter": "content-filter"}


def ours(raw: bytes) -> dict[str, Any]:
    answer = decode(cut(raw, cuts(raw, 7)))
    assert answer.finish is not None
    text = "".join(event.delta for event in answer.events if isinstance(event, e.TextDelta))
    arguments: dict[str, str] = {}
    for event in answer.events:
        match event:
            case e.ToolInputStart(tool_call_id=id):
                arguments[id] = ""
            case e.ToolInputDelta(tool_call_id=id, input_text_delta=delta):
                arguments[id] += delta
            case _:
                pass
    return {
        "text": text,
        "calls": [
            (event.tool_call_id, event.tool_name, arguments[event.tool_call_id])
            for event in answer.events
            if isinstance(event, e.ToolInputAvailable | e.ToolInputError)
        ],
        "finish": answer.finish.finish_reason,
        "model": answer.finish.model,
        "input": answer.finish.usage and answer.finish.usage.input_tokens,
        "total": answer.finish.usage and answer.finish.usage.total_tokens,
    }


async def theirs(raw: bytes) -> dict[str, Any]:
    async def script(peer: Peer) -> None:
        await peer.request()
        for piece in [HEAD, *cut(raw, cuts(raw, 3))]:
            await peer.send(piece)

    state: Any = ChatCompletionStreamState()
    async with (
        serving(script) as server,
        AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="m", messages=[], stream=True)
        async for chunk in stream:
            state.handle_chunk(chunk)
    answer = state.current_completion_snapshot
    choice = answer.choices[0]
    calls = [
        (call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []
    ]
    reason = "tool_calls" if calls and choice.finish_reason == "stop" else choice.finish_reason
    return {
        "text": (choice.message.content or "") + (choice.message.refusal or ""),
        "calls": calls,
        "finish": REASONS.get(reason, reason),
        "model": answer.model,
        "input": answer.usage and answer.usage.prompt_tokens,
        "total": answer.usage and answer.usage.total_tokens,
    }


@pytest.mark.parametrize("name", BEHAVED)
async def test_openais_client_reads_the_same_answer(name: str) -> None:
    raw = recording(name)
    assert ours(raw) == await theirs(raw)


async def test_openais_client_reads_the_same_long_answer() -> None:
    words = [f" wörd{number}🦜" for number in range(400)]
    arguments = msgspec.json.encode({"words": words}).decode()
    pieces = [arguments[place : place + 9] for place in range(0, len(arguments), 9)]
    raw = sse(
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": word}) for word in words),
        chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}, "type": "function"}
                ]
            }
        ),
        *(chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in pieces),
        chunk(finish="tool_calls"),
        {
            "model": "m-1",
            "choices": [],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        },
    )
    assert ours(raw) == await theirs(raw)
