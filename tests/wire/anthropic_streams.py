"""Anthropic streams modelled on the API's, and ways to decode them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.fold import fold
from dragoman.messages import Message, Part
from dragoman.wire.anthropic.decoder import AnthropicDecoder

from .openai_streams import Answer

MODEL = "claude-sonnet-4-5-20250929"
PING = {"type": "ping"}
STOP = {"type": "message_stop"}
OVERLOADED = {
    "type": "error",
    "error": {"details": None, "type": "overloaded_error", "message": "Overloaded"},
    "request_id": "req_1",
}


def sse(*events: Any) -> bytes:
    """Events as the API encodes them, with spaces before the last brace; bytes are frames already."""
    frames = []
    for number, event in enumerate(events):
        if isinstance(event, bytes):
            frames.append(event)
            continue
        data = msgspec.json.encode(event)[:-1] + b" " * (number * 7 % 11) + b"}"
        frames.append(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
    return b"".join(frames)


def start(content: Sequence[Any] = (), stop: str | None = None, **usage: Any) -> dict[str, Any]:
    """The start of a message."""
    message = {
        "model": MODEL,
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 10, "output_tokens": 1},
    }
    return {"type": "message_start", "message": message}


def block(index: int, begin: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """A block from its start event to its stop event."""
    return [
        {"type": "content_block_start", "index": index, "content_block": begin},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *reads: str) -> list[dict[str, Any]]:
    """A block of text."""
    deltas = [{"type": "text_delta", "text": data} for data in reads]
    return block(index, {"type": "text", "text": ""}, *deltas)


def call(index: int, id: str, name: str, *reads: str, **more: Any) -> list[dict[str, Any]]:
    """A tool call."""
    begin = {"type": "tool_use", "id": id, "name": name, "input": {}, **more}
    return block(index, begin, *({"type": "input_json_delta", "partial_json": data} for data in reads))


def stop(reason: str | None, usage: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The end of a message, without `message_stop`."""
    delta = {"stop_reason": reason, "stop_sequence": None, **more}
    return {"type": "message_delta", "delta": delta, "usage": usage or {"output_tokens": 25}}


CITED_PAGE = {
    "type": "web_search_result_location",
    "cited_text": "Two in July 🦜",
    "url": "https://example.org/parrots",
    "title": "Parrots",
    "encrypted_index": "Eo8BCioIAhgBIiQ=",
}
CITED_PAGES = {
    "type": "page_location",
    "cited_text": "They talk.",
    "document_index": 0,
    "document_title": "Birds",
    "start_page_number": 1,
    "end_page_number": 2,
}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://example.org/parrots",
            "title": "Parrots",
            "encrypted_content": "EqgfCioIARgBIiQ3YTAwMjY1Mi1mZjM5",
            "page_age": None,
        }
    ],
}

