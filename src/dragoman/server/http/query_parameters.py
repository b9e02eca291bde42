"""Query parameters and field names as several endpoints write them."""

from __future__ import annotations

import re

from dragoman.errors import BadRequest

DIGITS = re.compile("[0-9]{1,9}")  # `str.isdigit` accepts digits of other scripts


def parse_limit(text: str, *, maximum: int, field: str = "limit") -> int:
    """Parse `?limit`, or another field, a number from 1 to `maximum`. BadRequest."""
    if not DIGITS.fullmatch(text) or not 1 <= int(text) <= maximum:
        raise BadRequest(f"{field} must be a number from 1 to {maximum}, not {text[:20]!r}", field=field)
    return int(text)


def to_camel_case(name: str) -> str:
    """Return a snake_case name as JSON spells it."""
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)
