"""Options: what an /api/chat request asks for beside its messages, in whichever family's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.errors import BadRequest
from dragoman.wire.openai.options import (
    RESERVED_FIELDS,
    anthropic_effort,
    anthropic_output_schema,
    anthropic_thinking_enabled,
    unsupported_output_config,
)

_TOP_LEVEL_OPTIONS = ("keep_alive", "truncate", "shift")
_RUNNER_OPTIONS = frozenset(
    {
        "frequency_penalty",
        "main_gpu",
        "min_p",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_predict",
        "num_thread",
        "penalize_newline",
        "presence_penalty",
        "repeat_last_n",
        "repeat_penalty",
        "seed",
        "temperature",
        "tfs_z",
        "top_k",
        "top_p",
        "typical_p",
        "use_mmap",
    }
)
_HANDLED_OPTIONS = (
    RESERVED_FIELDS
    | _RUNNER_OPTIONS
    | set(_TOP_LEVEL_OPTIONS)
    | {
        "format",
        "max_completion_tokens",
        "max_tokens",
        "options",
        "output_config",
        "reasoning_effort",
        "response_format",
        "stop",
        "think",
        "thinking",
        "tool_choice",
        "tools",
    }
)
_DEFAULTS: Mapping[str, Any] = {
    "logprobs": False,
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": True,
    "service_tier": "auto",
    "store": False,
}
"""What other APIs do unless asked: to leave it out changes nothing."""
_THINK_LEVELS = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
_LEVEL_MODELS = re.compile(r"gpt-?oss", re.IGNORECASE)


def write_top_level_fields(options: Mapping[str, Any], *, model: str) -> dict[str, Any]:
    """The fields of the request but `options`, in one order."""
    fields = {"format": _response_format(options), "think": _think_level(options, model)}
    fields |= {name: options.get(name) for name in _TOP_LEVEL_OPTIONS}
    return {name: value for name, value in fields.items() if value is not None}


def write_runner_options(options: Mapping[str, Any], *, num_ctx: int | None) -> dict[str, Any]:
    """The field `options`. The context's size is `num_ctx` unless the request says another."""
    limit, stop = _first(options, "max_completion_tokens", "max_tokens"), options.get("stop")
    native = options.get("options")
    said = {
        "num_ctx": num_ctx,
        "num_predict": limit,
        "stop": [stop] if isinstance(stop, str) else stop,
        **{name: value for name, value in options.items() if name in _RUNNER_OPTIONS and value is not None},
        **(native if isinstance(native, Mapping) else {}),
    }
    return {name: said[name] for name in sorted(said) if said[name] is not None}


def unsupported_options(options: Mapping[str, Any]) -> list[str]:
    """The names of the options that Ollama has no word for; BadRequest for what cannot be left out."""
    reject_unsupported(options)
    names = [
        name
        for name in sorted(options)
        if name not in _HANDLED_OPTIONS and options[name] is not None and options[name] != _DEFAULTS.get(name)
    ]
    effort = options.get("reasoning_effort")
    if effort is not None and effort not in _THINK_LEVELS:
        names.append("reasoning_effort")
    return names + unsupported_output_config(options, efforts=_THINK_LEVELS)


def reject_unsupported(options: Mapping[str, Any]) -> None:
    """BadRequest for what is another question when it is left out."""
    number, modalities = options.get("n"), options.get("modalities")
    if number not in (None, 1):
        raise BadRequest(f"Ollama gives one answer to a request, not {number!r:.20}", field="n")
    if isinstance(modalities, list) and any(kind != "text" for kind in modalities):
        raise BadRequest("Ollama answers with text only", field="modalities")
    if options.get("mcp_servers"):
        raise BadRequest("Ollama calls no MCP servers by itself", field="mcp_servers")


def _response_format(options: Mapping[str, Any]) -> Any:
    """What form the answer must have: "json", a JSON Schema, or none."""
    asked = options.get("response_format")
    native = _first(options, "format")
    if native is not None or asked is None:
        return anthropic_output_schema(options) if native is None else native
    kind = asked.get("type") if isinstance(asked, Mapping) else asked
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    holder = asked.get("json_schema") if isinstance(asked, Mapping) else None
    schema = holder.get("schema") if isinstance(holder, Mapping) else None
    if kind == "json_schema" and isinstance(schema, Mapping):
        return schema
    raise BadRequest(
        f"Ollama knows the formats text, json_object and json_schema with a schema, not {kind!r:.40}",
        field="response_format",
    )


def _think_level(options: Mapping[str, Any], model: str) -> bool | str | None:
    """Whether to think; models that are told how hard take a level instead."""
    native = options.get("think")
    if native is not None:
        return native if isinstance(native, bool | str) else None
    asked = options.get("reasoning_effort")
    effort = anthropic_effort(options) if asked is None else asked
    if effort not in _THINK_LEVELS:
        return anthropic_thinking_enabled(options)
    level = _THINK_LEVELS[effort]
    return level if level is not None and _LEVEL_MODELS.search(model) else level is not None


def _first(options: Mapping[str, Any], *names: str) -> Any:
    return next((options[name] for name in names if options.get(name) is not None), None)
