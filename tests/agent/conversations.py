"""Conversations for tests, and a check that every provider family accepts one."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from dragoman.messages import Message, Part, ReasoningPart, StepStartPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic import request as anthropic_request
from dragoman.wire.ollama import request as ollama_request
from dragoman.wire.openai import request as openai_request

SIGNED = {"anthropic": {"signature": "c2ln"}}
OPENAI = TypeAdapter(list[ChatCompletionMessageParam])
ANTHROPIC = TypeAdapter(list[MessageParam])


def user(text: str, id: str = "u") -> Message:
    return Message(id, "user", (TextPart(text),))


def step(number: int, text: str = "") -> tuple[Part, ...]:
    return (
        StepStartPart(),
        ReasoningPart(f"I think {number}", "done", SIGNED),
        TextPart(text),
        ToolPart("tool-look", f"call_{number}", "output-available", input={"at": number}, output="x" * 400),
    )


def working(steps: int, id: str = "a") -> Message:
    return Message(id, "assistant", tuple(part for number in range(steps) for part in step(number)))


def turn(number: int) -> list[Message]:
    return [user(f"question {number}", f"u{number}"), working(2, f"a{number}")]


def system() -> Message:
    return Message("s", "system", (TextPart("Be kind."),))


def checked(messages: list[Message]) -> None:
    """Every family takes the messages, and each call stands beside its result."""
    request = ModelRequest(model="claude-sonnet-4-5", messages=messages)
    openai = msgspec.json.decode(openai_request.encode_request(request))["messages"]
    OPENAI.validate_python(openai)
    called = [each["id"] for message in openai for each in message.get("tool_calls", ())]
    assert called == [message["tool_call_id"] for message in openai if message["role"] == "tool"]
    claude = msgspec.json.decode(anthropic_request.encode_request(request))["messages"]
    ANTHROPIC.validate_python(claude)
    assert claude[0]["role"] == "user"
    for before, after in pairwise(claude):
        used = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
        result_ids = [block["tool_use_id"] for block in after["content"] if block["type"] == "tool_result"]
        assert used == result_ids
        assert not used or before["content"][0]["type"] == "thinking"
    ollama = msgspec.json.decode(ollama_request.encode_request(request))["messages"]
    called_ids = [each["id"] for message in ollama for each in message.get("tool_calls", ())]
    assert called_ids == [message["tool_call_id"] for message in ollama if message["role"] == "tool"]
