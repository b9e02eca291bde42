"""Anthropic's own client reads the same from a stream as our decoder."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest
from anthropic import APIStatusError, AsyncAnthropic

from dragoman import events as e
from dragoman.messages import ReasoningPart, TextPart, ToolPart

from .anthropic_streams import (
    OVERLOADED,
    STOP,
    STREAMS,
    UNKNOWN,
    call,
    decode,
    folded,
    sse,
    start,
    stop,
    text,
)
from .openai_streams import cut, cuts

OUT_OF_SPEC = {"gateway", "interleaved", "length", "unnamed"}  # the client stumbles over them, or cannot say


def ours(raw: bytes) -> dict[str, Any]:
    answer = decode(cut(raw, cuts(raw, 7)))
    assert answer.finish is not None
    parts = folded(answer.events).parts
    metadata = (answer.finish.provider_metadata or {})["anthropic"]
    usage = answer.finish.usage or e.Usage()
    return {
        "text": [part.text for part in parts if isinstance(part, TextPart)],
        "citations": [_own(part).get("citations") for part in parts if isinstance(part, TextPart)],
        "thinking": [
            (part.text, _own(part).get("signature"))
            for part in parts
            if isinstance(part, ReasoningPart) and "redactedData" not in _own(part)
        ],
        "redacted": [
            _own(part)["redactedData"]
            for part in parts
            if isinstance(part, ReasoningPart) and "redactedData" in _own(part)
        ],
        "calls": [
            (part.tool_call_id, part.name, part.input, part.provider_executed)
            for part in parts
            if isinstance(part, ToolPart)
        ],
        "stop": (
            metadata.get("stopReason"),
            metadata.get("stopSequence"),
            metadata.get("id"),
            answer.finish.model,
        ),
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": (usage.cached_input_tokens, usage.cache_write_tokens),
        "thought": usage.reasoning_tokens,
    }


def _own(part: Any) -> dict[str, Any]:
    return (part.provider_metadata or {}).get("anthropic") or {}


class Pieces(httpx2.AsyncByteStream):
    """A body that arrives in parts."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    async def __aiter__(self) -> Any:
        for piece in cut(self._raw, cuts(self._raw, 3)):
            yield piece


async def theirs(raw: bytes) -> dict[str, Any]:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(raw))

    transport = httpx2.MockTransport(answer)
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        AsyncAnthropic(api_key="x", max_retries=0, http_client=http, base_url="http://test") as client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "?"}]
        ) as stream,
    ):
        message = await stream.get_final_message()
    content: list[Any] = list(message.content)
    usage = message.usage
    return {
        "text": [block.text for block in content if block.type == "text"],
        "citations": [
            [cited.to_dict() for cited in block.citations] if block.citations else None
            for block in content
            if block.type == "text"
        ],
        "thinking": [(block.thinking, block.signature) for block in content if block.type == "thinking"],
        "redacted": [block.data for block in content if block.type == "redacted_thinking"],
        "calls": [
            (block.id, block.name, block.input, True if block.type == "server_tool_use" else None)
            for block in content
            if block.type in ("tool_use", "server_tool_use")
        ],
        "stop": (message.stop_reason, message.stop_sequence, message.id, message.model),
        "input": usage.input_tokens
        + (usage.cache_read_input_tokens or 0)
        + (usage.cache_creation_input_tokens or 0),
        "output": usage.output_tokens,
        "cached": (usage.cache_read_input_tokens, usage.cache_creation_input_tokens),
        "thought": usage.output_tokens_details and usage.output_tokens_details.thinking_tokens,
    }


@pytest.mark.parametrize("name", sorted(STREAMS.keys() - OUT_OF_SPEC))
async def test_anthropics_client_reads_the_same_answer(name: str) -> None:
    assert ours(STREAMS[name]) == await theirs(STREAMS[name])


async def test_anthropics_client_reads_the_same_answer_except_unknown_blocks() -> None:
    assert ours(UNKNOWN) == await theirs(UNKNOWN)


async def test_anthropics_client_reads_the_same_long_answer() -> None:
    words = [f" wörd{number}🦜" for number in range(300)]
    written = msgspec.json.encode({"words": words, "deep": [{"n": 1.5}, None, True]}).decode()
    pieces = [written[place : place + 9] for place in range(0, len(written), 9)]
    raw = sse(start(), *text(0, *words), *call(1, "toolu_1", "f", "", *pieces), stop("tool_use"), STOP)
    assert ours(raw) == await theirs(raw)


async def test_anthropics_client_fails_where_ours_fails() -> None:
    raw = sse(start(), *text(0, "Hi"), OVERLOADED)
    with pytest.raises(APIStatusError, match="Overloaded"):
        await theirs(raw)
    failure = decode([raw]).failure
    assert failure is not None
    assert failure.category == "overloaded"
