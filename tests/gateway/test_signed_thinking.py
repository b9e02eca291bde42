"""Signed thinking is stored and replayed unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.config import parse_config
from dragoman.server.app import Hub
from tests.providers.servers import Peer, Received, ok
from tests.providers.servers import serving as upstream
from tests.serving import ask, frames_in, listening, text_of

SIGNATURE = "ErUB+/signed=by:them=="
REDACTED = "EmwKAhgBEgy/opaque=="
MODEL: Mapping[str, Any] = {
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [],
    "stop_reason": None,
}


def event(type: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (type.encode(), msgspec.json.encode({"type": type, **fields}))


def block(index: int, begins: Mapping[str, Any], *deltas: Mapping[str, Any]) -> bytes:
    replies = [event("content_block_start", index=index, content_block=begins)]
    replies += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join([*replies, event("content_block_stop", index=index)])


def message(*blocks: bytes, stop: str) -> bytes:
    usage = {"input_tokens": 20, "output_tokens": 1}
    start = event("message_start", message={**MODEL, "id": "msg_1", "usage": usage})
    end = event(
        "message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 9}
    )
    return b"".join([start, *blocks, end, event("message_stop")])


THINKING = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "two and "},
    {"type": "thinking_delta", "thinking": "two"},
    {"type": "signature_delta", "signature": SIGNATURE},
)
HIDDEN = block(1, {"type": "redacted_thinking", "data": REDACTED})
CALL = block(
    2,
    {"type": "tool_use", "id": "toolu_1", "name": "hub_call", "input": {}},
    {
        "type": "input_json_delta",
        "partial_json": '{"calls":[{"tool":"math.calculate","input":{"expression":"2+2"}}]}',
    },
)
TEXT = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "4"})
TURNS = [message(THINKING, HIDDEN, CALL, stop="tool_use"), message(TEXT, stop="end_turn")]
REPLAYED = [
    {"type": "thinking", "thinking": "two and two", "signature": SIGNATURE},
    {"type": "redacted_thinking", "data": REDACTED},
]


@asynccontextmanager
async def talking(data: Path, heard: list[Received]) -> Any:
    """A hub before a server that plays the two turns again and again."""

    async def script(peer: Peer) -> None:
        while True:
            heard.append(await peer.request())
            answer = TURNS[(len(heard) - 1) % 2]
            await peer.send(ok(answer, "content-type: text/event-stream"))

    async with upstream(script) as server:
        place = {"type": "anthropic", "base_url": server.url, "options": {"max_tokens": 3000}}
        config = parse_config({"providers": {"ant": place}, "model": "ant/claude-x"})
        async with (
            Hub.open(config, data, require_keys=False) as hub,
            listening(hub) as url,
            httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
        ):
            yield http


def thoughts(request: Received) -> Sequence[Sequence[Any]]:
    """The thinking of each assistant message that was sent."""
    reply = msgspec.json.decode(request.body)["messages"]
    turns = [turn["content"] for turn in reply if turn["role"] == "assistant"]
    return [[part for part in turn if "thinking" in part["type"]] for turn in turns if isinstance(turn, list)]


@pytest.mark.promise("signed-thinking-is-replayed-unchanged")
async def test_signed_and_redacted_thinking_goes_back_unchanged_also_after_a_restart(tmp_path: Path) -> None:
    heard: list[Received] = []
    async with talking(tmp_path, heard) as http:
        first = await http.post("/api/chat", json=ask("what is 2+2?"))
        assert text_of(frames_in(first.text)) == "4"
    assert thoughts(heard[1]) == [REPLAYED]  # the step after the call
    async with talking(tmp_path, heard) as http:
        await http.post("/api/chat", json=ask("sure?"))
    assert thoughts(heard[2])[0] == REPLAYED  # the next turn, out of the store
    assert msgspec.json.decode(heard[2].body)["max_tokens"] == 3000


async def test_every_model_call_of_a_run_has_one_usage_row(tmp_path: Path) -> None:
    heard: list[Received] = []
    async with talking(tmp_path, heard) as http:
        await http.post("/api/chat", json=ask("what is 2+2?"))
        rows = (await http.get("/api/usage")).json()
    messages = [
        (row["door"], row["step"], row["usage"]["inputTokens"], row["usage"]["outputTokens"])
        for row in rows["rows"]
    ]
    assert messages == [("chat", 1, 20, 9), ("chat", 2, 20, 9)]
