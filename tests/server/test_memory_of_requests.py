"""Refused requests and failed answers leave nothing in memory, without the garbage collector."""

# ruff: noqa: UP031
from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import parse_config
from dragoman.providers.adapter import AnswerLimits
from dragoman.server.app import Hub
from tests.effort import rounds
from tests.gateway.metered_hub import Site, completion, placed, tokens
from tests.serving import write_script
from tests.waiting import until

from .asgi_client import AsgiClient

BIG = "a" * 1_000_000
SAID = '[{"role":"user","content":"a"}]'
ASKED = '[{"id":"m","role":"user","parts":[{"type":"text","text":"%s"}]}]'
REQUESTS = rounds(quick=5, thorough=50)
ALLOWED = 2_500_000  # bytes: the last body, and a cache here and there; each request has a million
PATIENCE = 10.0  # seconds, where too much is left
MCP_ALLOWED = 8_000_000  # the SDK makes cycles, which are collected after as many bytes
BODIES = {
    "chat: invalid message": ("/api/chat", '{"id":"s","messages":[{"x":"%s"}]}', 400),
    "chat: invalid JSON": ("/api/chat", '{"id":"s","messages":[{"x":"%s"}', 400),
    "chat: part too long": ("/api/chat", '{"id":"s","messages":' + ASKED + "}", 413),
    "openai: invalid JSON": ("/v1/chat/completions", '{"model":"sim/x","x":"%s"', 400),
    "openai: no model": ("/v1/chat/completions", '{"x":"%s"}', 400),
    "openai: unknown model": ("/v1/chat/completions", '{"model":"zz","x":"%s"}', 404),
    "openai: invalid messages": ("/v1/chat/completions", '{"model":"sim/x","messages":5,"x":"%s"}', 400),
    "openai: no connection": (
        "/v1/chat/completions",
        '{"model":"gone/x","messages":' + SAID + ',"x":"%s"}',
        502,
    ),
    "openai: no connection for a stream": (
        "/v1/chat/completions",
        '{"model":"gone/x","stream":true,"messages":' + SAID + ',"x":"%s"}',
        502,
    ),
    "anthropic: invalid messages": ("/v1/messages", '{"model":"sim/x","messages":5,"x":"%s"}', 400),
    "anthropic: no connection": (
        "/v1/messages",
        '{"model":"gone/x","max_tokens":5,"messages":' + SAID + ',"metadata":{"user_id":"%s"}}',
        502,
    ),
    "count: invalid messages": ("/v1/messages/count_tokens", '{"model":"sim/x","messages":5,"x":"%s"}', 400),
    "embeddings: none": ("/v1/embeddings", '{"model":"sim/x","input":"%s"}', 400),
    "embeddings: no connection": ("/v1/embeddings", '{"model":"gone/x","input":"%s"}', 502),
    "operation: unknown": ("/api/operations/no.no/call", '{"x":"%s"}', 404),
    "operation: invalid JSON": ("/api/operations/time.now/call", '{"x":"%s"', 400),
    "operation: invalid input": ("/api/operations/time.now/call", '{"x":"%s"}', 200),
    "operation: too deep": ("/api/operations/time.now/call", '{"y":"%s","x":' + "[" * 300, 400),
    "mcp: invalid JSON": ("/mcp", '{"x":"%s"', 400),
    "mcp: invalid arguments": (
        "/mcp",
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_call","arguments":{"x":"%s"}}}',
        200,
    ),
    "mcp: unknown method": ("/mcp", '{"jsonrpc":"2.0","id":1,"method":"zzz","params":{"x":"%s"}}', 200),
    "sessions: too large": ("/api/sessions", '{"x":"%s"}', 413),
}
ANSWERS = {"a document": completion("x" * 3_000_000), "a stream": tokens(*["x" * 300_000] * 10)}


@contextmanager
def traced() -> Iterator[None]:
    """Trace memory, without the garbage collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def in_use() -> int:
    return tracemalloc.get_traced_memory()[0]


async def until_in_use(most: int) -> None:
    """Wait a while for threads that free large values and write what is queued."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await until(lambda: in_use() <= most)


@asynccontextmanager
async def hub_client(folder: Path, **sites: Site) -> AsyncIterator[AsgiClient]:
    script = write_script(folder, [{"text": "ok"}], play="turns")
    async with placed(*sites.values()):
        providers: dict[str, Any] = {
            "sim": {"type": "scripted", "script": str(script)},
            "gone": {"type": "openai", "base_url": "http://127.0.0.1:9/v1", "retries": 0},
            **{name: site.provider for name, site in sites.items()},
        }
        config = parse_config({"providers": providers, "model": "sim/x", "limits": {"part": 500_000}})
        async with Hub.open(config, folder / "hub", require_keys=False) as hub:
            yield AsgiClient(hub.app)


async def test_refused_requests_leave_no_body_behind(tmp_path: Path) -> None:
    left: dict[str, int] = {}
    async with hub_client(tmp_path) as client:
        for name, (path, template, expected) in BODIES.items():  # loads what is loaded once
            assert (await client.post(path, (template % BIG).encode()))[0] == expected, name
        with traced():
            for name, (path, template, _) in BODIES.items():
                body = (template % BIG).encode()
                for _ in ("first", "again: a job in the background may have loaded something at that moment"):
                    before = in_use()
                    for _ in range(REQUESTS):
                        await client.post(path, body)
                    most = before + ALLOWED + (MCP_ALLOWED if name.startswith("mcp") else 0)
                    await until_in_use(most)
                    left[name] = max(0, in_use() - most)
                    if not left[name]:
                        break
    assert {name: size for name, size in left.items() if size} == {}


async def test_the_garbage_of_the_mcp_sdk_is_collected_after_some_bytes(tmp_path: Path) -> None:
    path, template, _ = BODIES["mcp: unknown method"]
    body = (template % BIG).encode()
    async with hub_client(tmp_path) as client:
        await client.post(path, body)
        with traced():
            for _ in range(20):
                await client.post(path, body)
            assert in_use() < MCP_ALLOWED + ALLOWED


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/chat/completions", "a document"),
        ("/v1/chat/completions", "a stream"),
        ("/v1/messages", "a document"),
        ("/v1/messages", "a stream"),
        ("/api/chat", "a document"),
        ("/api/chat", "a stream"),
    ],
)
async def test_oversized_answers_of_a_provider_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, answer: str
) -> None:
    limits = AnswerLimits(stream=2_000_000, document=2_000_000)
    monkeypatch.setattr("dragoman.server.app.providers.answer_limits", lambda _: limits)
    stream = "true" if answer == "a stream" else "false"
    async with hub_client(tmp_path, up=Site(ANSWERS[answer])) as client:

        async def ask(number: int) -> bytes:
            body = '{"model":"up/x","max_tokens":5,"stream":%s,"messages":%s}' % (stream, SAID)
            if path == "/api/chat":
                body = '{"id":"s%d","model":"up/x","messages":%s}' % (number, ASKED % "hi")
            return (await client.post(path, body.encode()))[1]

        assert b"error" in await ask(0)
        with traced():
            for number in range(1, 1 + rounds(quick=3, thorough=15)):
                await ask(number)
            left = in_use()
            gc.collect()
            assert left - in_use() < ALLOWED  # an ended run is there for a while, for clients that resume it
