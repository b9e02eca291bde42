"""Convert Anthropic's `usage` objects to Usage.

Counts are totals: a later one replaces an earlier. Source: wire notes on providers, §6.3 and §6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.events import Usage


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

    def to_usage(self) -> Usage | None:
        """Return the usage; None if nothing was counted."""
        uncached, output_tokens = self._count("input_tokens"), self._count("output_tokens")
        cache_read, cache_write = self._count("cache_read_input_tokens"), self._cache_write_tokens()
        if not (uncached or output_tokens or cache_read or cache_write):
            return None
        input_tokens = None if uncached is None else uncached + (cache_read or 0) + (cache_write or 0)
        details = self._counts.get("output_tokens_details")
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            total_tokens=None
            if input_tokens is None or output_tokens is None
            else input_tokens + output_tokens,
            reasoning_tokens=_as_count(details.get("thinking_tokens"))
            if isinstance(details, Mapping)
            else None,
            cached_input_tokens=cache_read,
            cache_write_tokens=cache_write,
            hour_cache_write_tokens=self._nested_count("cache_creation", "ephemeral_1h_input_tokens"),
            web_searches=self._nested_count("server_tool_use", "web_search_requests"),
        )

    def _count(self, name: str) -> int | None:
        return _as_count(self._counts.get(name))

    def _nested_count(self, name: str, field: str) -> int | None:
        """A count within an object; None also for zero, which has no price."""
        values = self._counts.get(name)
        return (_as_count(values.get(field)) if isinstance(values, Mapping) else None) or None

    def _cache_write_tokens(self) -> int | None:
        """The tokens written into the cache: their total, or the sum over lifetimes."""
        total, by_lifetime = self._count("cache_creation_input_tokens"), self._counts.get("cache_creation")
        if total is not None or not isinstance(by_lifetime, Mapping):
            return total
        counts = [count for value in by_lifetime.values() if (count := _as_count(value)) is not None]
        return sum(counts) if counts else None


def read_usage(counts: Any) -> Usage | None:
    """Convert the usage object of a complete message."""
    usage = AnthropicUsage()
    usage.update(counts)
    return usage.to_usage()


def _as_count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
