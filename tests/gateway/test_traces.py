"""Traces of a hub: one tree a request, below the client's own trace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman.config import parse_config
from dragoman.server.app import Hub
from dragoman.tracing.interface import TelemetrySettings
from dragoman.tracing.otlp_setup import open_spans
from tests.providers.servers import Peer, Received, ok
from tests.providers.servers import serving as upstream
from tests.serving import ask, listening, write_script

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "model": "gpt-up",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": USAGE,
}
ASKED = {"model": "up/gpt", "messages": [{"role": "user", "content": "a secret question"}]}
STEPS: Sequence[Mapping[str, Any]] = [
    {
        "tools": [{"name": "hub_call", "input": {"calls": [{"tool": "time.now", "input": {}}]}}],
        "usage": {"inputTokens": 5, "outputTokens": 2},
    },
    {"text": "done", "usage": {"inputTokens": 7, "outputTokens": 1}},
]


class Watched:
    """A hub whose spans stay here."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.requests: list[Received] = []
        self.http = httpx2.AsyncClient()

    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def tokens(self) -> list[Any]:
        """The tokens of the prompts, on whatever span they stand."""
        existing = [(span.attributes or {}).get("gen_ai.usage.input_tokens") for span in self.spans()]
        return [count for count in existing if count is not None]


@asynccontextmanager
async def watching(data: Path) -> AsyncIterator[Watched]:
    watched = Watched()

    async def script(peer: Peer) -> None:
        while True:
            watched.requests.append(await peer.request())
            await peer.send(ok(msgspec.json.encode(COMPLETION), "content-type: application/json"))

    script_file = write_script(data, STEPS, play="turns")
    async with upstream(script) as server:
        providers = {
            "up": {"type": "openai", "base_url": f"{server.url}/v1"},
            "sim": {"type": "scripted", "script": str(script_file)},
        }
        config = parse_config({"providers": providers, "model": "sim/any"})
        tracing = open_spans(TelemetrySettings(), SimpleSpanProcessor(watched.exporter))
        async with (
            Hub.open(config, data / "hub", require_keys=False, tracing=tracing) as hub,
            listening(hub) as url,
            httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
        ):
            watched.http = http
            yield watched


async def test_a_relayed_request_stands_below_the_client_s_trace_and_hands_it_on(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        response = await watched.http.post("/v1/chat/completions", json=ASKED, headers=PARENT)
        assert response.status_code == 200
    named = {span.name: span for span in watched.spans()}
    door, model = named["POST /v1/chat/completions"], named["chat gpt"]
    assert {span.context.trace_id for span in (door, model) if span.context} == {int(TRACE, 16)}
    assert model.parent is not None
    assert door.context is not None
    assert model.context is not None
    assert model.parent.span_id == door.context.span_id
    assert watched.requests[0]["traceparent"] == f"00-{TRACE}-{model.context.span_id:016x}-01"
    assert watched.tokens() == [10]
    assert "secret question" not in str([span.to_json() for span in watched.spans()])


async def test_the_tokens_of_a_run_stand_on_its_model_calls_and_nowhere_else(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        await watched.http.post("/api/chat", json=ask("what time is it?"))
    names = [span.name for span in watched.spans()]
    assert names.count("chat any") == 2
    assert [name for name in names if name.startswith("invoke_agent")] == ["invoke_agent default"]
    assert any(name.startswith("execute_tool") for name in names)
    assert sorted(watched.tokens()) == [5, 7]
