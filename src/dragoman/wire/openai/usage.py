"""Convert a chat.completions `usage` object to Usage.

Source: wire notes on providers, §4.4. Absent counts stay unknown; an object without counts gives None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.events import Usage


class OpenAIPromptDetails(msgspec.Struct, gc=False):
    """The cached part of the prompt."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None


class OpenAICompletionDetails(msgspec.Struct, gc=False):
    """The reasoning part of the answer."""

    reasoning_tokens: int | None = None


class OpenAIUsage(msgspec.Struct, gc=False):
    """A usage object in OpenAI's format; the last fields are those of other vendors."""

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
    """The fast path of `read_usage`; None if that has to handle the object."""
    total = usage.prompt_tokens + usage.completion_tokens
    vendor_counts = (
        usage.prompt_cache_hit_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
    )
    if total != usage.total_tokens or not total or min(usage.prompt_tokens, usage.completion_tokens) < 0:
        return None
    if vendor_counts != _NO_VENDOR_FIELDS:
        return None
    prompt_details = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    completion_details = usage.completion_tokens_details
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=total,
        reasoning_tokens=completion_details.reasoning_tokens if completion_details is not None else None,
        cached_input_tokens=prompt_details.cached_tokens,
        cache_write_tokens=_first(prompt_details.cache_write_tokens, prompt_details.cache_creation_tokens),
    )


def has_counts(value: Any) -> bool:
    """Whether a usage object has any count."""
    if not isinstance(value, dict):
        return False
    return bool(
        _token_count(value, "prompt_tokens", "input_tokens")
        or _token_count(value, "completion_tokens", "output_tokens")
        or _token_count(value, "total_tokens")
    )


def read_usage(value: Any, *, model: str = "") -> Usage | None:
    """Convert a usage object; `model` is the answering model, since two families count differently."""
    if not isinstance(value, dict):
        return None
    input_tokens = _token_count(value, "prompt_tokens", "input_tokens")
    output_tokens = _token_count(value, "completion_tokens", "output_tokens")
    total = _token_count(value, "total_tokens")
    if not (input_tokens or output_tokens or total):
        return None
    prompt_details, completion_details = (
        _details(value, "prompt", "input"),
        _details(value, "completion", "output"),
    )
    reasoning = _first(
        _token_count(completion_details, "reasoning_tokens"), _token_count(value, "reasoning_tokens")
    )
    cache_read = _token_count(value, "cache_read_input_tokens")
    cache_write = _token_count(value, "cache_creation_input_tokens")
    if input_tokens is not None and output_tokens is not None:
        gap = (total or 0) - input_tokens - output_tokens
        cache_tokens = (cache_read or 0) + (cache_write or 0)
        if cache_tokens and (gap == cache_tokens or input_tokens < cache_tokens):
            input_tokens += cache_tokens  # as in Anthropic's usage: the prompt excludes cached tokens
        elif gap > 0 and (gap == reasoning or _omits_reasoning(model)):
            output_tokens += gap
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=total
        if input_tokens is None or output_tokens is None
        else max(total or 0, input_tokens + output_tokens),
        reasoning_tokens=reasoning,
        cached_input_tokens=_first(
            _token_count(prompt_details, "cached_tokens"),
            _token_count(value, "prompt_cache_hit_tokens", "cached_tokens"),
            cache_read,
        ),
        cache_write_tokens=_first(
            _token_count(prompt_details, "cache_write_tokens", "cache_creation_tokens"), cache_write
        ),
    )


def _omits_reasoning(model: str) -> bool:
    """Whether reasoning tokens are only in the total, as for Gemini and xAI."""
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
