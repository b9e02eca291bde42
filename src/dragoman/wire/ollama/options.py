"""Convert request options, in any family's terms, to the fields of an /api/chat request."""

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
"""Defaults of other APIs: dropping an option with this value changes nothing."""
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
    """Return the top-level fields, in a fixed order."""
    fields = {"format": _response_format(options), "think": _think_level(options, model)}
    fields |= {name: options.get(name) for name in _TOP_LEVEL_OPTIONS}
    return {name: value for name, value in fields.items() if value is not None}


def write_runner_options(options: Mapping[str, Any], *, num_ctx: int | None) -> dict[str, Any]:
    """Return the field `options`. The context size is `num_ctx` unless the request sets one."""
    limit, stop = _first(options, "max_completion_tokens", "max_tokens"), options.get("stop")
    native_options = options.get("options")
    merged = {
        "num_ctx": num_ctx,
        "num_predict": limit,
        "stop": [stop] if isinstance(stop, str) else stop,
        **{name: value for name, value in options.items() if name in _RUNNER_OPTIONS and value is not None},
        **(native_options if isinstance(native_options, Mapping) else {}),
    }
    return {name: merged[name] for name in sorted(merged) if merged[name] is not None}


def unsupported_options(options: Mapping[str, Any]) -> list[str]:
    """Return the names of options that Ollama does not support; BadRequest for what cannot be dropped."""
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
    """BadRequest for options without which the request means something else."""
    choices, modalities = options.get("n"), options.get("modalities")
    if choices not in (None, 1):
        raise BadRequest(f"Ollama gives one answer to a request, not {choices!r:.20}", field="n")
    if isinstance(modalities, list) and any(modality != "text" for modality in modalities):
        raise BadRequest("modalities must be ['text'] for Ollama", field="modalities")
    if options.get("mcp_servers"):
        raise BadRequest("Ollama does not call MCP servers", field="mcp_servers")


def _response_format(options: Mapping[str, Any]) -> Any:
    """Return the format of the answer: "json", a JSON Schema, or None."""
    response_format = options.get("response_format")
    native_format = _first(options, "format")
    if native_format is not None or response_format is None:
        return anthropic_output_schema(options) if native_format is None else native_format
    format_type = response_format.get("type") if isinstance(response_format, Mapping) else response_format
    if format_type == "text":
        return None
    if format_type == "json_object":
        return "json"
    json_schema = response_format.get("json_schema") if isinstance(response_format, Mapping) else None
    schema = json_schema.get("schema") if isinstance(json_schema, Mapping) else None
    if format_type == "json_schema" and isinstance(schema, Mapping):
        return schema
    raise BadRequest(
        "response_format.type must be text, json_object or json_schema with a schema for Ollama, "
        f"got {format_type!r:.40}",
        field="response_format",
    )


def _think_level(options: Mapping[str, Any], model: str) -> bool | str | None:
    """Return whether to think; models with thinking levels get a level instead."""
    native_think = options.get("think")
    if native_think is not None:
        return native_think if isinstance(native_think, bool | str) else None
    requested_effort = options.get("reasoning_effort")
    effort = anthropic_effort(options) if requested_effort is None else requested_effort
    if effort not in _THINK_LEVELS:
        return anthropic_thinking_enabled(options)
    level = _THINK_LEVELS[effort]
    return level if level is not None and _LEVEL_MODELS.search(model) else level is not None


def _first(options: Mapping[str, Any], *names: str) -> Any:
    return next((options[name] for name in names if options.get(name) is not None), None)
