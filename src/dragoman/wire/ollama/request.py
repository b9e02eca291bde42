"""Ollama's /api/chat request out: a model request as a body, the same bytes for the same request.

Source: wire notes on providers, §7 and §10.3. There is no tool choice: a forced call is asked for in words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.ollama.messages import write_messages
from dragoman.wire.ollama.options import (
    reject_unsupported,
    unsupported_options,
    write_runner_options,
    write_top_level_fields,
)
from dragoman.wire.openai.messages import mapping_enc_hook
from dragoman.wire.openai.options import extra_body_fields

_THINKING_REJECTED = re.compile(r"does not support thinking|\bthink value\b", re.IGNORECASE)


def encode_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    num_ctx: int | None = None,
    stream: bool = True,
    drop: Collection[str] = (),
) -> bytes:
    """The body. BadRequest, with the client's field, for what Ollama cannot be asked.

    `num_ctx` is the context's size unless the request has one of its own: without, Ollama takes a small one
    and drops old messages in silence. `drop` names fields and options that the model has refused.
    """
    runner = write_runner_options(request.options, num_ctx=num_ctx)
    body = {
        **_request_fields(request, provider=provider),
        "options": {name: value for name, value in runner.items() if name not in drop},
        "stream": stream,
    }
    said = {name: value for name, value in body.items() if name not in drop and value not in ([], {})}
    return msgspec.json.encode(said | extra_body_fields(request.options, said), enc_hook=mapping_enc_hook)


def check_request(request: ModelRequest) -> Sequence[str]:
    """The names of what is left out, or asked for in words only (`tool_choice`).

    BadRequest, with the client's field, for what cannot be left out without changing what is asked.
    """
    _request_fields(request, provider=None)
    names = unsupported_options(request.options)
    if _tool_instruction(request):
        names.append("tool_choice")
    if any(tool.strict for tool in request.tools):
        names.append("tools.strict")
    return names


def rejected_field(message: str) -> str | None:
    """The field without which the same request may pass, by the words of a 400; None when there is none."""
    return "think" if _THINKING_REJECTED.search(message) else None


def _request_fields(request: ModelRequest, *, provider: str | None) -> dict[str, Any]:
    """What is asked: all that may have to be refused."""
    reject_unsupported(request.options)
    return {
        "model": request.model,
        "messages": _write_request_messages(request, provider=provider),
        "tools": [_write_tool(tool) for tool in _visible_tools(request)],
        **write_top_level_fields(request.options, model=request.model),
    }


def _write_request_messages(request: ModelRequest, *, provider: str | None) -> list[dict[str, Any]]:
    written = write_messages(request.messages, instructions=request.instructions, provider=provider)
    if not written:
        raise BadRequest("there is nothing to answer: no message says anything", field="messages")
    order = _tool_instruction(request)
    if not order:
        return written
    if written[0]["role"] != "system":
        return [{"role": "system", "content": order}, *written]
    return [{**written[0], "content": f"{written[0]['content']}\n\n{order}"}, *written[1:]]


def _visible_tools(request: ModelRequest) -> Sequence[Tool]:
    """The tools that the model may see."""
    match request.tool_choice:
        case "none":
            return ()
        case NamedToolChoice(name=name):
            named = [tool for tool in request.tools if tool.name == name]
            if not named:
                raise BadRequest(f"there is no tool {name!r:.80} to choose", field="tool_choice")
            return named
        case _:
            return request.tools


def _tool_instruction(request: ModelRequest) -> str | None:
    """The words that stand for a tool choice."""
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
