"""Answers behind white space, and with other statuses of success than 200."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from tests.gateway.metered_hub import Site, desk
from tests.gateway.test_tool_names import USAGE
from tests.gateway.upstream import JSON, Answer, Stage
from tests.providers.servers import Peer, Received, ok

MESSAGE = {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
COMPLETION: Mapping[str, Any] = {"id": "x", "object": "chat.completion", "created": 1, "choices": [MESSAGE]}
BLOCKS: Mapping[str, Any] = {
    "id": "x",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": USAGE,
}
DOCUMENTS = {"oai": COMPLETION, "ant": BLOCKS}
BLANK = b" \n" * 200_000  # more than one read of a socket


def ask(stage: Stage, path: str, provider: str, *, stream: bool) -> httpx2.Response:
    body = {"model": f"{provider}/m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000}
    headers = {"authorization": f"Bearer {stage.key}"}
    url = f"{stage.url}{path}"
    return httpx2.post(url, json={**body, "stream": stream}, headers=headers, trust_env=False, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["oai", "ant"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_white_space_before_a_document_changes_nothing(
    stage: Stage, path: str, provider: str, stream: bool
) -> None:
    raw = BLANK + msgspec.json.encode(DOCUMENTS[provider])
    stage.upstream.play(Answer(body=raw, headers=JSON, framing="length"))
    answer = ask(stage, path, provider, stream=stream)
    assert (answer.status_code, "Hello." in answer.text) == (200, True)


@pytest.mark.parametrize("status", [200, 201, 202, 203, 206])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_any_status_of_success_is_one(stage: Stage, path: str, status: int) -> None:
    raw = msgspec.json.encode(COMPLETION)
    stage.upstream.play(Answer(body=raw, status=status, headers=JSON, framing="length"))
    answer = ask(stage, path, "oai", stream=False)
    assert (answer.status_code, "Hello." in answer.text) == (200, True)


def test_white_space_alone_is_no_answer(stage: Stage) -> None:
    stage.upstream.play(Answer(body=BLANK, headers=JSON, framing="length"))
    for stream in (False, True):
        answer = ask(stage, "/v1/messages", "oai", stream=stream)
        assert (answer.status_code, "empty" in answer.text) == (502, True)


def in_two_reads(document: Mapping[str, Any], start: bytes, *, at: int, **config: str) -> Site:
    """A server whose document begins with `start`; what follows the first `at` bytes is another read."""
    body = start + msgspec.json.encode(document)
    whole = ok(body, "content-type: application/json")

    async def say(peer: Peer, _: Received) -> None:
        place = len(whole) - len(body) + at
        await peer.send(whole[:place])
        for _turn in range(10):  # the hub runs on this loop: it reads each piece by itself
            await asyncio.sleep(0)
        await peer.send(whole[place:])

    return Site(say, **config)


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_the_byte_order_mark_of_a_document_may_come_in_parts(tmp_path: Path, at: int) -> None:
    mark = "\ufeff".encode()
    sites: dict[str, Any] = {
        "oai": in_two_reads(COMPLETION, mark, at=at, type="openai"),
        "ant": in_two_reads(BLOCKS, mark, at=at, type="anthropic"),
    }
    async with desk(tmp_path, **sites) as hub:
        for provider in sites:
            for ask_for in (hub.chat, hub.message):
                for stream in (False, True):
                    answer = await ask_for(f"{provider}/m", stream=stream)
                    assert (answer.status_code, "Hello." in answer.text) == (200, True), answer.text
