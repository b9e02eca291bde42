"""Convert Anthropic's `usage` objects to Usage.

Counts are totals: a later one replaces an earlier. Source: wire notes on providers, §6.3 and §6.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.events import ModelUsage, Usage

SERVICE_TIERS: Mapping[str, str] = {"standard": "default", "priority": "priority"}
"""Anthropic's words for the tiers of answers, and OpenAI's; the others' tiers have no equivalent."""
_PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicUsage:
    """Collects the counts of one answer."""

    def __init__(self) -> None:
        self._counts: dict[str, Any] = {}

    def start(self, usage: Any, *, complete: bool) -> None:
        """Set the counts of the message's start. Its output count is a guess unless the message is
        `complete`.
        """
        self.update(usage)
        if not complete:
            self._counts.pop("output_tokens", None)

    def update(self, usage: Any) -> None:
        """Update with later counts; absent ones are unchanged."""
        if isinstance(usage, Mapping):
            self._counts.update({name: value for name, value in usage.items() if value is not None})

    @property
    def service_tier(self) -> str | None:
        """The service tier of the answer in OpenAI's words."""
        tier = self._counts.get("service_tier")
        return SERVICE_TIERS.get(tier) if isinstance(tier, str) else None

    def to_usage(self) -> Usage | None:
        """Return the usage; None if nothing was counted.

        The counts of a message leave out its compactions and its advisors, which are paid for as well. Those
        of an advised answer have the prompt of its first iteration only.
        """
        own = _to_usage(self._own_parts())
        advisors = [_model_usage(each) for each in self._iterations("advisor_message")]
        others = tuple(each for each in advisors if each is not None)
        if not others:
            return own
        total = own or Usage()
        for other in others:
            total += other.usage
        return replace(total, other_models=others)

    def _own_parts(self) -> list[Mapping[str, Any]]:
        """Return the counts of the message, and those of its compactions."""
        counts = self._counts
        if any(self._iterations("advisor_message")):
            iterations = self._iterations("message")
            prompts = {
                name: _sum(_as_count(each.get(name)) for each in iterations) for name in _PROMPT_COUNTS
            }
            counts = {
                **counts,
                **{
                    name: max(count, _as_count(counts.get(name)) or 0)
                    for name, count in prompts.items()
                    if count is not None
                },
            }
        return [counts, *self._iterations("compaction")]

    def _iterations(self, kind: str) -> list[Mapping[str, Any]]:
        iterations = self._counts.get("iterations")
        return [
            each
            for each in (iterations if isinstance(iterations, list) else ())
            if isinstance(each, Mapping) and each.get("type") == kind
        ]


def read_usage(counts: Any) -> Usage | None:
    """Convert the usage object of a complete message."""
    usage = AnthropicUsage()
    usage.update(counts)
    return usage.to_usage()


def _model_usage(iteration: Mapping[str, Any]) -> ModelUsage | None:
    """Return the usage of an advisor; None if it has none or no model."""
    usage, model = _to_usage([iteration]), iteration.get("model")
    return ModelUsage(model, usage) if usage is not None and isinstance(model, str) and model else None


def _to_usage(parts: Sequence[Mapping[str, Any]]) -> Usage | None:
    """Return the sum of counts; None if nothing was counted."""
    uncached, output_tokens = _count(parts, "input_tokens"), _count(parts, "output_tokens")
    cache_read = _count(parts, "cache_read_input_tokens")
    cache_write = _sum(map(_cache_write_tokens, parts))
    if not (uncached or output_tokens or cache_read or cache_write):
        return None
    input_tokens = None if uncached is None else uncached + (cache_read or 0) + (cache_write or 0)
    is_known = input_tokens is not None and output_tokens is not None
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=(input_tokens or 0) + (output_tokens or 0) if is_known else None,
        reasoning_tokens=_nested_count(parts[:1], "output_tokens_details", field="thinking_tokens"),
        cached_input_tokens=cache_read,
        cache_write_tokens=cache_write,
        hour_cache_write_tokens=_nested_count(parts, "cache_creation", field="ephemeral_1h_input_tokens")
        or None,
        web_searches=_nested_count(parts, "server_tool_use", field="web_search_requests") or None,
    )


def _count(parts: Iterable[Mapping[str, Any]], name: str) -> int | None:
    return _sum(_as_count(part.get(name)) for part in parts)


def _nested_count(parts: Iterable[Mapping[str, Any]], name: str, *, field: str) -> int | None:
    """Return a count within an object."""
    values = [part.get(name) for part in parts]
    return _sum(_as_count(value.get(field)) for value in values if isinstance(value, Mapping))


def _cache_write_tokens(counts: Mapping[str, Any]) -> int | None:
    """Return the tokens written into the cache: their total, or the sum over lifetimes."""
    total, by_lifetime = _as_count(counts.get("cache_creation_input_tokens")), counts.get("cache_creation")
    if total is not None or not isinstance(by_lifetime, Mapping):
        return total
    return _sum(map(_as_count, by_lifetime.values()))


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are known; None if none is."""
    found = [count for count in counts if count is not None]
    return sum(found) if found else None


def _as_count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
