"""Convert request options to chat.completions fields, including options in Anthropic's terms.

Strict servers reject `thinking`, `output_config` and other fields that only Anthropic supports: each is
converted or dropped; `unsupported_options` names the dropped ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.errors import BadRequest
from dragoman.wire.openai.quirks import Quirks

RESERVED_FIELDS = frozenset({"model", "messages", "stream", "stream_options", "extra_body"})
_ANTHROPIC_OPTIONS = frozenset(
    {
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "inference_geo",
        "mcp_servers",
        "output_config",
        "speed",
        "thread",
        "user_profile_id",
        "workspace_id",
    }
)
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_LOW_BUDGET, _MEDIUM_BUDGET = 4096, 12_000  # maximum thinking tokens of an effort
_REASONING_MODEL = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d))")


def write_options(options: Mapping[str, Any], *, model: str, quirks: Quirks) -> dict[str, Any]:
    """Return the options under the names that the server supports, in a fixed order."""
    if not options:
        return {}
    reject_mcp_servers(options)
    fields = {
        name: options[name]
        for name in sorted(options)
        if name not in RESERVED_FIELDS and not _is_unsupported(name, quirks)
    }
    thinking = fields.get("thinking")
    if isinstance(thinking, Mapping):
        fields["thinking"] = {**thinking, "type": "disabled" if is_thinking_disabled(options) else "enabled"}
    elif fields.get("reasoning_effort") is None:
        effort = _EFFORTS.get(anthropic_effort(options) or "")
        fields |= {"reasoning_effort": effort} if effort else {}
    schema = anthropic_output_schema(options)
    if schema is not None and fields.get("response_format") is None:
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    if fields.get("service_tier") == "standard_only":
        fields["service_tier"] = "default"
    if (
        quirks.uses_max_completion_tokens
        and fields.get("max_tokens") is not None
        and _REASONING_MODEL.match(model)
    ):
        limit = fields.pop("max_tokens")
        fields.setdefault("max_completion_tokens", limit)
    return fields


def extra_body_fields(options: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `extra_body` that the body does not set: for parameters that have no option
    here.
    """
    return {name: value for name, value in _mapping_field(options, "extra_body").items() if name not in body}


def unsupported_options(options: Mapping[str, Any], quirks: Quirks) -> list[str]:
    """Return the names of the options that the server does not support."""
    reject_mcp_servers(options)
    names = [
        name
        for name in sorted(options)
        if options[name] is not None
        and _is_unsupported(name, quirks)
        and name not in ("thinking", "output_config")
    ]
    drops_thinking = "thinking" not in quirks.accepted_options and options.get("reasoning_effort") is None
    if drops_thinking and is_thinking_lost(options):
        names.append("thinking")
    return names + unsupported_output_config(options, efforts=_EFFORTS)


def anthropic_effort(options: Mapping[str, Any]) -> str | None:
    """Return the thinking effort in Anthropic's terms; None if thinking is off or not set."""
    if is_thinking_disabled(options):
        return None
    effort = _mapping_field(options, "output_config").get("effort")
    if isinstance(effort, str):
        return effort
    thinking = _mapping_field(options, "thinking")
    budget = thinking.get("budget_tokens")
    if thinking.get("type") != "enabled" or not isinstance(budget, int):
        return None
    return "low" if budget <= _LOW_BUDGET else "medium" if budget <= _MEDIUM_BUDGET else "high"


def anthropic_thinking_enabled(options: Mapping[str, Any]) -> bool | None:
    """Return whether Anthropic's `thinking` enables thinking; None if it is not set."""
    return None if "type" not in _mapping_field(options, "thinking") else not is_thinking_disabled(options)


def anthropic_output_schema(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON Schema in Anthropic's `output_config`."""
    schema = _mapping_field(_mapping_field(options, "output_config"), "format").get("schema")
    return schema if isinstance(schema, Mapping) else None


def unsupported_output_config(options: Mapping[str, Any], *, efforts: Mapping[str, Any]) -> list[str]:
    """Return the names of `output_config` fields that other providers do not support."""
    config = _mapping_field(options, "output_config")
    supported = {
        "format": anthropic_output_schema(options) is not None,
        "effort": config.get("effort") in efforts,
    }
    return [f"output_config.{name}" for name in sorted(config) if not supported.get(name, False)]


def reject_mcp_servers(options: Mapping[str, Any]) -> None:
    """BadRequest if the provider should call MCP servers: without them the request means something else."""
    if options.get("mcp_servers"):
        raise BadRequest(
            "MCP servers called by the provider are supported by Anthropic's own API only",
            field="mcp_servers",
        )


def _is_unsupported(name: str, quirks: Quirks) -> bool:
    if name in ("top_k", "thinking"):
        return name not in quirks.accepted_options
    return name in _ANTHROPIC_OPTIONS or name.startswith(("anthropic_", "anthropic-"))


def is_thinking_lost(options: Mapping[str, Any]) -> bool:
    """Return whether no effort says what Anthropic's `thinking` does: it is off, or of a kind of its own."""
    return _mapping_field(options, "thinking").get("type") not in (None, "enabled", "adaptive")


def is_thinking_disabled(options: Mapping[str, Any]) -> bool:
    """Return whether Anthropic's `thinking` is switched off."""
    return _mapping_field(options, "thinking").get("type") == "disabled"


def _mapping_field(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if inner is not None and isinstance(inner, Mapping) else {}