STREAMS: dict[str, bytes] = {
    "text": sse(
        start(), *text(0, "Hel", "lo", "", " wörld 🦜")[:1], PING, *text(0, "Hel", "lo", " wörld 🦜")[1:]
    )
    + sse(stop("end_turn"), STOP),
    "thinking": sse(
        start(input_tokens=12, output_tokens=3, cache_read_input_tokens=100, cache_creation_input_tokens=7),
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Let me "},
            {"type": "thinking_delta", "thinking": "see…"},
            {"type": "signature_delta", "signature": "first"},
            {"type": "signature_delta", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk="},
        ),
        *block(1, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyI="}),
        *text(2, "So."),
        stop("end_turn", {"output_tokens": 40, "output_tokens_details": {"thinking_tokens": 30}}),
        STOP,
    ),
    "omitted_thinking": sse(
        start(),
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        *text(1, "42"),
        stop("end_turn"),
        STOP,
    ),
    "calls": sse(
        start(),
        *text(0, "I'll look."),
        *call(1, "toolu_a", "weather", "", '{"ci', 'ty": "Zür', 'ich"}'),
        *call(2, "toolu_b", "now", ""),
        *call(3, "toolu_c", "now"),
        stop("tool_use"),
        STOP,
    ),
    "programmatic_calls": sse(
        start(),
        *call(
            0,
            "toolu_p",
            "query",
            input={"sql": "select 1"},
            caller={"type": "code_execution_20250825", "tool_id": "srvtoolu_9"},
        ),
        stop("tool_use"),
        STOP,
    ),
    "whole_in_start": sse(
        start(
            [{"type": "tool_use", "id": "toolu_w", "name": "query", "input": {"n": [1, 2]}}],
            "tool_use",
            input_tokens=90,
            output_tokens=33,
        ),
        STOP,
    ),
    "search": sse(
        start(input_tokens=2479, output_tokens=5),
        *block(
            0,
            SEARCH,
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"query": "parr'},
            {"type": "input_json_delta", "partial_json": 'ots"}'},
        ),
        *block(1, FOUND),
        *block(
            2,
            {"type": "text", "text": "", "citations": []},
            {"type": "citations_delta", "citation": CITED_PAGE},
            {"type": "text_delta", "text": "There were "},
            {"type": "text_delta", "text": "two."},
        ),
        *block(
            3,
            {"type": "text", "text": "", "citations": []},
            {"type": "text_delta", "text": "They talk."},
            {"type": "citations_delta", "citation": CITED_PAGES},
            {"type": "citations_delta", "citation": CITED_PAGE},
        ),
        stop(
            "end_turn",
            {
                "input_tokens": 404_500,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 510,
                "server_tool_use": {"web_search_requests": 1},
            },
        ),
        STOP,
    ),
    "stop_sequence": sse(start(), *text(0, "One, two"), stop("stop_sequence", stop_sequence="three"), STOP),
    "refusal": sse(
        start(),
        stop("refusal", stop_details={"type": "refusal", "category": "cyber", "explanation": "No."}),
        STOP,
    ),
    "length": sse(start(), *call(0, "toolu_l", "write", '{"text": "and the'), stop("max_tokens"), STOP),
    "paused": sse(
        start(),
        *block(0, SEARCH, {"type": "input_json_delta", "partial_json": '{"query": "x"}'}),
        stop("pause_turn", container={"id": "container_1", "expires_at": "2026-11-21T00:00:00Z"}),
        STOP,
    ),
    "gateway": sse(
        start(input_tokens=0, output_tokens=0),
        b": OPENROUTER PROCESSING\n\n",
        *text(0, "Hi"),
        stop("end_turn", {"input_tokens": 31, "output_tokens": 2, "cache_read_input_tokens": 4}),
        STOP,
        b"event: data\ndata: [DONE]\n\n",
    ),
    "unnamed": sse(start(), *text(0, "Hi"), stop("end_turn"), STOP)
    .replace(b"event: content_block_delta\n", b"")
    .replace(b"event: message_stop\n", b""),
    "interleaved": sse(
        start(),
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "index": 1, "content_block": SEARCH | {"type": "tool_use"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"query"'},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": ": 1}"},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_stop", "index": 0},
        stop("tool_use"),
        STOP,
    ),
}

UNKNOWN = sse(
    start(),
    {"type": "new_event", "message": "hello", "error": None},
    *block(0, {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}),
    *block(
        1,
        {"type": "compaction", "content": None},
        {"type": "compaction_delta", "content": "So far: hello.", "encrypted_content": "Zm9v"},
    ),
    *block(
        2,
        {"type": "text", "text": "Hi"},
        {"type": "sparkle_delta", "text": "*"},
        {"type": "text_delta", "text": " you"},
    ),
    stop("end_turn"),
    STOP,
)


def decode(reads: Iterable[bytes], **settings: Any) -> Answer:
    """Feed the reads one by one, as a provider does."""
    decoder = AnthropicDecoder(**settings)
    answer = Answer()
    try:
        for data in reads:
            answer.events += decoder.feed(data)
        answer.events += decoder.close()
        answer.failure = decoder.failure
    except ProviderError as failure:
        answer.failure = failure
    return answer


def folded(events: Sequence[e.Event]) -> Message:
    """The message that these events fold to."""
    return fold(None, [e.Start("m"), e.StartStep(), *events])


def parts(raw: bytes, **settings: Any) -> tuple[Part, ...]:
    """The parts of a complete answer, without the step start."""
    answer = decode([raw], **settings)
    assert answer.failure is None
    return folded(answer.events).parts[1:]
