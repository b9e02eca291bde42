"""Providers made from a model name or a URL, and their options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dragoman import Agent
from dragoman import events as e
from dragoman.errors import BadRequest, ConfigError, ProviderError
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest
from dragoman.providers.anthropic import AnthropicProvider
from dragoman.providers.model import Model
from dragoman.providers.ollama import OllamaProvider
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.resolve import resolve

from .servers import LIMIT, Peer, Received, Server, ok, serving

KEY = "sk-secret-0123456789"
CHAT = ok(
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    "content-type: text/event-stream",
)
MESSAGES = ok(
    b'{"type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Hi"}],'
    b'"stop_reason":"end_turn"}',
    "content-type: application/json",
)
OLLAMA = ok(b'{"message":{"role":"assistant","content":"Hi"},"done":true,"done_reason":"stop"}\n')


class Stub:
    """A server that gives every request the same answer."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.received: list[Received] = []

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.received[-1].body)


@asynccontextmanager
async def stub(answer: bytes) -> AsyncIterator[Stub]:
    found: list[Stub] = []

    async def script(peer: Peer) -> None:
        while True:
            found[0].received.append(await peer.request())
            await peer.send(answer)

    async with serving(script) as server:
        found.append(Stub(server))
        yield found[0]


def ask(model: Model) -> ModelRequest:
    hello = Message("u", "user", (TextPart("Hello"),))
    return ModelRequest(model=model.name, messages=[hello], options=model.options)


async def say(model: Model) -> str:
    collected = [event async for batch in model.provider.stream(ask(model)) for event in batch]
    return "".join(event.delta for event in collected if isinstance(event, e.TextDelta))


async def test_a_provider_needs_no_more_than_an_address_and_a_key() -> None:
    async with stub(CHAT) as upstream, OpenAIProvider(base_url=upstream.server.url, api_key=KEY) as provider:
        assert await say(provider.model("any")) == "Hi"

        (received,) = upstream.received
        assert received.line == "POST /chat/completions HTTP/1.1"
        assert received["authorization"] == f"Bearer {KEY}"


async def test_each_family_asks_in_its_own_language() -> None:
    async with stub(MESSAGES) as upstream, AnthropicProvider(base_url=upstream.server.url, api_key=KEY) as it:
        assert await say(it.model("claude-sonnet-4-5")) == "Hi"
        assert upstream.received[0].line == "POST /v1/messages HTTP/1.1"
        assert upstream.received[0]["x-api-key"] == KEY
    async with stub(OLLAMA) as upstream, OllamaProvider(base_url=upstream.server.url) as ollama:
        assert await say(ollama.model("qwen3")) == "Hi"
        assert upstream.received[0].line == "POST /api/chat HTTP/1.1"


async def test_headers_of_ones_own_go_along() -> None:
    headers = {"anthropic-beta": "context-1m", "X-Team": "blue"}
    async with stub(MESSAGES) as upstream:
        async with AnthropicProvider(base_url=upstream.server.url, headers=headers) as provider:
            await say(provider.model("claude-sonnet-4-5"))

        assert upstream.received[0]["anthropic-beta"] == "context-1m"
        assert upstream.received[0]["x-team"] == "blue"


async def test_closing_closes_the_socket_and_asking_again_opens_another() -> None:
    async with stub(CHAT) as upstream:
        provider = OpenAIProvider(base_url=upstream.server.url)
        await say(provider.model("any"))
        assert upstream.server.closed == 0

        await provider.aclose()
        await upstream.server.wait_closed(1)
        await say(provider.model("any"))

        assert upstream.server.connections == 2
        await provider.aclose()


def test_one_provider_serves_several_event_loops() -> None:
    provider = OpenAIProvider(base_url="http://127.0.0.1:9/v1")

    async def once() -> str:
        async with stub(CHAT) as upstream:
            provider.server = msgspec.structs.replace(provider.server, base_url=upstream.server.url)
            text = await say(provider.model("any"))
            await provider.aclose()
            return text

    assert [asyncio.run(once()), asyncio.run(once())] == ["Hi", "Hi"]


