"""Quirks: in what one OpenAI-compatible vendor departs from the others, where guessing would be wrong."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

from dragoman.wire.thinking import Mode

# ---- Names and ids as OpenAI-compatible servers take them.

CallIds = Literal["plain", "any", "nine"]

_PLAIN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


def tool_name(name: str) -> str:
    """The name with an underscore for every character that the wire forbids, at most 64 long."""
    return _STRANGE.sub("_", name)[:64] or "unknown"


def call_id(given: str, kind: CallIds) -> str:
    """The id if it may be sent as it is, else a stand-in that is always the same for it."""
    if kind == "any" and given:
        return given
    fitting = _NINE if kind == "nine" else _PLAIN
    if fitting.fullmatch(given):
        return given
    digest = hashlib.sha256(given.encode(errors="replace")).hexdigest()
    return digest[:9] if kind == "nine" else f"call_{digest[:24]}"


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor's habits. The default fits OpenAI and most others; decoding copes with the rest by itself."""

    reasoning_field: Literal["none", "reasoning_content", "reasoning"] = "none"
    """Under which name reasoning goes back with the tool calls that it led to."""
    include_usage: bool = True
    """Ask for usage with `stream_options`."""
    lenient_finish: bool = False
    """Take `[DONE]` for a finish: for servers that never send a finish reason."""
    thinking: Mode = "auto"
    """How `<think>` tags in the text are read."""
    call_ids: CallIds = "plain"
    """Which tool-call ids may go back: [a-zA-Z0-9_-] up to 64, any, or Mistral's nine letters and digits."""
    system_role: Literal["system", "developer"] = "system"
    """The role of instructions."""
    knows: frozenset[str] = frozenset({"top_k"})
    """Which of `top_k` and `thinking` it takes; the latter becomes `reasoning_effort` for others."""
    completion_limit: bool = False
    """Reasoning models refuse `max_tokens` and want `max_completion_tokens` (OpenAI itself, Azure)."""
