"""Sanitize untrusted text before a model or a person reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Control characters but tab and newline, soft hyphen, zero-width and bidi marks, surrogates, variation
# selectors and tags: invisible to people, so a way to hide instructions to a model.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
LINE_SEPARATORS = re.compile("[\u2028\u2029]")
MAX_DEPTH = 32


def sanitize_text(text: str, limit: int) -> str:
    """Return the text without invisible characters, cut to `limit` characters; a cut shows as `…`."""
    visible = INVISIBLE.sub("", text[: 2 * limit]).strip()
    return visible if len(visible) <= limit else visible[: limit - 1].rstrip() + "…"


def escape_invisible(json: str) -> str:
    """Return an equal JSON text with escapes for invisible characters and line separators.

    People and models then see what an untrusted text contains, and nothing in it can begin a new line.
    """
    for pattern in (INVISIBLE, LINE_SEPARATORS):
        json = pattern.sub(lambda match: escape_character(match[0]), json)
    return json


def escape_character(character: str) -> str:
    """Return the escape of a character in JSON: a surrogate pair for one beyond 16 bits."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def sanitize_schema(schema: Mapping[str, Any], *, limit: int = 1_000) -> dict[str, Any]:
    """Return a copy of a JSON Schema with sanitized titles and descriptions; its rules are unchanged."""
    return {key: _sanitize_value(key, value, limit=limit) for key, value in schema.items()}


def _sanitize_value(key: str, value: Any, *, limit: int, depth: int = MAX_DEPTH) -> Any:
    if isinstance(value, str):
        return sanitize_text(value, limit) if key in ("title", "description") else value
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        return {
            name: _sanitize_value(name, item, limit=limit, depth=depth - 1) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_sanitize_value("", item, limit=limit, depth=depth - 1) for item in value]
    return value