async def test_nothing_is_tried_again_unless_it_is_asked_for() -> None:
    busy = ok(b"{}", "retry-after: 0").replace(b"200 OK", b"503 Busy", 1)
    for retries, attempts in ((0, 1), (1, 2)):
        async with (
            stub(busy) as upstream,
            OpenAIProvider(base_url=upstream.server.url, retries=retries) as provider,
        ):
            with pytest.raises(ProviderError) as raised:
                await say(provider.model("any"))
            assert raised.value.transient
            assert len(upstream.received) == attempts


async def test_the_key_is_neither_shown_nor_told_in_errors() -> None:
    refused = ok(f'{{"error":{{"message":"bad key {KEY}"}}}}'.encode()).replace(b"200 OK", b"401 No", 1)
    async with (
        stub(refused) as upstream,
        OpenAIProvider(base_url=upstream.server.url, api_key=KEY) as provider,
    ):
        model = provider.model("any", user="u")
        with pytest.raises(ProviderError) as raised:
            await say(model)

    assert KEY not in f"{provider!r} {model!r} {vars(model)!r} {raised.value!r} {raised.value.details!r}"
    assert "bad key ***" in raised.value.message
    assert repr(model) == "Model('openai/any')"


def test_a_model_can_be_used_with_other_options() -> None:
    model = OpenAIProvider(base_url="http://localhost/v1").model("any", temperature=0.2, seed=1)

    other = model.using(temperature=None, top_p=0.5)

    assert other.options == {"seed": 1, "top_p": 0.5}
    assert model.options == {"temperature": 0.2, "seed": 1}
    assert other.id == "openai/any"


ENVIRON = {
    "OPENAI_API_KEY": KEY,
    "ANTHROPIC_API_KEY": "sk-ant-1",
    "ANTHROPIC_BASE_URL": "http://gateway:4000",
    "OLLAMA_HOST": "0.0.0.0:1234",
}


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("openai/gpt-5.1", "https://api.openai.com/v1"),
        ("anthropic/claude-sonnet-4-5", "http://gateway:4000"),
        ("ollama/qwen3:8b", "http://127.0.0.1:1234"),
    ],
)
def test_a_name_is_resolved_with_what_the_environment_says(name: str, url: str) -> None:
    model = resolve(name, ENVIRON)

    assert isinstance(model.provider, RemoteProvider)
    assert (model.id, model.provider.server.base_url) == (name, url)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("gpu", "http://gpu:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("[::1]", "http://[::1]:11434"),
        ("https://ollama.example/base/", "https://ollama.example/base"),
    ],
)
def test_ollama_is_found_however_its_host_is_written(host: str, url: str) -> None:
    provider = resolve("ollama/m", {"OLLAMA_HOST": host}).provider

    assert isinstance(provider, RemoteProvider)
    assert provider.server.base_url == url


def test_slashes_in_a_models_name_are_its_own() -> None:
    model = resolve("openai/meta/llama-4", {"OPENAI_BASE_URL": "http://localhost:8000/v1"})

    assert model.name == "meta/llama-4"


def test_claude_code_needs_no_variable() -> None:
    assert resolve("claude-code/sonnet", {}).provider.family == "claude-code"


@pytest.mark.parametrize(
    ("name", "variable"), [("openai/x", "OPENAI_API_KEY"), ("anthropic/x", "ANTHROPIC_API_KEY")]
)
def test_a_missing_key_is_called_by_its_variable(name: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=f"needs the environment variable {variable}, which is not set"):
        resolve(name, {})


