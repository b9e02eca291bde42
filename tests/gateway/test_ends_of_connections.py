"""A stream that has its terminal element is a complete answer, whatever then becomes of its connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.events import Usage
from tests.gateway.metered_hub import Desk, Site, desk
from tests.providers.servers import Peer, Received, chunk
from tests.wire.anthropic_streams import STREAMS as ANTHROPIC
from tests.wire.ollama_streams import STREAMS as OLLAMA
from tests.wire.openai_streams import chunk as chat_chunk
from tests.wire.openai_streams import sse
from tests.wire.responses_streams import STREAMS as RESPONSES

COUNTS = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CHAT = sse(
    chat_chunk({"role": "assistant", "content": "Hi"}),
    chat_chunk(finish="stop"),
    {**chat_chunk(), "choices": [], "usage": COUNTS},
)
BODIES: Mapping[str, bytes] = {
    "openai": CHAT,
    "anthropic": ANTHROPIC["text"],
    "responses": RESPONSES["text"],
    "ollama": OLLAMA["text"],
}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED_HEAD = HEAD + b"transfer-encoding: chunked\r\n\r\n"
Ending = Callable[[Peer, bytes], Awaitable[None]]


async def without_terminator(peer: Peer, body: bytes) -> None:
    await peer.send(CHUNKED_HEAD + chunk(body))


async def reset(peer: Peer, body: bytes) -> None:
    await peer.send(CHUNKED_HEAD + chunk(body))
    link = peer.writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


async def short(peer: Peer, body: bytes) -> None:
    await peer.send(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body) + 10, body))


async def garbage(peer: Peer, body: bytes) -> None:
    await peer.send(CHUNKED_HEAD + chunk(body) + b"no chunk\r\n")


async def left_open(peer: Peer, body: bytes) -> None:
    await peer.send(CHUNKED_HEAD + chunk(body))
    await peer.gone()


async def pieces(peer: Peer, body: bytes) -> None:
    await peer.send(CHUNKED_HEAD)
    for start in range(0, len(body), 3):
        await peer.send(chunk(body[start : start + 3]))
        await asyncio.sleep(0)  # the hub runs on this loop: it reads each piece by itself


ENDINGS: Mapping[str, Ending] = {
    "no terminator": without_terminator,
    "reset": reset,
    "too short": short,
    "garbage": garbage,
    "left open": left_open,
    "cut in small pieces": pieces,
}


def sites_of(bodies: Mapping[str, bytes], ending: Ending) -> dict[str, Any]:
    def make_site(family: str, body: bytes) -> Site:
        async def say(peer: Peer, _: Received) -> None:
            await ending(peer, body)
            peer.writer.close()

        return Site(say, type=family)

    return {family: make_site(family, body) for family, body in bodies.items()}


async def respond(at: Desk, model: str, **fields: object) -> httpx2.Response:
    body = {"model": model, "input": "hi", "store": False, **fields}
    return await at.http.post("/v1/responses", json=body)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_nothing_after_the_terminal_element_matters(tmp_path: Path, ending: str) -> None:
    sites = sites_of(BODIES, ENDINGS[ending])
    async with desk(tmp_path, **sites) as at:
        wrong = []
        for family in BODIES:
            for ask in (at.chat, at.message, lambda model, **fields: respond(at, model, **fields)):
                for stream in (False, True):
                    answer = await ask(f"{family}/m", stream=stream)
                    if answer.status_code != 200 or '"error":{' in answer.text:
                        wrong.append((family, answer.request.url.path, stream, answer.text[:200]))
        assert wrong == []
        rows = await at.rows(6 * len(BODIES))
        assert {row.status for row in rows} == {"finished"}
        counts: dict[str | None, set[Usage]] = {}
        for row in rows:
            counts.setdefault(row.provider, set()).add(row.tokens)
        assert {name: len(found) for name, found in counts.items()} == dict.fromkeys(BODIES, 1)
        assert counts["openai"] == {Usage(10, 5, 15)}


async def test_a_stream_without_its_terminal_element_is_cut_and_paid_once(tmp_path: Path) -> None:
    cut = {family: body[: len(body) * 2 // 3] for family, body in BODIES.items()}
    sites = sites_of(cut, without_terminator)
    async with desk(tmp_path, **sites) as at:
        for family in BODIES:
            for ask in (at.chat, at.message):
                assert (await ask(f"{family}/m")).status_code == 502
        rows = await at.rows(2 * len(BODIES))
        assert {row.status for row in rows} == {"failed"}
