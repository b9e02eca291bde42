"""Clean text: what others wrote, made safe to show to a model or in a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Control characters but tab and newline, soft hyphen, zero-width and bidi marks, surrogates, variation
# selectors and tags: nothing of it can be seen, so nothing of it may steer.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
MAX_DEPTH = 32


def sanitize_text(text: str, limit: int) -> str:
    """The text without characters that cannot be seen, cut to `limit` characters; the cut shows as `…`."""
    seen = INVISIBLE.sub("", text[: 2 * limit]).strip()
    return seen if len(seen) <= limit else seen[: limit - 1].rstrip() + "…"


def sanitize_schema(schema: Mapping[str, Any], *, limit: int = 1_000) -> dict[str, Any]:
    """A copy of a JSON Schema whose titles and descriptions are clean; its rules stay as they are."""
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
