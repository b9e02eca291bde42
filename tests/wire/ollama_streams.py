"""Ollama streams, some modelled on recordings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.wire.ollama.decoder import OllamaDecoder

from .openai_streams import Answer

STAMP = "2026-11-20T09:15:02.123456789Z"
METRICS = {
    "total_duration": 1834217208,
    "load_duration": 61583,
    "prompt_eval_count": 26,
    "prompt_eval_duration": 84125000,
    "eval_count": 282,
    "eval_duration": 1749042125,
}
DURATIONS = {
    "doneReason": "stop",
    "totalDuration": 1834217208,
    "loadDuration": 61583,
    "promptEvalDuration": 84125000,
    "evalDuration": 1749042125,
}


def line(content: str = "", **more: Any) -> dict[str, Any]:
    """A line other than the last; `thinking` and `tool_calls` go into its message."""
    return {
        "model": "qwen3:8b",
        "created_at": STAMP,
        "message": {"role": "assistant", "content": content, **more},
        "done": False,
    }


def last(reason: str | None = "stop", content: str = "", **more: Any) -> dict[str, Any]:
    """The last line."""
    done_reason = {} if reason is None else {"done_reason": reason}
    return {**line(content), "done": True, **done_reason, **(more or METRICS)}


def call(name: str = "weather", arguments: Any = None, id: str | None = None) -> dict[str, Any]:
    """A tool call, as newer servers send it when it has an id."""
    function: dict[str, Any] = {
        "name": name,
        "arguments": {"city": "Köln"} if arguments is None else arguments,
    }
    return {"function": function} if id is None else {"id": id, "function": {"index": 0, **function}}


def ndjson(*lines: Any) -> bytes:
    """Lines as a stream; bytes are lines already."""
    return b"".join((line if isinstance(line, bytes) else _go(line)) + b"\n" for line in lines)


def _go(value: Any) -> bytes:
    """The value as JSON, escaped as in Go."""
    raw = msgspec.json.encode(value)
    for character in "<>&\u2028\u2029":
        raw = raw.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return raw


STREAMS = {
    "text": ndjson(line("Hel"), line("lo "), line("wörld 🦜 <b>"), last()),
    "thinking": ndjson(line(thinking="Let "), line(thinking="me see."), line("Four"), line("."), last()),
    "leaked": ndjson(line("Okay, the user"), line(" asks.\n</th"), line("ink>\n\n"), line("Hi!"), last()),
    "tags": ndjson(line("<think>"), line("\nHm\n"), line("</think>\n\nHi"), last()),
    "calls": ndjson(
        line(thinking="I call."),
        line("Looking."),
        line(tool_calls=[call(id="call_1"), call("time", {}, id="call_2")]),
        line(tool_calls=[call(arguments={"b": [1, 2.5, None], "a": "</x>"}, id="call_3")]),
        line("Done."),
        last(),
    ),
    "old calls": ndjson(line(tool_calls=[call()]), line(tool_calls=[call()]), last(eval_count=7)),
    "all in one": ndjson(
        {**last("stop", "Hi"), "message": line("Hi", thinking="Hm", tool_calls=[call()])["message"]}
    ),
    "cut": ndjson(line("One two"), last("length")),
    "load": ndjson({"model": "m", "created_at": STAMP, **last("load", x=1)}),
    "error": ndjson(line("One"), {"error": "model runner has unexpectedly stopped"}),
    "silent end": ndjson(line("One"), line("two")),
    "garbage": ndjson(line("One"), b"<html>502</html>", last()),
}


def decode(reads: Iterable[bytes], **options: Any) -> Answer:
    """Feed the reads one by one, as a provider does."""
    decoder = OllamaDecoder(**options)
    answer = Answer()
    try:
        for data in reads:
            answer.events += decoder.feed(data)
        answer.events += decoder.close()
        answer.failure = decoder.failure
    except ProviderError as failure:
        answer.failure = failure
    return answer


def decode_document(raw: bytes) -> list[Event]:
    """Decode one document; raise its failure, if any."""
    decoder = OllamaDecoder()
    events = decoder.decode_document(raw)
    if decoder.failure is not None:
        raise decoder.failure
    return events
