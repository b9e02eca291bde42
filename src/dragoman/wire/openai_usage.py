"""Usage: what a chat.completions `usage` object counts, in the hub's words.

Source: wire notes on providers, §4.4. Absent stays unknown; an object that counts nothing is no usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.events import Usage


def counts(value: Any) -> bool:
    """Whether a usage object counts anything."""
    if not isinstance(value, dict):
        return False
    return bool(
        _count(value, "prompt_tokens", "input_tokens")
        or _count(value, "completion_tokens", "output_tokens")
        or _count(value, "total_tokens")
    )


def read_usage(value: Any, *, model: str = "") -> Usage | None:
    """The usage in a JSON value; `model` is the one that answered: two families count in their own way."""
    if not isinstance(value, dict):
        return None
    prompt = _count(value, "prompt_tokens", "input_tokens")
    completion = _count(value, "completion_tokens", "output_tokens")
    total = _count(value, "total_tokens")
    if not (prompt or completion or total):
        return None
    prompted, completed = _details(value, "prompt", "input"), _details(value, "completion", "output")
    reasoning = _first(_count(completed, "reasoning_tokens"), _count(value, "reasoning_tokens"))
    read = _count(value, "cache_read_input_tokens")
    written = _count(value, "cache_creation_input_tokens")
    if prompt is not None and completion is not None:
        gap = (total or 0) - prompt - completion
        beside = (read or 0) + (written or 0)
        if beside and (gap == beside or prompt < beside):
            prompt += beside  # Anthropic's way: the cached part is not in the prompt
        elif gap > 0 and (gap == reasoning or _hides_thinking(model)):
            completion += gap
    return Usage(
        input_tokens=prompt,
        output_tokens=completion,
        total_tokens=total if prompt is None or completion is None else max(total or 0, prompt + completion),
        reasoning_tokens=reasoning,
        cached_input_tokens=_first(
            _count(prompted, "cached_tokens"), _count(value, "prompt_cache_hit_tokens", "cached_tokens"), read
        ),
        cache_write_tokens=_first(_count(prompted, "cache_write_tokens", "cache_creation_tokens"), written),
    )


def _hides_thinking(model: str) -> bool:
    """Gemini's thinking, and xAI's, is in the total only."""
    name = model.lower()
    return "gemini" in name or "grok" in name


def _details(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        details = value.get(f"{name}_tokens_details")
        if isinstance(details, dict):
            return details
    return {}


def _count(value: Mapping[str, Any], *names: str) -> int | None:
    """The first of the fields that is a whole number of tokens."""
    for name in names:
        count = value.get(name)
        if type(count) is int and count >= 0:
            return count
        if (isinstance(count, float) and count.is_integer()) or (
            isinstance(count, str) and count.isdecimal()
        ):
            count = int(count)
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)