@pytest.mark.parametrize("name", ["gpt-5", "openai/", "/x", "nowhere/x"])
def test_what_is_no_model_is_refused_with_the_providers_there_are(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(name, ENVIRON)

    assert repr(name) in raised.value.message
    assert (
        raised.value.hint
        == "the providers that need no configuration are anthropic, claude-code, ollama, openai"
    )


async def body_of(family: str, name: str, **options: Any) -> Any:
    """What the server gets for these options."""
    families: Mapping[str, tuple[bytes, Callable[..., RemoteProvider]]] = {
        "openai": (CHAT, OpenAIProvider),
        "anthropic": (MESSAGES, AnthropicProvider),
        "ollama": (OLLAMA, OllamaProvider),
    }
    answer, make = families[family]
    async with asyncio.timeout(LIMIT), stub(answer) as upstream:
        provider: RemoteProvider = make(base_url=upstream.server.url)
        async with provider:
            await say(provider.model(name, **options))
        return upstream.body


async def test_a_thinking_budget_comes_on_top_of_the_answers_room() -> None:
    body = await body_of(
        "anthropic", "claude-sonnet-4-5", thinking={"type": "enabled", "budget_tokens": 10_000}
    )

    assert body["thinking"] == {"type": "enabled", "budget_tokens": 10_000}
    assert body["max_tokens"] == 22_000


@pytest.mark.parametrize(("budget", "limit"), [(10_000, 8000), (10_000, 10_000), (100, None)])
async def test_a_thinking_budget_that_cannot_be_is_refused_before_it_is_sent(
    budget: int, limit: int | None
) -> None:
    with pytest.raises(BadRequest):
        await body_of(
            "anthropic",
            "claude-sonnet-4-5",
            thinking={"type": "enabled", "budget_tokens": budget},
            max_tokens=limit,
        )


async def test_reasoning_effort_goes_to_openai_as_it_is() -> None:
    assert (await body_of("openai", "gpt-5.1", reasoning_effort="high"))["reasoning_effort"] == "high"


async def test_context_and_thinking_go_to_ollama_in_their_places() -> None:
    body = await body_of("ollama", "qwen3", num_ctx=16_384, think=True, keep_alive="10m")

    assert (body["options"], body["think"], body["keep_alive"]) == ({"num_ctx": 16_384}, True, "10m")


@pytest.mark.parametrize("family", ["openai", "anthropic", "ollama"])
async def test_what_has_no_word_yet_passes_but_never_in_place_of_ours(family: str) -> None:
    extra = {"brand_new": {"a": 1}, "model": "another"}

    body = await body_of(family, "claude-sonnet-4-5", extra_body=extra)

    assert body["brand_new"] == {"a": 1}
    assert body["model"] == "claude-sonnet-4-5"
    assert "extra_body" not in body


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("opnai/gpt-5.1", "openai/gpt-5.1"),
        ("OpenAI/gpt-5.1", "openai/gpt-5.1"),
        ("openai:gpt-5.1", "openai/gpt-5.1"),
        ("openai gpt-5.1", "openai/gpt-5.1"),
        ("antropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("olama/qwen3:8b", "ollama/qwen3:8b"),
        ("claude_code/sonnet", "claude-code/sonnet"),
        ("claudecode/sonnet", "claude-code/sonnet"),
        ("gpt-5.1", "openai/gpt-5.1"),
        ("claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("sonnet", "claude-code/sonnet"),
        ("qwen3:8b", "ollama/qwen3:8b"),
    ],
)
def test_a_misspelt_provider_gets_a_suggestion_and_the_list(name: str, similar: str) -> None:
    for find in (lambda: resolve(name, ENVIRON), lambda: Agent(name).run_sync("hi")):
        with pytest.raises(ConfigError) as raised:
            find()
        assert raised.value.message == f"there is no model {name!r}; did you mean {similar!r}?"
        assert "anthropic, claude-code, ollama, openai" in str(raised.value.hint)


@pytest.mark.parametrize("name", ["zzz", "a" * 5_000, "/", "x" * 5_000 + "/m", "", "  "])
def test_a_name_like_no_other_gets_the_list_only(name: str) -> None:
    with pytest.raises(ConfigError, match=r"write it like 'openai/gpt-5\.1'"):
        resolve(name, ENVIRON)
