"""Streams modelled on those of the Responses API, and a way to decode them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.wire.responses.decoder import ResponsesDecoder

from .openai_streams import Answer

MODEL = "gpt-5.1-2025-11-13"
USAGE = {
    "input_tokens": 36,
    "input_tokens_details": {"cached_tokens": 16},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 48,
}


def sse(*events: Any) -> bytes:
    """Events as the API encodes them, numbered; bytes are frames already."""
    frames = []
    for number, event in enumerate(events):
        if isinstance(event, bytes):
            frames.append(event)
            continue
        data = msgspec.json.encode({**event, "sequence_number": number})
        frames.append(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
    return b"".join(frames)


def response(status: str = "in_progress", output: Iterable[Any] = (), **more: Any) -> dict[str, Any]:
    """A response object."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_760_000_000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": MODEL,
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE if status == "completed" else None,
        **more,
    }


def opening() -> list[dict[str, Any]]:
    """The events that each response begins with."""
    return [
        {"type": "response.created", "response": response()},
        {"type": "response.in_progress", "response": response()},
    ]


def ending(*items: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    """The last event, with the whole response."""
    return {"type": f"response.{status}", "response": response(status, items, **more)}


def text_part(text: str, *annotations: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def message(text: str, *annotations: Any, id: str = "msg_1") -> dict[str, Any]:
    """A complete message."""
    content = [text_part(text, *annotations)]
    return {"id": id, "type": "message", "status": "completed", "role": "assistant", "content": content}


def function_call(name: str, arguments: str, *, call_id: str = "call_1", id: str = "fc_1") -> dict[str, Any]:
    """A complete call."""
    call = {"id": id, "type": "function_call", "status": "completed"}
    return {**call, "call_id": call_id, "name": name, "arguments": arguments}


def reasoning(*summary: str, id: str = "rs_1", encrypted: str | None = "gAAA+/=") -> dict[str, Any]:
    """A complete reasoning item."""
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"id": id, "type": "reasoning", "summary": parts, "encrypted_content": encrypted}


def item_events(index: int, item: dict[str, Any], *inner: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of an item from its beginning to its end."""
    empty: dict[str, Any] = {"status": "in_progress"} if "status" in item else {}
    for name, value in (("content", []), ("summary", []), ("arguments", ""), ("input", "")):
        empty |= {name: value} if name in item else {}
    place = {"item_id": item["id"], "output_index": index}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": {**item, **empty}},
        *({**event, **place} for event in inner),
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def text_events(index: int, item: dict[str, Any], *reads: str) -> list[dict[str, Any]]:
    """The events of a message with one text."""
    at = {"content_index": 0}
    part = item["content"][0]
    deltas = [{"type": "response.output_text.delta", **at, "delta": read, "logprobs": []} for read in reads]
    cited = [
        {
            "type": "response.output_text.annotation.added",
            **at,
            "annotation_index": number,
            "annotation": each,
        }
        for number, each in enumerate(part["annotations"])
    ]
    return item_events(
        index,
        item,
        {"type": "response.content_part.added", **at, "part": text_part("")},
        *deltas,
        *cited,
        {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
    )


def call_events(index: int, item: dict[str, Any], *reads: str) -> list[dict[str, Any]]:
    """The events of a function call."""
    kind = "response.function_call_arguments"
    return item_events(
        index,
        item,
        *({"type": f"{kind}.delta", "delta": read} for read in reads),
        {"type": f"{kind}.done", "arguments": item["arguments"], "name": item["name"]},
    )


def reasoning_events(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of reasoning with a summary."""
    inner: list[dict[str, Any]] = []
    for number, part in enumerate(item["summary"]):
        at = {"summary_index": number}
        kind = "response.reasoning_summary"
        half = len(part["text"]) // 2
        inner += [
            {"type": f"{kind}_part.added", **at, "part": {"type": "summary_text", "text": ""}},
            {"type": f"{kind}_text.delta", **at, "delta": part["text"][:half], "obfuscation": "x9"},
            {"type": f"{kind}_text.delta", **at, "delta": part["text"][half:], "obfuscation": "k"},
            {"type": f"{kind}_text.done", **at, "text": part["text"]},
            {"type": f"{kind}_part.done", **at, "part": part},
        ]
    return item_events(index, item, *inner)


PAGE = {
    "type": "url_citation",
    "start_index": 0,
    "end_index": 4,
    "url": "https://example.org/parrots",
    "title": "Parrots",
}
SEARCH = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "parrots"},
}
MCP = {
    "id": "mcp_1",
    "type": "mcp_call",
    "server_label": "birds",
    "name": "count",
    "arguments": '{"of":"parrots"}',
    "output": "two",
    "error": None,
}
IMAGE = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "aGk="}
CUSTOM = {
    "id": "ctc_1",
    "type": "custom_tool_call",
    "status": "completed",
    "call_id": "call_c",
    "name": "run",
    "input": "ls -l",
}
REFUSAL = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "refusal", "refusal": "I will not."}],
}
HELLO = message("Hello wörld 🦜")
CALLS = (function_call("weather", '{"city":"Oslo"}'), function_call("now", "{}", call_id="call_2", id="fc_2"))
THOUGHT = reasoning("Two birds.", "Both green.")

STREAMS: dict[str, bytes] = {
    "text": sse(*opening(), *text_events(0, HELLO, "Hel", "lo", "", " wörld 🦜"), ending(HELLO)),
    "calls": sse(
        *opening(),
        *reasoning_events(0, THOUGHT),
        *text_events(1, message("I look."), "I ", "look."),
        *call_events(2, CALLS[0], '{"ci', 'ty":"Oslo"}'),
        *call_events(3, CALLS[1], "{}"),
        ending(THOUGHT, message("I look."), *CALLS),
    ),
    "tools": sse(
        *opening(),
        *item_events(0, SEARCH, {"type": "response.web_search_call.searching"}),
        *item_events(1, MCP, {"type": "response.mcp_call_arguments.delta", "delta": MCP["arguments"]}),
        *item_events(2, IMAGE, {"type": "response.image_generation_call.generating"}),
        *text_events(3, message("Two.", PAGE), "Two."),
        ending(SEARCH, MCP, IMAGE, message("Two.", PAGE)),
    ),
    "custom": sse(
        *opening(),
        *item_events(0, CUSTOM, {"type": "response.custom_tool_call_input.delta", "delta": "ls -l"}),
        ending(CUSTOM),
    ),
    "refusal": sse(
        *opening(),
        *item_events(
            0, REFUSAL, {"type": "response.refusal.delta", "content_index": 0, "delta": "I will not."}
        ),
        ending(REFUSAL),
    ),
    "cut": sse(
        *opening(),
        *text_events(0, message("Once"), "Once"),
        ending(
            message("Once"),
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
            usage=USAGE,
        ),
    ),
    "failed": sse(
        *opening(),
        *text_events(0, message("Once"), "Once"),
        ending(status="failed", error={"code": "server_error", "message": "The server had an error."}),
    ),
    "error": sse(
        *opening(),
        {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down.", "param": None},
    ),
    "bare": sse(*opening(), ending(THOUGHT, HELLO, CALLS[0])),
}


def decode(reads: Iterable[bytes], **options: Any) -> Answer:
    """Decode an answer that arrives in these reads."""
    decoder, answer = ResponsesDecoder(**options), Answer()
    try:
        for read in reads:
            answer.events += decoder.feed(read)
        answer.events += decoder.close()
        answer.failure = decoder.failure
    except ProviderError as error:
        answer.failure = error
    return answer
