"""No answer of a provider holds the event loop: large ones are read, translated and sent in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.config import parse_config
from dragoman.server.app import Hub
from tests.providers.servers import Peer, serving
from tests.server.asgi_client import AsgiClient
from tests.wire import openai_streams

MOST = 0.05  # seconds between two turns of the loop
TRIES = 4  # the best is the answer's own: other work of the process counts too
SIZE = 8_000_000  # characters
PIECE = 200_000  # bytes in one write of the provider
TEXTS: dict[str, Callable[[int], str]] = {
    "plain": lambda size: "word " * (size // 5),
    "escapes": lambda size: '\n"' * (size // 4),
    "latin": lambda size: "\u00e9" * (size // 2),
}


def openai_document(text: str, **message: Any) -> Any:
    """A chat.completion."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], "usage": usage}


def anthropic_document(text: str) -> Any:
    """A message."""
    usage = {"input_tokens": 1, "output_tokens": 2}
    head = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    return {**head, "content": [{"type": "text", "text": text}], "usage": usage}


def openai_stream(text: str) -> bytes:
    """The text in frames of 20,000 characters."""
    pieces = [text[at : at + 20_000] for at in range(0, len(text), 20_000)]
    chunks = [openai_streams.chunk({"content": piece}) for piece in pieces]
    return openai_streams.sse(*chunks, openai_streams.chunk(finish="stop"))


def openai_frame(text: str) -> bytes:
    """The text in one frame."""
    return openai_streams.sse(openai_streams.chunk({"content": text}), openai_streams.chunk(finish="stop"))


def anthropic_frame(text: str) -> bytes:
    """The text in one event."""
    usage = {"input_tokens": 1, "output_tokens": 2}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    encoded = [(each["type"], msgspec.json.encode(each)) for each in events]
    return b"".join(b"event: %b\ndata: %b\n\n" % (str(type).encode(), data) for type, data in encoded)


FRAMES = {"openai": openai_frame, "anthropic": anthropic_frame}
ARGUMENTS = {"escapes": '\\n\\"', "surrogates": "\\ud83dx", "latin": "\u00e9"}


def openai_call(pieces: list[str]) -> bytes:
    """A call of a tool in fragments."""
    head = {"index": 0, "id": "c1", "type": "function", "function": {"name": "time.now", "arguments": ""}}
    deltas: list[Any] = [head, *({"index": 0, "function": {"arguments": piece}} for piece in pieces)]
    chunks = [openai_streams.chunk({"tool_calls": [delta]}) for delta in deltas]
    return openai_streams.sse(*chunks, openai_streams.chunk(finish="tool_calls"))


class LargeAnswers:
    """Answers each request with the same body, as a document or as a stream; results of tools with a text."""

    def __init__(self) -> None:
        self.body = b""

    async def script(self, peer: Peer) -> None:
        """See `tests.providers.servers.serving`."""
        while True:
            received = await peer.request()
            body = openai_stream("done") if b'"role":"tool"' in received.body else self.body
            kind = "application/json" if body[:1] == b"{" else "text/event-stream"
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
            await peer.send(head.encode())
            for start in range(0, len(body), PIECE):
                await peer.send(body[start : start + PIECE])
                await asyncio.sleep(0)


@asynccontextmanager
async def hub_client(folder: Path, **limits: Any) -> AsyncIterator[tuple[AsgiClient, LargeAnswers]]:
    upstream = LargeAnswers()
    async with serving(upstream.script) as server:
        places: Mapping[str, Any] = {
            name: {"type": name, "base_url": server.url, "retries": 0} for name in DOCUMENTS
        }
        config = parse_config({"providers": places, "model": "openai/m", "limits": limits})
        environ = {"OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"}
        async with Hub.open(config, folder, require_keys=False, environ=environ) as hub:
            yield AsgiClient(hub.app), upstream


def request(model: str, *, stream: bool = False) -> bytes:
    """A request at either gateway endpoint."""
    return b'{"model":"%b","max_tokens":5,"stream":%b,"messages":[{"role":"user","content":"a"}]}' % (
        model.encode(),
        b"true" if stream else b"false",
    )


async def measure(client: AsgiClient, path: str, body: bytes) -> tuple[int, bytes, float]:
    """The response, and how long the loop was held in the best of some tries."""
    status, answer = await client.post(path, body)
    lag = client.lag
    for _ in range(TRIES - 1):
        if lag > MOST:
            status, answer = await client.post(path, body)
            lag = min(lag, client.lag)
    return status, answer, lag


CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
CASES = [
    ("openai", CHAT, False),
    ("openai", CHAT, True),
    ("openai", MESSAGES, False),
    ("anthropic", CHAT, False),
    ("anthropic", MESSAGES, True),
]
RUN = b'{"id":"s%d","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}]}'


DOCUMENTS = {"openai": openai_document, "anthropic": anthropic_document}


@pytest.mark.parametrize("kind", TEXTS)
async def test_no_document_of_a_provider_holds_the_event_loop(tmp_path: Path, kind: str) -> None:
    lags: dict[str, float] = {}
    text = TEXTS[kind](SIZE)
    async with hub_client(tmp_path) as (client, upstream):
        for family, path, stream in CASES:
            upstream.body = msgspec.json.encode(DOCUMENTS[family](text))
            status, answer, lag = await measure(client, path, request(f"{family}/m", stream=stream))
            lags[f"{family} at {path}, {stream}"] = lag
            assert (status, len(answer) > SIZE // 2) == (200, True), answer[:200]
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_no_stream_that_becomes_a_document_holds_the_event_loop(tmp_path: Path) -> None:
    lags: dict[str, float] = {}
    async with hub_client(tmp_path) as (client, upstream):
        for kind, make in TEXTS.items():
            upstream.body = openai_stream(make(SIZE))
            for path in (CHAT, MESSAGES):
                status, answer, lags[f"{kind} at {path}"] = await measure(client, path, request("openai/m"))
                assert (status, len(answer) > SIZE // 2) == (200, True), answer[:200]
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


@pytest.mark.parametrize("kind", TEXTS)
async def test_no_large_frame_of_a_stream_holds_the_event_loop(tmp_path: Path, kind: str) -> None:
    lags: dict[str, float] = {}
    text = TEXTS[kind](SIZE)
    async with hub_client(tmp_path) as (client, upstream):
        for family, path, stream in CASES:
            upstream.body = FRAMES[family](text)
            status, answer, lag = await measure(client, path, request(f"{family}/m", stream=stream))
            lags[f"{family} at {path}, {stream}"] = lag
            assert (status, len(answer) > SIZE // 2) == (200, True), answer[:200]
        upstream.body = FRAMES["openai"](text)
        for number in range(TRIES):
            status, answer = await client.post("/api/chat", RUN % number)
            assert (status, len(answer) > SIZE // 2) == (200, True), answer[:200]
            lags["run"] = min(lags.get("run", 1.0), client.lag)
            if lags["run"] <= MOST:
                break
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_no_run_over_a_large_document_and_no_replay_of_it_holds_the_event_loop(tmp_path: Path) -> None:
    lags: dict[str, float] = {}
    async with hub_client(tmp_path) as (client, upstream):
        upstream.body = msgspec.json.encode(openai_document(TEXTS["escapes"](SIZE)))
        for number in range(TRIES):
            for name, (method, path, body) in {
                "run": ("POST", "/api/chat", RUN % number),
                "messages": ("GET", f"/api/sessions/s{number}/messages", b""),
                "replay": ("GET", f"/api/sessions/s{number}/chat/stream", b""),
            }.items():
                status, answer = await client.request(method, path, body)
                assert (status, len(answer) > SIZE) == (200, True), (name, answer[:200])
                lags[name] = min(lags.get(name, 1.0), client.lag)
            if max(lags.values()) <= MOST:
                break
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


@pytest.mark.parametrize("kind", ARGUMENTS)
async def test_no_arguments_of_a_call_hold_the_event_loop(tmp_path: Path, kind: str) -> None:
    lags: dict[str, float] = {}
    unit = ARGUMENTS[kind]
    async with hub_client(tmp_path) as (client, upstream):
        upstream.body = openai_call(['{"zone":"', *[unit * (50_000 // len(unit))] * 19, '"}'])
        for stream in (True, False):
            body = request("openai/m", stream=stream)
            status, answer, lags[f"stream: {stream}"] = await measure(client, MESSAGES, body)
            assert (status, len(answer) > 500_000) == (200, True), answer[:200]
        for number in range(TRIES):
            status, answer = await client.post("/api/chat", RUN % number)
            assert (status, answer.count(b"done"), len(answer) > 1_000_000) == (200, 1, True)
            lags["run"] = min(lags.get("run", 1.0), client.lag)
            if lags["run"] <= MOST:
                break
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}
