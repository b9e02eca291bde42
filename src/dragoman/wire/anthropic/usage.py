"""Usage: what Anthropic's `usage` objects count, in the hub's words.

Source: wire notes on providers, §6.3 and §6.5. Counts are totals: a later one takes the place of an earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.events import Usage


class AnthropicUsage:
    """The counts of one answer as they are told."""

    def __init__(self) -> None:
        self._counts: dict[str, Any] = {}

    def start(self, usage: Any, *, complete: bool) -> None:
        """Take those of the message's start. Its count of the output is made up unless it is `whole`."""
        self.update(usage)
        if not complete:
            self._counts.pop("output_tokens", None)

    def update(self, usage: Any) -> None:
        """Take later ones; what is absent stays as it was."""
        if isinstance(usage, Mapping):
            self._counts.update({name: value for name, value in usage.items() if value is not None})

    def to_usage(self) -> Usage | None:
        """All that was told; None when nothing was counted."""
        fresh, output = self._count("input_tokens"), self._count("output_tokens")
        read, written = self._count("cache_read_input_tokens"), self._cache_write_tokens()
        if not (fresh or output or read or written):
            return None
        whole = None if fresh is None else fresh + (read or 0) + (written or 0)
        details = self._counts.get("output_tokens_details")
        return Usage(
            input_tokens=whole,
            output_tokens=output,
            total_tokens=None if whole is None or output is None else whole + output,
            reasoning_tokens=_as_count(details.get("thinking_tokens"))
            if isinstance(details, Mapping)
            else None,
            cached_input_tokens=read,
            cache_write_tokens=written,
        )

    def _count(self, name: str) -> int | None:
        return _as_count(self._counts.get(name))

    def _cache_write_tokens(self) -> int | None:
        """The tokens written into the cache: their sum, or what they are by lifetime."""
        whole, parts = self._count("cache_creation_input_tokens"), self._counts.get("cache_creation")
        if whole is not None or not isinstance(parts, Mapping):
            return whole
        counts = [count for value in parts.values() if (count := _as_count(value)) is not None]
        return sum(counts) if counts else None


def _as_count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
