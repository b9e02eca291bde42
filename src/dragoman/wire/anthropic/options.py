"""Convert request options to Anthropic's fields; unsupported ones are dropped and named.

Anthropic's own options are included unchanged. Source: wire notes on providers, §6.1, §6.2 and §10.1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.wire import strict_schema
from dragoman.wire.anthropic.capabilities import Effort, ModelCapabilities
from dragoman.wire.json_codec import encode_json

_ANTHROPIC_OPTIONS = frozenset(
    {
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "mcp_servers",
        "output_config",
        "speed",
        "stop_sequences",
        "thinking",
        "thread",
        "user_profile_id",
        "workspace_id",
    }
)
_HANDLED_OPTIONS = frozenset(
    {
        "extra_body",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "n",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "service_tier",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
_EFFECTIVE_IF_EMPTY = ("seed", "web_search_options")  # a seed of 0, and a search with all defaults
_SERVICE_TIERS = {
    "auto": "auto",
    "default": "standard_only",
    "standard_only": "standard_only",
    "priority": "auto",
}
_JSON_INSTRUCTION = (
    "Answer with one JSON object and nothing else: no words before or after it, no code fence."
)


class AnthropicOptions:
    """The converted options of one request: body `fields`, and `system_texts` that replace unsupported ones.

    `cache_control` is set if the hub places the cache breakpoints (see `add_cache_breakpoints`).
    `dropped_fields` names unsupported options. `drop` names fields that the server rejected.
    `unsigned_calls`: the history ends in calls without thinking before them. BadRequest for what cannot be
    dropped.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        model: ModelCapabilities,
        *,
        max_tokens: int,
        unsigned_calls: bool,
        drop: Collection[str] = (),
    ) -> None:
        self.fields: dict[str, Any] = {}
        self.cache_control: dict[str, Any] | None = None
        self.system_texts: list[str] = []
        self.dropped_fields: list[str] = []
        self._options = {name: value for name, value in options.items() if value is not None}
        self._model = model
        self._drop = drop
        self._reject_unsupported()
        for name in sorted(_ANTHROPIC_OPTIONS & self._options.keys()):
            self.fields[name] = self._options[name]
        self._set_cache_control()
        self._set_thinking(max_tokens, unsigned_calls=unsigned_calls)
        self._set_sampling()
        self._set_stop()
        self._set_response_format()
        self._set_user_and_tier()
        self._drop_unknown()
        self.fields = {name: value for name, value in self.fields.items() if name not in drop}

    @property
    def uses_thinking_budget(self) -> bool:
        """Whether the model thinks by a budget: then it cannot be forced to call a tool."""
        return bool(self._thinking_type() == "enabled")

    def _reject_unsupported(self) -> None:
        options = self._options
        if options.get("n", 1) != 1:
            raise BadRequest("n: Anthropic's models return one choice only", field="n")
        modalities = options.get("modalities", ["text"])
        if modalities != ["text"]:
            raise BadRequest("modalities: Anthropic's models return text only", field="modalities")

    def _set_cache_control(self) -> None:
        """Remove `cache_control`, unless it tells Anthropic to place the breakpoints itself."""
        cache_control = self.fields.get("cache_control")
        if isinstance(cache_control, Mapping) and "type" in cache_control:
            return
        self.fields.pop("cache_control", None)
        if cache_control and "cache_control" not in self._drop:
            self.cache_control = {
                "type": "ephemeral",
                **(cache_control if isinstance(cache_control, Mapping) else {}),
            }

    def _set_thinking(self, default_max_tokens: int, *, unsigned_calls: bool) -> None:
        """Set max_tokens, thinking and the effort."""
        name = "max_completion_tokens" if "max_completion_tokens" in self._options else "max_tokens"
        limit = self._options.get(name)
        if limit is not None and type(limit) is not int:
            raise BadRequest(f"{name} must be an integer, got {limit!r:.40}", field=name)
        thinking = self._choose_thinking(limit, unsigned_calls=unsigned_calls)
        if thinking.config is not None:
            self.fields["thinking"] = thinking.config
        if thinking.effort_dropped:
            self.dropped_fields.append("reasoning_effort")
        if thinking.effort is not None:
            self._set_output_config("effort", thinking.effort)
        self.fields["max_tokens"] = default_max_tokens + thinking.budget if limit is None else limit

    def _choose_thinking(self, limit: int | None, *, unsigned_calls: bool) -> ThinkingConfig:
        """Choose the thinking config: by Anthropic's `thinking` if present, else by `reasoning_effort`."""
        requested = self.fields.pop("thinking", None)
        if isinstance(requested, Mapping) and "thinking" not in self._drop:
            return explicit_thinking(requested, limit=limit)
        thinking = thinking_for_effort(
            self._options.get("reasoning_effort"), self._model, limit=limit, unsigned_calls=unsigned_calls
        )
        return ThinkingConfig(None, thinking.effort) if "thinking" in self._drop else thinking

    def _set_sampling(self) -> None:
        """Set temperature, top_p and top_k, as far as the model supports them."""
        is_thinking = self._thinking_type() in ("enabled", "adaptive")
        temperature, top_p = self._number("temperature"), self._number("top_p")
        if temperature is not None and not (is_thinking and temperature == 1):
            self._set_field("temperature", min(max(temperature, 0), 1), supported=not is_thinking)
        if top_p is not None:
            allowed = self._model.temperature_with_top_p or "temperature" not in self.fields
            self._set_field("top_p", top_p, supported=allowed and not (is_thinking and top_p < 0.95))
        if "top_k" in self._options:
            self._set_field("top_k", self._options["top_k"], supported=not is_thinking)

    def _set_field(self, name: str, value: Any, *, supported: bool) -> None:
        if supported and self._model.sampling and name not in self._drop:
            self.fields[name] = value
        else:
            self.dropped_fields.append(name)

    def _set_stop(self) -> None:
        stop = self._options.get("stop")
        stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list | tuple) else []
        usable = [text for text in stops if isinstance(text, str) and text.strip()]
        if usable:
            self.fields["stop_sequences"] = usable
        if len(usable) < len(stops):
            self.dropped_fields.append("stop")

    def _set_response_format(self) -> None:
        """Set the format of the answer."""
        response_format = self._options.get("response_format")
        format_type = response_format.get("type") if isinstance(response_format, Mapping) else None
        schema = (
            _response_schema(response_format)
            if format_type == "json_schema" and isinstance(response_format, Mapping)
            else None
        )
        if schema is not None and self._model.structured_output and "format" not in self._drop:
            self._set_output_config(
                "format", {"type": "json_schema", "schema": strict_schema.to_closed_schema(schema)}
            )
        elif schema is not None:
            self.system_texts.append(
                f"{_JSON_INSTRUCTION} It must be valid for this JSON Schema:\n{encode_json(schema)}"
            )
            self.dropped_fields.append("response_format")
        elif format_type in ("json_object", "json_schema"):
            self.system_texts.append(_JSON_INSTRUCTION)
        elif format_type not in (None, "text"):
            self.dropped_fields.append("response_format")

    def _set_output_config(self, name: str, value: Any) -> None:
        """Set a field of output_config, unless the request sets it."""
        config = self.fields.get("output_config", {})
        if name not in self._drop and isinstance(config, Mapping):
            self.fields["output_config"] = {name: value, **config}

    def _set_user_and_tier(self) -> None:
        """Set the user and the service tier."""
        metadata = self._options.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        candidates = (
            metadata.get("user_id"),
            self._options.get("safety_identifier"),
            self._options.get("user"),
        )
        user = next((name for name in candidates if name), None)
        if user is not None:
            self.fields["metadata"] = {"user_id": user}
        self.dropped_fields += [f"metadata.{name}" for name in metadata if name != "user_id"]
        tier = self._options.get("service_tier")
        if isinstance(tier, str) and tier in _SERVICE_TIERS:
            self.fields["service_tier"] = _SERVICE_TIERS[tier]
        elif tier is not None:
            self.dropped_fields.append("service_tier")

    def _drop_unknown(self) -> None:
        """Record the options that have no equivalent, unless they have no effect."""
        for name in sorted(self._options.keys() - _ANTHROPIC_OPTIONS - _HANDLED_OPTIONS):
            if self._options[name] or name in _EFFECTIVE_IF_EMPTY:
                self.dropped_fields.append(name)

    def _number(self, name: str) -> float | None:
        value = self._options.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise BadRequest(f"{name} must be a number, got {value!r:.40}", field=name)

    def _thinking_type(self) -> Any:
        thinking = self.fields.get("thinking")
        return thinking.get("type") if isinstance(thinking, Mapping) else None


