"""Encode a model request as a chat.completions body; the same request gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool, ToolChoice
from dragoman.wire.json_codec import BodyEncoder, encode_body
from dragoman.wire.openai.messages import write_messages
from dragoman.wire.openai.options import extra_body_fields, unsupported_options, write_options
from dragoman.wire.openai.quirks import Quirks, safe_tool_name


def encode_request(
    request: ModelRequest,
    *,
    quirks: Quirks | None = None,
    provider: str | None = None,
    encode: BodyEncoder = encode_body,
) -> bytes:
    """Encode the body. Options are included, except those that the request itself determines.

    `provider` names the provider that is called: opaque parts that it sent (signatures) are included.
    """
    quirks = quirks or Quirks()
    body: dict[str, Any] = {
        "model": request.model,
        "messages": write_messages(
            request.messages, instructions=request.instructions, quirks=quirks, provider=provider
        ),
        "stream": True,
    }
    if request.messages and not body["messages"]:
        raise BadRequest("all messages are empty", field="messages")
    if quirks.include_usage:
        options = request.options.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    if request.tools:
        body["tools"] = [_write_tool(tool) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = _write_tool_choice(request.tool_choice)
    for name, value in write_options(request.options, model=request.model, quirks=quirks).items():
        body.setdefault(name, value)
    return encode(body | extra_body_fields(request.options, body))


def check_request(request: ModelRequest, quirks: Quirks) -> Sequence[str]:
    """Return the names of options that this server does not support; BadRequest if one cannot be dropped."""
    return unsupported_options(request.options, quirks)


def _write_tool(tool: Tool) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    function: dict[str, Any] = {"name": safe_tool_name(tool.name)}
    if tool.description:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": {**function, "parameters": schema}}


def _write_tool_choice(choice: ToolChoice) -> Any:
    if isinstance(choice, NamedToolChoice):
        return {"type": "function", "function": {"name": safe_tool_name(choice.name)}}
    return choice
