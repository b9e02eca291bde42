"""Query parameters and field names that several endpoints share."""

from __future__ import annotations

from dragoman.errors import BadRequest
from dragoman.json_decoding import parse_digits


def parse_limit(text: str, *, maximum: int, field: str = "limit") -> int:
    """Parse `?limit`, or another field, a number from 1 to `maximum`. BadRequest."""
    number = parse_digits(text)
    if number is None or not 1 <= number <= maximum:
        raise BadRequest(f"{field} must be a number from 1 to {maximum}, not {text[:20]!r}", field=field)
    return number


def to_camel_case(name: str) -> str:
    """Return a snake_case name as JSON spells it."""
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)
