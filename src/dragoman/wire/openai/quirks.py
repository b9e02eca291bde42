"""Differences between OpenAI-compatible vendors that cannot be detected."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from dragoman.wire.think_tags import ThinkTagMode
from dragoman.wire.tool_calls import DistinctIds
from dragoman.wire.tool_names import OPENAI_LENGTH, fit_tool_name

CallIdFormat = Literal["plain", "any", "nine"]


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor's differences. The default fits OpenAI and most others; decoding detects the rest."""

    reasoning_field: Literal["none", "reasoning_content", "reasoning"] = "none"
    """The field in which reasoning is sent back with its tool calls."""
    include_usage: bool = True
    """Ask for usage with `stream_options`."""
    lenient_finish: bool = False
    """Treat `[DONE]` as a finish: for servers that never send a finish reason."""
    think_tags: ThinkTagMode = "auto"
    """How `<think>` tags in the text are handled."""
    call_id_format: CallIdFormat = "plain"
    """The allowed tool call ids: up to 64 of [a-zA-Z0-9_-], any, or Mistral's nine letters and digits."""
    system_role: Literal["system", "developer"] = "system"
    """The role of instructions."""
    accepted_options: frozenset[str] = frozenset({"top_k"})
    """Which of `top_k` and `thinking` the server accepts; else `thinking` becomes `reasoning_effort`."""
    uses_max_completion_tokens: bool = False
    """Reasoning models require `max_completion_tokens` instead of `max_tokens` (OpenAI itself, Azure)."""


# ---- Tool names and call ids

_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE_CHARACTER_ID = re.compile(r"[a-zA-Z0-9]{9}")


def safe_tool_name(name: str) -> str:
    """Replace each forbidden character of the name by an underscore; at most 64 characters."""
    if len(name) <= OPENAI_LENGTH and name.isascii() and name.isidentifier():  # as nearly all are
        return name
    return fit_tool_name(name, OPENAI_LENGTH)


def safe_call_id(call_id: str, id_format: CallIdFormat) -> str:
    """Return the id if it is allowed, otherwise a replacement that is always the same for it."""
    if id_format == "any" and call_id:
        return call_id
    fitting = _NINE_CHARACTER_ID if id_format == "nine" else _PLAIN_ID
    if fitting.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode(errors="replace")).hexdigest()
    return digest[:9] if id_format == "nine" else f"call_{digest[:24]}"


def distinct_call_ids(call_ids: Iterable[str], id_format: CallIdFormat) -> Iterator[str]:
    """Yield an allowed id for each call of a step: a repeated one gets a number, the same each time."""
    ids = DistinctIds()
    for call_id in call_ids:
        yield safe_call_id(ids.take(call_id), id_format)
