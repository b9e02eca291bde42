"""Convert request options to the fields of a Responses request.

Options have the names of chat.completions, or Anthropic's: each is converted, or dropped and named by
`unsupported_options`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dragoman.errors import BadRequest
from dragoman.wire.openai.options import (
    anthropic_effort,
    anthropic_output_schema,
    is_thinking_lost,
    reject_mcp_servers,
    unsupported_output_config,
)

_SAME = frozenset(
    {
        *("temperature", "top_p", "parallel_tool_calls", "service_tier", "metadata", "user"),
        *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("truncation", "max_tool_calls", "prompt", "moderation"),
    }
)
_CONVERTED = frozenset(
    {
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "reasoning_effort", "reasoning"),
        *("response_format", "verbosity", "text", "thinking", "output_config", "extra_body", "include"),
        "modalities",
        *("n", "stream", "stream_options", "store"),
    }
)
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}


def write_options(options: Mapping[str, Any], *, drop: Collection[str]) -> dict[str, Any]:
    """Return the fields, without those in `drop`, in a fixed order."""
    _check(options)
    fields = {name: options[name] for name in sorted(_SAME & options.keys()) if options[name] is not None}
    limits = (options.get(name) for name in ("max_output_tokens", "max_completion_tokens", "max_tokens"))
    limit = next((limit for limit in limits if limit is not None), None)
    if limit is not None:
        fields["max_output_tokens"] = limit
    if fields.get("service_tier") == "standard_only":
        fields["service_tier"] = "default"
    if reasoning := _write_reasoning(options, drop=drop):
        fields["reasoning"] = reasoning
    if text := _write_text(options, drop=drop):
        fields["text"] = text
    return {name: value for name, value in fields.items() if name not in drop}


def unsupported_options(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that have no equivalent. Raises BadRequest if one cannot be dropped."""
    _check(options)
    names = [
        name
        for name in sorted(options)
        if options[name] is not None and name not in _SAME and name not in _CONVERTED
    ]
    if is_thinking_lost(options) and options.get("reasoning_effort") is None:
        names.append("thinking")
    return names + unsupported_output_config(options, efforts=_EFFORTS)


def _check(options: Mapping[str, Any]) -> None:
    reject_mcp_servers(options)
    if options.get("n") not in (None, 1):
        raise BadRequest("n: the Responses API gives one answer", field="n")
    if options.get("modalities") not in (None, ["text"]):
        raise BadRequest("modalities: the Responses API gives text only", field="modalities")


def _write_reasoning(options: Mapping[str, Any], *, drop: Collection[str]) -> dict[str, Any]:
    """Return the effort, and ask for a summary where the model reasons."""
    reasoning = options.get("reasoning")
    fields = dict(reasoning) if isinstance(reasoning, Mapping) else {}
    effort = options.get("reasoning_effort")
    if effort is None:
        effort = _EFFORTS.get(anthropic_effort(options) or "")
    if effort:
        fields.setdefault("effort", effort)
    if fields.get("effort") not in (None, "none"):
        fields.setdefault("summary", "auto")
    return {name: value for name, value in fields.items() if f"reasoning.{name}" not in drop}


def _write_text(options: Mapping[str, Any], *, drop: Collection[str]) -> dict[str, Any]:
    text = options.get("text")
    fields = dict(text) if isinstance(text, Mapping) else {}
    if isinstance(options.get("verbosity"), str):
        fields.setdefault("verbosity", options["verbosity"])
    output = _write_format(options)
    if output is not None:
        fields.setdefault("format", output)
    return {name: value for name, value in fields.items() if f"text.{name}" not in drop}


def _write_format(options: Mapping[str, Any]) -> dict[str, Any] | None:
    requested = options.get("response_format")
    schema = anthropic_output_schema(options)
    if not isinstance(requested, Mapping):
        return None if schema is None else {"type": "json_schema", "name": "answer", "schema": schema}
    nested = requested.get("json_schema")
    if requested.get("type") != "json_schema" or not isinstance(nested, Mapping):
        return {**requested, "type": requested.get("type") or "text"}
    return {
        "type": "json_schema",
        "name": nested.get("name") or "answer",
        **{
            name: nested[name] for name in ("description", "schema", "strict") if nested.get(name) is not None
        },
    }