def _response_schema(response_format: Mapping[str, Any]) -> Any:
    """Return the schema of a `response_format`, if it has one."""
    json_schema = response_format.get("json_schema")
    schema = json_schema.get("schema") if isinstance(json_schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else None


# ---- Thinking
# Newer models decide themselves how much to think and accept an effort; older ones need a token budget, which
# counts into max_tokens. Source: wire notes on providers, §10.1.

MIN_BUDGET = 1024  # the smallest budget that Anthropic accepts

_EFFORT_BUDGETS = {
    "minimal": MIN_BUDGET,
    "low": 2048,
    "medium": 10_000,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 32_768,
}
_EFFORTS: dict[str, Effort] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}


class ThinkingConfig(msgspec.Struct, frozen=True):
    """The request's `thinking` and effort; None: not set. `effort_dropped`: the effort is not supported."""

    config: dict[str, Any] | None = None
    effort: Effort | None = None
    effort_dropped: bool = False

    @property
    def budget(self) -> int:
        """The tokens of max_tokens that thinking may use."""
        budget = (self.config or {}).get("budget_tokens")
        return budget if type(budget) is int else 0


def explicit_thinking(thinking: Mapping[str, Any], *, limit: int | None) -> ThinkingConfig:
    """Return the thinking that the request sets in Anthropic's format. BadRequest for an invalid budget."""
    budget = thinking.get("budget_tokens")
    if thinking.get("type") == "enabled" and type(budget) is int:
        field = "thinking.budget_tokens"
        if budget < MIN_BUDGET:
            raise BadRequest(f"{field} must be at least {MIN_BUDGET}, got {budget!r}", field=field)
        if limit is not None and limit <= budget:
            raise BadRequest(
                f"max_tokens ({limit}) must be above {field} ({budget}), since it includes thinking",
                field="max_tokens",
                hint=f"omit max_tokens to add the default answer length to the budget of {budget}",
            )
    return ThinkingConfig(dict(thinking))


