"""Parses moments and spans of time as people write them: `7d`, `90min`, `2026-11-22`, `2026-11-22T10:30`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from dragoman.errors import BadRequest

SPAN_PATTERN = re.compile(r"(\d{1,5})\s*(s|min|h|d|w)")
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
SPAN_HINT = "write a span like 90min, 24h, 7d or 4w"
MOMENT_HINT = f"{SPAN_HINT}; a moment like 2026-11-22 or 2026-11-22T10:30Z, in UTC without an offset"


def parse_span(text: str, *, field: str | None = None) -> float:
    """Parse a span of time, such as `90min`, into seconds. BadRequest."""
    match = SPAN_PATTERN.fullmatch(text.strip())
    if match is None:
        raise BadRequest(f"{text!r} is not a valid span of time", field=field, hint=SPAN_HINT)
    return float(int(match[1]) * UNITS[match[2]])


def parse_past(text: str, now: float, *, field: str | None = None) -> float:
    """Parse a moment, or a span before `now`, into unix seconds. BadRequest."""
    return _parse_moment(text, now, sign=-1, field=field)


def parse_future(text: str, now: float, *, field: str | None = None) -> float:
    """Parse a moment, or a span after `now`, into unix seconds. BadRequest."""
    return _parse_moment(text, now, sign=1, field=field)


def _parse_moment(text: str, now: float, *, sign: int, field: str | None) -> float:
    if SPAN_PATTERN.fullmatch(text.strip()):
        return now + sign * parse_span(text)
    plain = text.strip()
    try:  # a query string decodes the `+` of an offset to a space
        moment = datetime.fromisoformat(plain.replace(" ", "+") if "T" in plain else plain)
    except ValueError:
        raise BadRequest(f"{text!r} is not a valid moment", field=field, hint=MOMENT_HINT) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
