"""Encode a model request as a Responses body; the same request gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dragoman.errors import BadRequest
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool, ToolChoice
from dragoman.wire.json_codec import BodyEncoder, encode_body
from dragoman.wire.openai.options import extra_body_fields
from dragoman.wire.openai.quirks import safe_tool_name
from dragoman.wire.responses.messages import CACHE_MARK, write_items
from dragoman.wire.responses.options import unsupported_options, write_options

ENCRYPTED = "reasoning.encrypted_content"
_DROPPABLE = frozenset(
    {
        *("include", "temperature", "top_p", "parallel_tool_calls", "reasoning", "reasoning.summary"),
        *("reasoning.effort", "text.verbosity", "truncation", "store", "prompt_cache_key"),
        *("prompt_cache_retention", "prompt_cache_options", "safety_identifier", "metadata", "strict"),
        CACHE_MARK,
    }
)
_ENCRYPTED_REFUSED = re.compile(r"encrypted.content is not supported", re.IGNORECASE)
_UNKNOWN_FIELD = re.compile(
    r"(?:unsupported|unknown|unrecognized|extra|not (?:support|permitt)ed)[^'\"`]{0,200}['\"`]([\w.]+)['\"`]"
    r"|['\"`]([\w.]+)['\"`] is not supported",
    re.IGNORECASE,
)


def encode_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    drop: Collection[str] = (),
    encode: BodyEncoder = encode_body,
) -> bytes:
    """Encode the body, without the fields in `drop`.

    `provider` names the provider that is called: encrypted reasoning that it sent is included. It keeps no
    response: the hub has the conversation.
    """
    body: dict[str, Any] = {
        "model": request.model,
        "input": write_items(request.messages, provider=provider, cache_marks=CACHE_MARK not in drop),
        "stream": True,
        "store": False,
    }
    if request.messages and not body["input"]:
        raise BadRequest("all messages are empty", field="messages")
    if request.instructions:
        body["instructions"] = request.instructions
    include = request.options.get("include")
    others = include if isinstance(include, list) else []
    body["include"] = [ENCRYPTED, *(name for name in others if name != ENCRYPTED)]
    if request.tools:
        body["tools"] = [_write_tool(tool, strict="strict" not in drop) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = _write_tool_choice(request.tool_choice)
    for name, value in write_options(request.options, drop=drop).items():
        body.setdefault(name, value)
    if not request.tools:
        body.pop("parallel_tool_calls", None)
    body |= extra_body_fields(request.options, body)
    return encode({name: value for name, value in body.items() if name not in drop})


def check_request(request: ModelRequest) -> Sequence[str]:
    """Return the names of options that have no equivalent. Raises BadRequest if one cannot be dropped."""
    return unsupported_options(request.options)


def is_about_value(error: Mapping[str, Any], field: str) -> bool:
    """Return whether an error is about one value of a field, of which a model takes others.

    A model that takes only one temperature takes none but the default.
    """
    message = error.get("message")
    refuses_value = error.get("code") == "unsupported_value" or (
        isinstance(message, str) and message.lower().startswith(("unsupported value", "invalid value"))
    )
    return refuses_value and field not in ("temperature", "top_p")


def rejected_field(error: Mapping[str, Any]) -> str | None:
    """Return the field that an error of the server is about, if the request can do without it."""
    message, param = error.get("message"), error.get("param")
    text = message if isinstance(message, str) else ""
    if _ENCRYPTED_REFUSED.search(text):
        return "include"
    if CACHE_MARK in text or (isinstance(param, str) and param.endswith(CACHE_MARK)):
        return CACHE_MARK  # its place in the input comes before its name
    if error.get("code") in ("unsupported_parameter", "unknown_parameter", "unsupported_value"):
        return param if param in _DROPPABLE else None
    found = _UNKNOWN_FIELD.search(text)
    name = (found[1] or found[2]) if found else None
    return name if name in _DROPPABLE else None


def _write_tool(tool: Tool, *, strict: bool) -> dict[str, Any]:
    """Convert a tool. Without `strict` the API would enforce a schema that was not made for that."""
    fields: dict[str, Any] = {"type": "function", "name": safe_tool_name(tool.name)}
    if tool.description:
        fields["description"] = tool.description
    fields["parameters"] = {"type": "object", "properties": {}, **tool.input_schema}
    return {**fields, "strict": bool(tool.strict)} if strict else fields


def _write_tool_choice(choice: ToolChoice) -> Any:
    if isinstance(choice, NamedToolChoice):
        return {"type": "function", "name": safe_tool_name(choice.name)}
    return choice
