"""Quirks: in what one OpenAI-compatible vendor departs from the others, where guessing would be wrong."""

from __future__ import annotations

from typing import Literal

import msgspec

from dragoman.wire.openai_names import CallIds
from dragoman.wire.thinking import Mode


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
