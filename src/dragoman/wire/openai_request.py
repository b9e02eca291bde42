"""OpenAI's chat.completions request out: a model request as a body, the same bytes for the same request."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.request import ModelRequest, Tool
from dragoman.wire.openai_history import plain, write_history
from dragoman.wire.openai_names import tool_name
from dragoman.wire.openai_quirks import Quirks

_OURS = frozenset({"model", "messages", "stream", "stream_options"})


def encode_request(
    request: ModelRequest, *, quirks: Quirks | None = None, provider: str | None = None
) -> bytes:
    """The body. The request's options go along, but for those that say what is asked and how it is answered.

    `provider` names the one that is asked: what it gave to be sent back (signatures) is.
    """
    quirks = quirks or Quirks()
    body: dict[str, Any] = {
        "model": request.model,
        "messages": write_history(
            request.messages, instructions=request.instructions, quirks=quirks, provider=provider
        ),
        "stream": True,
    }
    if quirks.include_usage:
        options = request.options.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
    for name in sorted(request.options):
        if name not in _OURS:
            body.setdefault(name, request.options[name])
    return msgspec.json.encode(body, enc_hook=plain)


def _tool(tool: Tool) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    function: dict[str, Any] = {"name": tool_name(tool.name)}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": schema}}
