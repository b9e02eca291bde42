"""Usage: what a chat.completions `usage` object counts, in the hub's words.

Source: wire notes on providers, §4.4. Absent stays unknown; an object that counts nothing is no usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.events import Usage


class OpenAIPromptDetails(msgspec.Struct, gc=False):
    """What of the prompt was cached."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None


class OpenAICompletionDetails(msgspec.Struct, gc=False):
    """What of the answer was thought."""

    reasoning_tokens: int | None = None


class OpenAIUsage(msgspec.Struct, gc=False):
    """A usage object as OpenAI writes it; the fields at the end are those in which other vendors differ."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: OpenAIPromptDetails | None = None
    completion_tokens_details: OpenAICompletionDetails | None = None
    prompt_cache_hit_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cached_tokens: Any = None
    reasoning_tokens: Any = None


def read_standard_usage(usage: OpenAIUsage) -> Usage | None:
    """What `read_usage` gives, at once; None where that has to look closer."""
    total = usage.prompt_tokens + usage.completion_tokens
    others = (
        usage.prompt_cache_hit_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
    )
    if total != usage.total_tokens or not total or min(usage.prompt_tokens, usage.completion_tokens) < 0:
        return None
    if others != _NO_VENDOR_FIELDS:
        return None
    prompted = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    completed = usage.completion_tokens_details
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=total,
        reasoning_tokens=completed.reasoning_tokens if completed is not None else None,
        cached_input_tokens=prompted.cached_tokens,
        cache_write_tokens=_first(prompted.cache_write_tokens, prompted.cache_creation_tokens),
    )


def has_counts(value: Any) -> bool:
    """Whether a usage object counts anything."""
    if not isinstance(value, dict):
        return False
    return bool(
        _token_count(value, "prompt_tokens", "input_tokens")
        or _token_count(value, "completion_tokens", "output_tokens")
        or _token_count(value, "total_tokens")
    )


def read_usage(value: Any, *, model: str = "") -> Usage | None:
    """The usage in a JSON value; `model` is the one that answered: two families count in their own way."""
    if not isinstance(value, dict):
        return None
    prompt = _token_count(value, "prompt_tokens", "input_tokens")
    completion = _token_count(value, "completion_tokens", "output_tokens")
    total = _token_count(value, "total_tokens")
    if not (prompt or completion or total):
        return None
    prompted, completed = _details(value, "prompt", "input"), _details(value, "completion", "output")
    reasoning = _first(_token_count(completed, "reasoning_tokens"), _token_count(value, "reasoning_tokens"))
    read = _token_count(value, "cache_read_input_tokens")
    written = _token_count(value, "cache_creation_input_tokens")
    if prompt is not None and completion is not None:
        gap = (total or 0) - prompt - completion
        beside = (read or 0) + (written or 0)
        if beside and (gap == beside or prompt < beside):
            prompt += beside  # Anthropic's way: the cached part is not in the prompt
        elif gap > 0 and (gap == reasoning or _omits_reasoning(model)):
            completion += gap
    return Usage(
        input_tokens=prompt,
        output_tokens=completion,
        total_tokens=total if prompt is None or completion is None else max(total or 0, prompt + completion),
        reasoning_tokens=reasoning,
        cached_input_tokens=_first(
            _token_count(prompted, "cached_tokens"),
            _token_count(value, "prompt_cache_hit_tokens", "cached_tokens"),
            read,
        ),
        cache_write_tokens=_first(
            _token_count(prompted, "cache_write_tokens", "cache_creation_tokens"), written
        ),
    )


def _omits_reasoning(model: str) -> bool:
    """Gemini's thinking, and xAI's, is in the total only."""
    name = model.lower()
    return "gemini" in name or "grok" in name


def _details(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        details = value.get(f"{name}_tokens_details")
        if isinstance(details, dict):
            return details
    return {}


def _token_count(value: Mapping[str, Any], *names: str) -> int | None:
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


_NO_VENDOR_FIELDS = (None,) * 5
_NO_PROMPT_DETAILS = OpenAIPromptDetails()
