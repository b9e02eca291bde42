"""The same answer in the words of each family of providers, and what a provider was asked."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.gateway.upstream import Answer, Upstream
from tests.wire import anthropic_streams as ant
from tests.wire import openai_streams as oai
from tests.wire import responses_streams as res

FAMILIES = ("res", "oai", "ant")
"""The names of the stage's providers; clients of `res` are relayed."""


def say(family: str, text: str) -> Answer:
    """A text."""
    match family:
        case "res":
            item = res.message(text)
            events = [*res.opening(), *res.text_events(0, item, text[:3], text[3:]), res.ending(item)]
            return Answer(body=res.sse(*events))
        case "oai":
            usage = {"prompt_tokens": 36, "completion_tokens": 12, "total_tokens": 48}
            return Answer(body=oai.sse(oai.chunk({"content": text}), oai.chunk(None, "stop", usage=usage)))
        case _:
            usage = {"input_tokens": 36, "output_tokens": 12}
            body = ant.sse(ant.start(), *ant.text(0, text), ant.stop("end_turn", usage), ant.STOP)
            return Answer(body=body)


def call(family: str, name: str, arguments: str, *, id: str = "call_1", namespace: str = "") -> Answer:
    """A call. A server of another family knows one name, which has the namespace in it."""
    flat = f"{namespace}__{name}" if namespace else name
    half = len(arguments) // 2
    match family:
        case "res":
            item = res.function_call(name, arguments, call_id=id, id=f"fc_{id}")
            item |= {"namespace": namespace} if namespace else {}
            events = res.call_events(0, item, arguments[:half], arguments[half:])
            return Answer(body=res.sse(*res.opening(), *events, res.ending(item)))
        case "oai":
            function = {"name": flat, "arguments": arguments}
            delta = {"tool_calls": [{"index": 0, "id": id, "type": "function", "function": function}]}
            return Answer(body=oai.sse(oai.chunk(delta), oai.chunk(None, "tool_calls")))
        case _:
            parts = ant.call(0, id, flat, arguments[:half], arguments[half:])
            return Answer(body=ant.sse(ant.start(), *parts, ant.stop("tool_use"), ant.STOP))


def sent(upstream: Upstream, number: int = -1) -> str:
    """The body of a request as JSON text without escapes in strings of JSON."""
    body: Any = msgspec.json.decode(upstream.requests[number].body)
    return msgspec.json.encode(body).decode().replace('\\"', '"')
