"""Anthropic's Messages request out: a model request as a body, the same bytes for the same request.

Source: wire notes on providers, §6 and §10.1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.request import ModelRequest
from dragoman.wire.anthropic_cache import mark_places
from dragoman.wire.anthropic_history import History, write_history
from dragoman.wire.anthropic_models import Model, model_of
from dragoman.wire.anthropic_options import Options
from dragoman.wire.anthropic_tools import forces, write_tools
from dragoman.wire.openai_history import plain
from dragoman.wire.openai_options import extra_body

_REFUSALS = tuple(
    (re.compile(pattern, re.IGNORECASE), field)
    for pattern, field in (
        (r"temperature\W+and\W+top_p|top_p\W+and\W+temperature", "top_p"),
        (r"\btool_choice\b", "tool_choice"),
        (r"\btemperature\b", "temperature"),
        (r"\btop_p\b", "top_p"),
        (r"\btop_k\b", "top_k"),
        (r"\boutput_config\.format\b|\boutput_format\b|structured outputs?\b", "format"),
        (r"\beffort\b", "effort"),
        (r"\bthinking\b", "thinking"),
        (r"\boutput_config\b", "output_config"),
        (r"\bservice_tier\b", "service_tier"),
        (r"^tools\.\d+\.(custom\.)?strict\b", "strict"),
    )
)
_MISTAKE = re.compile(
    r"input should be|must be (greater|less|at least|at most)|(greater|less) than or|required|not found",
    re.IGNORECASE,
)
_OF_MESSAGES = re.compile(r"^messages\b(?!.*expected\W+thinking)", re.IGNORECASE | re.DOTALL)


def encode_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    max_tokens: int | None = None,
    stream: bool = True,
    drop: Collection[str] = (),
) -> bytes:
    """The body as JSON; see `write_request`."""
    return encode_body(
        write_request(request, provider=provider, max_tokens=max_tokens, stream=stream, drop=drop)
    )


def encode_body(body: Mapping[str, Any]) -> bytes:
    """A body as JSON."""
    return msgspec.json.encode(body, enc_hook=plain)


def write_request(
    request: ModelRequest,
    *,
    provider: str | None = None,
    max_tokens: int | None = None,
    stream: bool = True,
    drop: Collection[str] = (),
) -> dict[str, Any]:
    """The body; BadRequest for what can neither be said to Anthropic nor left out.

    `provider` names the one that is asked: what it gave to be sent back (signatures) is. `max_tokens` holds
    when the request has no limit; thinking by a budget comes on top. `drop` names fields that the server has
    refused, as `refused_field` tells them.
    """
    history, options = _read(request, provider=provider, max_tokens=max_tokens, drop=drop)
    if not history.messages:
        raise BadRequest(
            "there is no message to answer: Anthropic needs one beside the system's", field="messages"
        )
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": options.fields.pop("max_tokens"),
        "stream": stream,
    }
    system = [*history.system, *({"type": "text", "text": text} for text in options.system)]
    if system:
        body["system"] = system
    body |= write_tools(request, forcing=_may_force(model_of(request.model), options), drop=drop)
    body["messages"] = history.messages
    if options.cache is not None:
        mark_places(body, options.cache)
    for name in sorted(options.fields):
        body[name] = options.fields[name]
    return body | extra_body(request.options, body)


def check(request: ModelRequest, *, provider: str | None = None) -> Sequence[str]:
    """The names of what is left out of the request; BadRequest for what cannot be.

    They are options, and `<message id>.file` for files that an assistant made: Anthropic does not take them.
    """
    history, options = _read(request, provider=provider, max_tokens=None, drop=())
    names = {*options.left_out, *history.left_out}
    if forces(request.tool_choice) and not _may_force(model_of(request.model), options):
        names.add("tool_choice")
    return sorted(names)


def refused_field(message: str) -> str | None:
    """The field that a 400's message names and a request can do without; None when there is none such.

    A wrong value is the client's to mend: it gets no field.
    """
    if _OF_MESSAGES.search(message) or _MISTAKE.search(message):
        return None
    return next((field for pattern, field in _REFUSALS if pattern.search(message)), None)


def _read(
    request: ModelRequest, *, provider: str | None, max_tokens: int | None, drop: Collection[str]
) -> tuple[History, Options]:
    history = write_history(request.messages, instructions=request.instructions, provider=provider)
    model = model_of(request.model)
    options = Options(
        request.options,
        model,
        max_tokens=model.answer if max_tokens is None else max_tokens,
        bare=_is_bare(history.messages),
        drop=drop,
    )
    return history, options


def _may_force(model: Model, options: Options) -> bool:
    return model.forcing and not options.budgeted


def _is_bare(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last thing that the model said are calls without signed thinking before them."""
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    if last is None or not any(block["type"] == "tool_use" for block in last["content"]):
        return False
    return last["content"][0]["type"] not in ("thinking", "redacted_thinking")
