"""Convert Anthropic's `usage` objects to Usage.

Counts are totals: a later one replaces an earlier. Source: wire notes on providers, §6.3 and §6.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        """Return the usage; None if nothing was counted.

        The counts of a message leave out its compaction, which is paid for as well.
        """
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

    def _parts(self) -> list[Mapping[str, Any]]:
        """The counts of the message, and those of its compactions."""
        iterations = self._counts.get("iterations")
        if not isinstance(iterations, list):
            return [self._counts]
        compactions = [each for each in iterations if _is_compaction(each)]
        return [self._counts, *compactions]

    def _count(self, name: str) -> int | None:
        return _sum(_as_count(part.get(name)) for part in self._parts())

    def _nested_count(self, name: str, field: str) -> int | None:
        """A count within an object; None also for zero, which has no price."""
        values = [part.get(name) for part in self._parts()]
        return _sum(_as_count(value.get(field)) for value in values if isinstance(value, Mapping)) or None

    def _cache_write_tokens(self) -> int | None:
        return _sum(map(_cache_write_tokens, self._parts()))


def read_usage(counts: Any) -> Usage | None:
    """Convert the usage object of a complete message."""
    usage = AnthropicUsage()
    usage.update(counts)
    return usage.to_usage()


def _is_compaction(iteration: Any) -> bool:
    return isinstance(iteration, Mapping) and iteration.get("type") == "compaction"


def _cache_write_tokens(counts: Mapping[str, Any]) -> int | None:
    """The tokens written into the cache: their total, or the sum over lifetimes."""
    total, by_lifetime = _as_count(counts.get("cache_creation_input_tokens")), counts.get("cache_creation")
    if total is not None or not isinstance(by_lifetime, Mapping):
        return total
    return _sum(map(_as_count, by_lifetime.values()))


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum of the counts that are known; None if none is."""
    found = [count for count in counts if count is not None]
    return sum(found) if found else None


def _as_count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
