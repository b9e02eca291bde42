"""Convert a chat.completions `usage` object to Usage.

Source: wire notes on providers, §4.4. Absent counts stay unknown; an object without counts gives None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.events import Usage
from dragoman.json_decoding import MAX_DIGITS, parse_digits

_READ_FIELDS = (
    "cached_tokens",
    "prompt_cache_hit_tokens",
    "cache_read_input_tokens",
    "cache_read_tokens",
    "cached_input_tokens",
    "num_cached_tokens",
)
_PLAIN_FIELDS = {"prompt_tokens", "completion_tokens", "total_tokens"}
_WRITE_FIELDS = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")


class OpenAIPromptDetails(msgspec.Struct, gc=False):
    """The cached part of the prompt; the last field is that of other vendors."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_creation_input_tokens: Any = None


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
    prompt_cache_miss_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_tokens: Any = None
    cache_write_tokens: Any = None
    cache_creation_tokens: Any = None
    cached_input_tokens: Any = None
    num_cached_tokens: Any = None
    cached_tokens: Any = None
    reasoning_tokens: Any = None


def read_standard_usage(usage: OpenAIUsage) -> Usage | None:
    """The fast path of `read_usage`; None if that has to handle the object."""
    total = usage.prompt_tokens + usage.completion_tokens
    vendor_counts = (
        usage.prompt_cache_hit_tokens,
        usage.prompt_cache_miss_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_creation_tokens,
        usage.cached_input_tokens,
        usage.num_cached_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
    )
    if total != usage.total_tokens or not total or min(usage.prompt_tokens, usage.completion_tokens) < 0:
        return None
    if vendor_counts != _NO_VENDOR_FIELDS:
        return None
    prompt_details = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    completion_details = usage.completion_tokens_details
    read = prompt_details.cached_tokens
    written = _first(prompt_details.cache_write_tokens, prompt_details.cache_creation_tokens)
    if prompt_details.cache_creation_input_tokens is not None or not (
        0 <= min(read or 0, written or 0) <= (read or 0) + (written or 0) <= usage.prompt_tokens
    ):
        return None
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=total,
        reasoning_tokens=completion_details.reasoning_tokens if completion_details is not None else None,
        cached_input_tokens=read,
        cache_write_tokens=written,
    )


def has_counts(value: Any) -> bool:
    """Return whether a usage object has any count."""
    if not isinstance(value, dict):
        return False
    return bool(
        _token_count(value, "prompt_tokens", "input_tokens")
        or _token_count(value, "completion_tokens", "output_tokens")
        or _token_count(value, "total_tokens")
    )


def read_usage(value: Any, *, model: str = "") -> Usage | None:
    """Convert a usage object; `model` is the answering model, since two families count differently.

    The input includes what was read from the cache and written into it, also where a vendor counts that
    beside `prompt_tokens`.
    """
    if not isinstance(value, dict):
        return None
    if (plain := _read_plain_usage(value)) is not None:
        return plain
    input_tokens = _token_count(value, "prompt_tokens", "input_tokens")
    output_tokens = _token_count(value, "completion_tokens", "output_tokens")
    total = _token_count(value, "total_tokens")
    if not (input_tokens or output_tokens or total):
        return None
    completion_details = _details(value, "completion", "output")
    reasoning = _first(
        _token_count(completion_details, "reasoning_tokens"), _token_count(value, "reasoning_tokens")
    )
    cache = _read_cache(value)
    if input_tokens is None and total is not None and output_tokens is not None:
        input_tokens = max(0, total - output_tokens)
    if input_tokens is not None:
        gap = (total or 0) - input_tokens - (output_tokens or 0)
        if not gap:
            cache = cache.without_overlap(input_tokens)
        input_tokens += cache.outside(input_tokens, gap=gap, reasoning=reasoning or 0)
        gap = (total or 0) - input_tokens - (output_tokens or 0)
        if output_tokens is not None and gap > 0 and (gap == reasoning or _omits_reasoning(model)):
            output_tokens += gap
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=total
        if input_tokens is None or output_tokens is None
        else max(total or 0, input_tokens + output_tokens),
        reasoning_tokens=reasoning,
        cached_input_tokens=cache.read,
        cache_write_tokens=cache.written,
    )


