"""Encode a model request as an /api/chat body; the same request gives the same bytes.

Ollama has no tool choice: a required call is requested in the system message. Source: wire notes on
providers, §7 and §10.3.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.json_codec import BodyEncoder, encode_body
from dragoman.wire.ollama.messages import write_messages
from dragoman.wire.ollama.options import (
    reject_unsupported,
    unsupported_options,
    write_runner_options,
    write_top_level_fields,
)
from dragoman.wire.openai.options import extra_body_fields

_THINKING_REJECTED = re.compile(r"does not support thinking|\bthink value\b", re.IGNORECASE)


def encode_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    num_ctx: int | None = None,
    stream: bool = True,
    drop: Collection[str] = (),
    encode: BodyEncoder = encode_body,
) -> bytes:
    """Encode the body. BadRequest, with the client's field, for what Ollama does not support.

    `num_ctx` is the context size unless the request sets one: without it, Ollama uses a small one and
    silently drops old messages. `drop` names fields and options that the model rejected.
    """
    runner = write_runner_options(request.options, num_ctx=num_ctx)
    body = {
        **_request_fields(request, provider=provider),
        "options": {name: value for name, value in runner.items() if name not in drop},
        "stream": stream,
    }
    fields = {name: value for name, value in body.items() if name not in drop and value not in ([], {})}
    return encode(fields | extra_body_fields(request.options, fields))


def check_request(request: ModelRequest) -> Sequence[str]:
    """Return the names of what is dropped, or requested in words only (`tool_choice`).

    BadRequest, with the client's field, for what cannot be dropped without changing the request's meaning.
    """
    _request_fields(request, provider=None)
    names = unsupported_options(request.options)
    if _tool_instruction(request):
        names.append("tool_choice")
    if any(tool.strict for tool in request.tools):
        names.append("tools.strict")
    return names


def rejected_field(message: str) -> str | None:
    """Return the field that a 400's message names and a request can do without; None if there is none."""
    return "think" if _THINKING_REJECTED.search(message) else None


def _request_fields(request: ModelRequest, *, provider: str | None) -> dict[str, Any]:
    """The fields that may raise BadRequest."""
    reject_unsupported(request.options)
    return {
        "model": request.model,
        "messages": _write_request_messages(request, provider=provider),
        "tools": [_write_tool(tool) for tool in _visible_tools(request)],
        **write_top_level_fields(request.options, model=request.model),
    }


def _write_request_messages(request: ModelRequest, *, provider: str | None) -> list[dict[str, Any]]:
    messages = write_messages(request.messages, instructions=request.instructions, provider=provider)
    if not messages:
        raise BadRequest("all messages are empty", field="messages")
    instruction = _tool_instruction(request)
    if not instruction:
        return messages
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": instruction}, *messages]
    return [{**messages[0], "content": f"{messages[0]['content']}\n\n{instruction}"}, *messages[1:]]


def _visible_tools(request: ModelRequest) -> Sequence[Tool]:
    """Return the tools that the model is shown."""
    match request.tool_choice:
        case "none":
            return ()
        case NamedToolChoice(name=name):
            tools = [tool for tool in request.tools if tool.name == name]
            if not tools:
                raise BadRequest(f"there is no tool {name!r:.80}", field="tool_choice")
            return tools
        case _:
            return request.tools


def _tool_instruction(request: ModelRequest) -> str | None:
    """Return the instruction that replaces a tool choice."""
    match request.tool_choice:
        case NamedToolChoice(name=name):
            return f"Answer with a call of the tool {name}, and with nothing else."
        case "required" if request.tools:
            return "Answer with a call of one of the tools, and with nothing else."
        case _:
            return None


def _write_tool(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": schema}}
