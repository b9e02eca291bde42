"""The OpenAI-compatible provider: requests, answers, retries, failures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.http.transport import Timeouts, Transport
from dragoman.messages import Message, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import AnswerLimits
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.openai import OpenAIProvider, quirks_of
from dragoman.providers.provider import Provider, close_provider
from dragoman.providers.retry import RetryPolicy
from dragoman.wire.openai.quirks import Quirks
from tests.wire.openai_streams import NAMES, chunk, cut, cuts, decode, recording, sse, summarise

from .servers import CHUNKED, LIMIT, Peer, Received, Script, answering, ok, serving
from .servers import chunk as piece

KEY = "sk-secret-0123456789abcdef"
HELLO = [chunk({"role": "assistant", "content": "Hel"}), chunk({"content": "lo"}), chunk(finish="stop")]
STORY = [("text", "Hello"), ("finish", "stop", "m-1")]
FAST = RetryPolicy(retries=3, base=0.0)
END = b"0\r\n\r\n"


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(timeouts=Timeouts(connect=LIMIT, first_byte=LIMIT, idle=LIMIT))
    yield transport
    await transport.close()


def ask(text: str = "Hi", **fields: Any) -> ModelRequest:
    return ModelRequest(model="m", messages=[Message("u", "user", (TextPart(text),))], **fields)


def provider(transport: Transport, url: str, **options: Any) -> OpenAIProvider:
    server = UpstreamServer(base_url=f"{url}/v1", api_key=KEY, headers={"X-Title": "us"})
    limits = options.pop("limits", AnswerLimits())
    up = OpenAIProvider.for_server("up", server, transport=transport, **{"policy": FAST, **options})
    up.limits = limits
    return up


async def answer(of: OpenAIProvider, request: ModelRequest | None = None) -> list[e.Event]:
    return [event async for batch in of.stream(request or ask()) for event in batch]


async def story(script: Script, transport: Transport, **options: Any) -> list[tuple[Any, ...]]:
    async with serving(script) as server:
        return summarise(await answer(provider(transport, server.url, **options)))


async def failure(script: Script, transport: Transport, **options: Any) -> ProviderError:
    """The failure of a request; its words never hold the key."""
    async with serving(script) as server:
        with pytest.raises(ProviderError) as failed:
            await answer(provider(transport, server.url, **options))
    assert KEY not in f"{failed.value!r} {failed.value} {failed.value.hint}"
    return failed.value


def refusal(status: int, body: object, *headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return ok(raw, *headers).replace(b"200 OK", b"%d No" % status, 1)


def streamed(raw: bytes) -> bytes:
    return CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-type: text/event-stream\r\n\r\n") + piece(raw) + END


async def test_a_question_becomes_one_request_and_its_answer_a_stream_of_batches(
    transport: Transport,
) -> None:
    seen: list[Received] = []
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(CHUNKED + piece(sse(HELLO[0], done=False)))
        await go.wait()
        await peer.send(piece(sse(*HELLO[1:])) + END)

    async with serving(script) as server:
        up: Provider = provider(transport, server.url)
        batches: list[Sequence[e.Event]] = []
        async for batch in up.stream(ask()):
            batches.append(batch)
            go.set()
        await close_provider(up)
    assert batches == [
        [e.TextStart("text-1"), e.TextDelta("text-1", "Hel")],
        [
            e.TextDelta("text-1", "lo"),
            e.TextEnd("text-1"),
            e.FinishStep("stop", None, "m-1", "up", key="default"),
        ],
    ]
    assert seen[0].line == "POST /v1/chat/completions HTTP/1.1"
    assert seen[0]["authorization"] == f"Bearer {KEY}"
    assert seen[0]["x-title"] == "us"
    assert msgspec.json.decode(seen[0].body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("name", NAMES)
async def test_recorded_streams_come_out_as_the_decoder_tells_them(transport: Transport, name: str) -> None:
    raw = recording(name)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"".join(piece(part) for part in cut(raw, cuts(raw, 1)) if part) + END)

    expected = decode([raw])
    heard: list[e.Event] = []
    failed: ProviderError | None = None
    async with serving(script) as server:
        try:
            async for batch in provider(transport, server.url, policy=RetryPolicy(retries=0)).stream(ask()):
                heard += batch
        except ProviderError as error:
            failed = error
    call_ids = [event[1] for event in summarise(expected.events) if event[0] == "call"]
    again = [event[1] for event in summarise(heard) if event[0] == "call"]
    assert [id for id in again if id in call_ids] == [id for id in call_ids if id in again]
    assert len(again) == len(call_ids)
    assert (failed and failed.message) == (expected.failure and expected.failure.message)


async def test_a_connection_serves_the_next_question(transport: Transport) -> None:
    raw = streamed(sse(*HELLO))
    async with serving(answering(raw, raw, raw)) as server:
        up = provider(transport, server.url)
        assert [summarise(await answer(up)) for _ in range(3)] == [STORY] * 3
        assert server.connections == 1


async def test_the_end_of_the_answer_does_not_wait_for_a_server_that_keeps_the_body_open(
    transport: Transport,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + piece(sse(*HELLO)))
        await peer.gone()

    assert await story(script, transport) == STORY


@pytest.mark.parametrize(
    "refused",
    [
        refusal(429, {"error": {"message": "slow down"}}),
        refusal(500, {}),
        refusal(502, b"<html><title>Bad gateway</title></html>"),
        refusal(503, b""),
        refusal(529, {}),
        refusal(400, {}, "x-should-retry: true"),
        b"",
        b"HTTP/1.1 200 OK\r\n",
        CHUNKED,
        ok(b'{"error":{"message":"Overloaded","code":503}}'),
        streamed(b'data: {"error":{"message":"Overloaded","type":"overloaded_error"}}\n\n'),
        streamed(b": wait\n\n" + sse(chunk({"role": "assistant"}), {"error": {"code": 429, "message": "x"}})),
    ],
)
async def test_what_fails_before_the_answer_begins_is_tried_again(
    transport: Transport, refused: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(refused if peer.number < 4 else streamed(sse(*HELLO)))
        peer.writer.close()

    assert await story(script, transport) == STORY


@pytest.mark.parametrize(
    ("refused", "category", "words"),
    [
        (refusal(400, {"error": {"message": "bad tools", "code": 400}}), "bad_request", "bad tools"),
        (
            refusal(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
            "auth",
            "Incorrect API key",
        ),
        (refusal(404, {"error": "model 'm' not found"}), "bad_request", "model 'm' not found"),
        (
            refusal(400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
            "context_limit",
            "too long",
        ),
        (refusal(429, {"error": {"message": "x", "code": "insufficient_quota"}}), "rate_limit", "x"),
        (refusal(429, {}, "x-should-retry: false"), "rate_limit", "429"),
        (refusal(302, b"", "location: /x"), "api_error", "redirects (302) to /x"),
        (refusal(308, b"", "location: https://u:p@b/v1?key=k"), "api_error", "(308) to https://b/v1"),
        (ok(b"<html><title>Sign in</title></html>", "content-type: text/html"), "api_error", "'Sign in'"),
        (ok(b"Hello", "content-type: text/html; charset=utf-8"), "api_error", "web page"),
        (ok(b""), "network", "is empty"),
        (ok(b"[]"), "network", "is empty"),
        (ok(b'{"error":{"message":"no","code":404}}', "content-type: application/json"), "bad_request", "no"),
        (streamed(sse(*HELLO[:2], done=False)), "network", "without a finish reason"),
        (CHUNKED + piece(sse(*HELLO[:2], done=False)), "network", "127.0.0.1"),
        (streamed(sse(*HELLO[:2], {"error": {"message": f"no {KEY}", "code": 429}})), "rate_limit", "no ***"),
        (streamed(b"data: {\n\n"), "api_error", "invalid JSON"),
    ],
)
async def test_what_trying_again_cannot_help_fails_at_once(
    transport: Transport, refused: bytes, category: str, words: str
) -> None:
    async def script(peer: Peer) -> None:
        assert peer.number == 1, "it was tried again"
        await peer.request()
        await peer.send(refused)

    error = await failure(script, transport)
    assert (error.category, words in error.message) == (category, True), error.message


async def test_an_attempt_that_always_fails_is_made_four_times(transport: Transport) -> None:
    async with serving(answering(refusal(503, {"error": "busy"}, "connection: close"))) as server:
        with pytest.raises(ProviderError, match="busy"):
            await answer(provider(transport, server.url))
        assert server.connections == 4


async def test_a_json_document_is_an_answer_too_whatever_its_type_says(transport: Transport) -> None:
    body = {"model": "m-1", "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    for kind in ("application/json", "text/event-stream", "text/plain"):
        raw = ok(b"\n " + msgspec.json.encode(body), f"content-type: {kind}")
        assert await story(answering(raw), transport) == STORY


async def test_a_stream_is_a_stream_whatever_its_type_says(transport: Transport) -> None:
    assert await story(answering(ok(sse(*HELLO), "content-type: application/json")), transport) == STORY


async def test_a_server_that_does_not_know_stream_options_is_asked_without_now_and_later(
    transport: Transport,
) -> None:
    received: list[bool] = []

    async def script(peer: Peer) -> None:
        while True:
            received.append(b"stream_options" in (await peer.request()).body)
            no = refusal(400, {"error": {"message": "Unknown field: stream_options"}})
            await peer.send(no if received[-1] else streamed(sse(*HELLO)))

    async with serving(script) as server:
        up = provider(transport, server.url)
        assert [summarise(await answer(up)) for _ in range(2)] == [STORY] * 2
    assert received == [True, False, False]


async def test_a_refusal_of_both_forms_is_reported(transport: Transport) -> None:
    no = refusal(400, {"error": {"message": "no stream_options, no tools"}})
    assert (await failure(answering(no, no), transport)).message == "no stream_options, no tools"


async def test_leaving_the_stream_closes_the_socket_at_once(transport: Transport) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + piece(sse(HELLO[0], done=False)))
        await peer.gone()
        left.set()

    async with serving(script) as server:
        async with aclosing(provider(transport, server.url).stream(ask())) as batches:
            await anext(batches)
        async with asyncio.timeout(LIMIT):
            await left.wait()


@pytest.mark.parametrize(
    "sent", [b"", CHUNKED, CHUNKED + piece(b": wait\n\n"), CHUNKED + piece(sse(HELLO[0], done=False))]
)
async def test_a_cancelled_question_closes_the_socket_at_once(transport: Transport, sent: bytes) -> None:
    received, left = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        received.set()
        await peer.gone()
        left.set()

    async with serving(script) as server:
        task = asyncio.create_task(answer(provider(transport, server.url)))
        await received.wait()
        task.cancel()
        async with asyncio.timeout(LIMIT):
            await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_answer_over_the_limit_is_cut_off(transport: Transport) -> None:
    raw = streamed(sse(*[HELLO[1]] * 1000))
    error = await failure(answering(raw), transport, limits=AnswerLimits(stream=5000))
    assert (error.category, error.message) == ("api_error", "the answer is longer than 5000 bytes")
    error = await failure(answering(ok(b"{" + b" " * 9000)), transport, limits=AnswerLimits(document=5000))
    assert error.message == "the answer is one JSON document of more than 5000 bytes"
    assert "limits.document" in str(error.hint)


async def test_ids_are_made_for_calls_without_one_and_for_those_that_the_conversation_has(
    transport: Transport,
) -> None:
    calls = [
        {"index": number, "id": id, "function": {"name": "f", "arguments": "{}"}}
        for number, id in enumerate("ab")
    ]
    calls[1]["id"] = ""
    raw = streamed(sse(chunk({"tool_calls": calls}), chunk(finish="tool_calls")))
    before = Message("a", "assistant", (ToolPart("tool-f", "a", "output-available", input={}, output=""),))
    async with serving(answering(raw)) as server:
        up = provider(transport, server.url)
        story = summarise(await answer(up, ModelRequest(model="m", messages=[before])))
    ids = [call[1] for call in story if call[0] == "call"]
    assert all(re.fullmatch(r"call_[a-zA-Z0-9_-]{12,}", id) for id in ids)
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("base", "url", "quirks"),
    [
        (
            "https://api.openai.com/v1",
            "https://api.openai.com/v1/chat/completions",
            Quirks(accepted_options=frozenset(), uses_max_completion_tokens=True),
        ),
        ("http://h/v1/", "http://h/v1/chat/completions", Quirks()),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions", Quirks()),
        ("http://h/d?api-version=1", "http://h/d/chat/completions?api-version=1", Quirks()),
        (
            "https://api.deepseek.com",
            "https://api.deepseek.com/chat/completions",
            Quirks(reasoning_field="reasoning_content", accepted_options=frozenset({"thinking"})),
        ),
        (
            "https://x.snowflakecomputing.com/v1",
            "https://x.snowflakecomputing.com/v1/chat/completions",
            Quirks(lenient_finish=True),
        ),
        ("https://notapi.mistral.ai.example", "https://notapi.mistral.ai.example/chat/completions", Quirks()),
    ],
)
def test_the_base_url_leads_to_the_completions_and_tells_the_vendor(
    base: str, url: str, quirks: Quirks
) -> None:
    server = UpstreamServer(base_url=base)
    assert (server.url("/chat/completions"), quirks_of(server)) == (url, quirks)


def test_keys_are_not_shown() -> None:
    server = UpstreamServer(
        base_url="http://h/v1", api_key=KEY, headers={"Api-Key": "hidden-1", "X-Title": "us"}
    )
    up = OpenAIProvider.for_server("up", server, transport=Transport())
    assert f"{server!r} {up!r}" == (
        "UpstreamServer('http://h/v1') OpenAIProvider('up', UpstreamServer('http://h/v1'))"
    )
    assert server.secrets == [KEY, "hidden-1"]