def _read_plain_usage(value: Mapping[str, Any]) -> Usage | None:
    """Return the counts of an object that has nothing but three that agree; None for any other."""
    if value.keys() != _PLAIN_FIELDS:
        return None
    input_tokens, output_tokens, total = (
        value["prompt_tokens"],
        value["completion_tokens"],
        value["total_tokens"],
    )
    if not type(input_tokens) is type(output_tokens) is type(total) is int:
        return None
    if min(input_tokens, output_tokens) < 0 or not total or input_tokens + output_tokens != total:
        return None
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=total)


class CacheCounts(msgspec.Struct, frozen=True):
    """The cached tokens of a prompt. `missed` are those of DeepSeek; `separate`: named as Anthropic names
    counts that `input_tokens` excludes.
    """

    read: int | None
    written: int | None
    missed: int | None
    separate: bool

    def without_overlap(self, input_tokens: int) -> CacheCounts:
        """Return the counts without writes that are the reads: a prompt of Gemini that is written into the
        cache is read from it by the same request.
        """
        if self.written is None or self.written != self.read:
            return self
        is_overlap = self.written <= input_tokens < 2 * self.written
        return msgspec.structs.replace(self, written=None) if is_overlap else self

    def outside(self, input_tokens: int, *, gap: int, reasoning: int) -> int:
        """Return how many of them the input does not include; `gap` is by how much the total exceeds it."""
        read, written = self.read or 0, self.written or 0
        cached = read + written
        for count in (cached, read, written):
            if count and gap in (count, count + reasoning) and input_tokens + count >= cached:
                return count
        if self.separate or read > input_tokens:
            return cached
        if self.missed is not None and input_tokens < cached + self.missed:
            return cached + self.missed - input_tokens
        return written if cached > input_tokens else 0


def _read_cache(value: Mapping[str, Any]) -> CacheCounts:
    places = (_details(value, "prompt", "input"), value)
    read, written = _largest_count(places, _READ_FIELDS), _largest_count(places, _WRITE_FIELDS)
    anthropic_names = [
        name for name in ("cache_read_input_tokens", "cache_creation_input_tokens") if value.get(name)
    ]
    input_tokens = _token_count(value, "prompt_tokens", "input_tokens") or 0
    return CacheCounts(
        read=read,
        written=written,
        missed=_token_count(value, "prompt_cache_miss_tokens"),
        separate=bool(anthropic_names)
        and (
            (read or 0) + (written or 0) > input_tokens
            or ("prompt_tokens" not in value and "total_tokens" not in value)
        ),
    )


def _largest_count(places: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int | None:
    """Return the largest of the counts under these names: some vendors send zeros beside their own field."""
    counts = [_token_count(place, name) for place in places for name in names if name in place]
    return max((count for count in counts if count is not None), default=None)


def _omits_reasoning(model: str) -> bool:
    """Return whether reasoning tokens are only in the total, as for Gemini and xAI."""
    name = model.lower()
    return "gemini" in name or "grok" in name


def _details(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        details = value.get(f"{name}_tokens_details")
        if isinstance(details, dict):
            return details
    return {}


def _token_count(value: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of the fields that is a whole number of tokens."""
    for name in names:
        count = value.get(name)
        if type(count) is int and count >= 0:
            return count
        if isinstance(count, float) and count.is_integer():
            count = int(count)
        elif isinstance(count, str):
            count = parse_digits(count[:MAX_DIGITS])  # no count has more; one that cannot be is clamped
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None


def _first(*counts: int | None) -> int | None:
    for count in counts:
        if count is not None:
            return count
    return None


_NO_VENDOR_FIELDS = (None,) * 11
_NO_PROMPT_DETAILS = OpenAIPromptDetails()