def thinking_for_effort(
    effort: Any, model: ModelCapabilities, *, limit: int | None, unsigned_calls: bool
) -> ThinkingConfig:
    """Return the thinking for an OpenAI `reasoning_effort`. Raises BadRequest if there is no such effort.

    `limit` is the client's max_tokens. `unsigned_calls`: the history ends in calls without signed thinking
    before them, which a model that thinks by budget rejects.
    """
    if effort is None:
        return ThinkingConfig()
    if effort == "none":
        return ThinkingConfig({"type": "disabled"}) if model.thinking else ThinkingConfig()
    if not isinstance(effort, str) or effort not in _EFFORTS:
        efforts = ", ".join(["none", *_EFFORTS])
        raise BadRequest(
            f"reasoning_effort must be one of {efforts}, got {effort!r:.40}", field="reasoning_effort"
        )
    if model.adaptive_thinking:
        level = _EFFORTS[effort]
        return ThinkingConfig(
            {"type": "adaptive"}, "max" if level == "xhigh" and not model.xhigh_effort else level
        )
    level = "high" if effort in ("xhigh", "max") else _EFFORTS[effort]
    budget = _EFFORT_BUDGETS[effort] if limit is None else min(_EFFORT_BUDGETS[effort], limit * 3 // 4)
    if not model.thinking or unsigned_calls or budget < MIN_BUDGET:
        return ThinkingConfig(None, level if model.effort else None, effort_dropped=not model.effort)
    return ThinkingConfig({"type": "enabled", "budget_tokens": budget}, level if model.effort else None)
