"""Lines of Ollama's /api/chat: one piece of an answer as a value.

`decode_lines` is the quick way for what Ollama itself sends; `read` takes what comes through proxies and from
servers that only resemble it: fields of other types, NaN, broken UTF-8, halves of surrogate pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.wire import openai_chunk as chunks
from dragoman.wire.failures import find

COUNTS = (
    "prompt_eval_count",
    "eval_count",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
)
FAILED = chunks.FAILED


class Called(msgspec.Struct, gc=False):
    """The function half of a call. The arguments are whole: an object, or as text with other servers."""

    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class Call(msgspec.Struct, gc=False):
    """A whole tool call; servers before 0.12 give it no id."""

    id: str | None = None
    function: Called | None = None


class Said(msgspec.Struct, gc=False):
    """What a line adds to the message; a whole message has the same fields."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class Line(msgspec.Struct, gc=False):
    """One line. Counts and durations (nanoseconds) come with the last one, `done`."""

    message: Said | None = None
    done: bool = False
    done_reason: str | None = None
    model: str | None = None
    error: Any = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_duration: int | None = None
    eval_duration: int | None = None


_decoder = msgspec.json.Decoder(Line)


def decode_lines(block: bytes) -> list[Line] | None:
    """The lines of a block that holds nothing but well-behaved ones; None when each wants a closer look."""
    number = block.count(b"\n")
    if not block.startswith(b"{") or block.count(b"}\n{") + 1 != number or not block.endswith(b"}\n"):
        return None
    try:
        lines = _decoder.decode_lines(block)
    except FAILED:
        return None
    behaved = len(lines) == number and all(line.message is not None or line.done for line in lines)
    return lines if behaved else None


def read(payload: bytes) -> Line:
    """The line, whatever its quirks; ValueError when it is no JSON, or no object."""
    try:
        line = _decoder.decode(payload)
    except FAILED:
        line = None
    if line is not None and (line.message is not None or line.done):
        return line
    value = chunks.loose(payload)
    if not isinstance(value, dict):
        raise ValueError(f"the line is a JSON {type(value).__name__}, not an object")
    try:
        return _tolerate(value)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _tolerate(value: Mapping[str, Any]) -> Line:
    message, done = value.get("message"), value.get("done")
    said = _said(message) if isinstance(message, Mapping) else None
    over = done is True or done == 1 or done == "true"
    return Line(
        message=said,
        done=over,
        done_reason=chunks.text(chunks.clean(value.get("done_reason"))),
        model=chunks.text(chunks.clean(value.get("model"))),
        error=chunks.clean(value.get("error") if said is not None or over else find(value)),
        **{name: _count(value.get(name)) for name in COUNTS},
    )


def _said(message: Mapping[str, Any]) -> Said:
    """Halves of surrogate pairs stay in the texts that grow, where the other half may follow."""
    calls = message.get("tool_calls")
    objects = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return Said(
        content=chunks.text(message.get("content")),
        thinking=chunks.text(message.get("thinking")),
        tool_calls=[_call(call) for call in objects] or None,
    )


def _call(call: Mapping[str, Any]) -> Call:
    called = chunks.function(call.get("function"))
    return Call(
        id=chunks.text(chunks.clean(call.get("id"))),
        function=None if called is None else Called(called.name, called.arguments),
    )


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if whole else None
