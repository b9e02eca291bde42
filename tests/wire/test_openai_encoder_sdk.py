"""OpenAI's own client reads the content of the events from our bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from dragoman import events as e
from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    DragomanError,
    Forbidden,
    LimitReached,
    NotFound,
    ProviderError,
    Unauthorized,
)
from dragoman.wire.openai.encoder import OpenAIStreamEncoder, encode_document, error_body, error_status
from tests.providers.servers import Peer, Script, ok, serving

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
SIGNED = {"anthropic": {"signature": "sig"}}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": {"type": "object"}}}
    for name in ("weather", "time")
]
ANSWERS: dict[str, list[e.Event]] = {
    "text": [
        e.StartStep(),
        e.TextStart("t"),
        *(e.TextDelta("t", word) for word in ("Hé", "llo ", "🦜", '"\n')),
        e.TextEnd("t"),
        e.FinishStep("stop", e.Usage(7, 5, 12, 2, 3, 1)),
    ],
    "thoughts and calls": [
        e.ReasoningStart("r1"),
        e.ReasoningDelta("r1", "Let me "),
        e.ReasoningDelta("r1", "see"),
        e.ReasoningEnd("r1", SIGNED),
        e.ReasoningStart("r2", {"anthropic": {"redactedData": "blob"}}),
        e.ReasoningEnd("r2"),
        e.TextStart("t"),
        e.TextDelta("t", "I look."),
        e.TextEnd("t"),
        e.ToolInputStart("call_a", "weather"),
        e.ToolInputDelta("call_a", '{"city":'),
        e.ToolInputStart("call_b", "time"),
        e.ToolInputDelta("call_b", "{}"),
        e.ToolInputDelta("call_a", '"Rom"}'),
        e.ToolInputAvailable("call_a", "weather", {"city": "Rom"}),
        e.ToolInputAvailable("call_b", "time", {}),
        e.FinishStep("tool-calls", e.Usage(1, 2)),
    ],
    "calls without arguments": [
        e.ToolInputStart("call_a", "time"),
        e.ToolInputAvailable("call_a", "time", {}),
        e.ToolInputAvailable("call_b", "weather", {"city": "Rom"}),
        e.FinishStep("tool-calls"),
    ],
    "sources": [
        e.TextStart("t"),
        e.TextDelta("t", "Rome"),
        e.SourceUrl("s1", "https://a.example", "A"),
        e.TextDelta("t", " is old"),
        e.SourceUrl("s2", "https://b.example", "B"),
        e.SourceUrl("s3", "https://c.example", "C"),
        e.File("data:image/png;base64,QUJD", "image/png"),
        e.TextEnd("t"),
        e.FinishStep("length", e.Usage(None, 2)),
    ],
    "refusal": [
        e.TextStart("t", {"openai": {"refusal": True}}),
        e.TextDelta("t", "I will"),
        e.TextDelta("t", " not."),
        e.TextEnd("t"),
        e.FinishStep("stop"),
    ],
    "refusal behind text": [
        e.TextStart("t"),
        e.TextDelta("t", "Well"),
        e.TextEnd("t"),
        e.FinishStep(
            "content-filter", provider_metadata={"anthropic": {"stopDetails": {"explanation": "Not that."}}}
        ),
    ],
    "thoughts only": [
        e.ReasoningStart("r1"),
        e.ReasoningDelta("r1", "Hm"),
        e.ReasoningEnd("r1"),
        e.FinishStep("length"),
    ],
    "nothing": [e.FinishStep("stop", e.Usage(3, 0, 3))],
}


def spelled(events: Sequence[e.Event], *, size: int = 2) -> list[bytes]:
    writer = OpenAIStreamEncoder(id="chatcmpl-1", model="m", created=5, include_usage=True)
    batches = [events[index : index + size] for index in range(0, len(events), size)]
    return [*map(writer.encode, batches), writer.end()]


def serve(*reads: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        for data in reads:
            await peer.send(data)

    return script


def plain(answer: ChatCompletion) -> dict[str, Any]:
    """The answer without fields that only streams or only documents have."""
    [choice] = answer.choices
    message = choice.message.model_dump(exclude_none=True, exclude={"parsed"})
    for call in message.get("tool_calls", ()):
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return {
        "id": answer.id,
        "object": answer.object,
        "created": answer.created,
        "model": answer.model,
        "message": message,
        "finish": choice.finish_reason,
        "usage": answer.usage and answer.usage.to_dict(),
    }


async def heard(events: Sequence[e.Event]) -> dict[str, Any]:
    """What the client accumulates from a stream; it reads the arguments of a call once it is complete."""
    calls = [event for event in events if isinstance(event, e.ToolInputAvailable)]
    read: list[Any] = []
    snapshot: Any = None
    async with (
        serving(serve(HEAD, *spelled(events))) as server,
        AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0) as client,
        client.chat.completions.stream(model="m", messages=[], tools=TOOLS if calls else []) as stream,
    ):
        async for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                read.append((event.name, event.parsed_arguments))
            elif event.type == "chunk":
                snapshot = event.snapshot
    assert read == [(call.tool_name, call.input) for call in calls]
    return plain(snapshot)


async def answer_from_document(events: Sequence[e.Event]) -> dict[str, Any]:
    """The same for a document."""
    raw = encode_document(events, id="chatcmpl-1", model="m", created=5)
    async with (
        serving(serve(ok(raw, "content-type: application/json"))) as server,
        AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0) as client,
    ):
        return plain(await client.chat.completions.create(model="m", messages=[]))


@pytest.mark.parametrize("name", ANSWERS)
async def test_openais_client_accumulates_a_stream_to_the_document(name: str) -> None:
    streamed, whole = await heard(ANSWERS[name]), await answer_from_document(ANSWERS[name])
    assert streamed == whole


async def test_openais_client_reads_the_content_of_the_events() -> None:
    assert await heard(ANSWERS["thoughts and calls"]) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "message": {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Let me see",
            "reasoning_details": [
                {
                    "index": 0,
                    "type": "reasoning.text",
                    "text": "Let me see",
                    "signature": "sig",
                    "format": "anthropic-claude-v1",
                },
                {"index": 1, "type": "reasoning.encrypted", "data": "blob", "format": "anthropic-claude-v1"},
            ],
            "tool_calls": [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id, name, arguments in (
                    ("call_a", "weather", '{"city":"Rom"}'),
                    ("call_b", "time", "{}"),
                )
            ],
        },
        "finish": "tool_calls",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (BadRequest("n must be 1", field="n"), openai.BadRequestError),
        (Unauthorized("no key"), openai.AuthenticationError),
        (Forbidden("not yours"), openai.PermissionDeniedError),
        (NotFound("no model"), openai.NotFoundError),
        (LimitReached("slow"), openai.RateLimitError),
        (BudgetExhausted("spent"), openai.RateLimitError),
        (ProviderError("long", category="context_limit"), openai.BadRequestError),
        (ProviderError("key", category="auth"), openai.AuthenticationError),
        (ProviderError("busy", category="overloaded"), openai.InternalServerError),
        (ProviderError("gone", category="network"), openai.InternalServerError),
        (ProviderError("odd", category="bad_request", upstream_status=422), openai.UnprocessableEntityError),
    ],
)
async def test_openais_client_raises_the_matching_error(
    error: DragomanError, raised: type[openai.APIStatusError]
) -> None:
    body = msgspec.json.encode(error_body(error))
    kind = "content-type: application/json"
    head = f"HTTP/1.1 {error_status(error)} no\r\n{kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    async with (
        serving(serve(head.encode() + body)) as server,
        AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(raised) as caught:
            await client.chat.completions.create(model="m", messages=[])
    expected = error_body(error)["error"]
    assert caught.value.body == expected
    sdk_error = caught.value
    assert {"type": sdk_error.type, "param": sdk_error.param, "code": sdk_error.code} == {
        key: expected[key]  # type: ignore[index]  # it is an object
        for key in ("type", "param", "code")
    }


async def test_openais_client_raises_an_error_in_the_stream_after_the_chunks_before_it() -> None:
    writer = OpenAIStreamEncoder(id="chatcmpl-1", model="m", created=5, include_usage=False)
    reads = [
        writer.encode([e.TextStart("t"), e.TextDelta("t", "Hi")]),
        writer.encode_error(ProviderError("the model is overloaded", category="overloaded", transient=True)),
    ]
    async with (
        serving(serve(HEAD, *reads)) as server,
        AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="m", messages=[], stream=True)
        first = await anext(stream)
        assert first.choices[0].delta.content == "Hi"
        with pytest.raises(openai.APIError, match="overloaded") as caught:
            await anext(stream)
    assert caught.value.code == "overloaded"
