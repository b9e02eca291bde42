"""Tool names in the form that servers accept: letters, digits, `_` and `-`, up to a length."""

from __future__ import annotations

import re

OPENAI_LENGTH, ANTHROPIC_LENGTH = 64, 128
_FORBIDDEN_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]")


def fit_tool_name(name: str, length: int) -> str:
    """Replace each forbidden character of the name by an underscore; at most `length` characters."""
    return _FORBIDDEN_CHARACTERS.sub("_", name)[:length] or "unknown"
