"""Moments and spans as people write them: `7d`, `90min`, `2026-11-22`, `2026-11-22T10:30`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from dragoman.errors import BadRequest

SPAN = re.compile(r"(\d{1,5})\s*(s|min|h|d|w)")
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
LIKE_SPAN = "a span reads like 90min, 24h, 7d or 4w"
LIKE_MOMENT = f"{LIKE_SPAN}; a moment like 2026-11-22 or 2026-11-22T10:30Z, in UTC unless it says otherwise"


def read_span(text: str, *, field: str | None = None) -> float:
    """The span in seconds. BadRequest."""
    found = SPAN.fullmatch(text.strip())
    if found is None:
        raise BadRequest(f"{text!r} is no span of time", field=field, hint=LIKE_SPAN)
    return float(int(found[1]) * UNITS[found[2]])


def read_past(text: str, now: float, *, field: str | None = None) -> float:
    """A moment in unix seconds; a span is that long ago. BadRequest."""
    return _read(text, now, sign=-1, field=field)


def read_future(text: str, now: float, *, field: str | None = None) -> float:
    """A moment in unix seconds; a span is that far ahead. BadRequest."""
    return _read(text, now, sign=1, field=field)


def _read(text: str, now: float, *, sign: int, field: str | None) -> float:
    if SPAN.fullmatch(text.strip()):
        return now + sign * read_span(text)
    plain = text.strip()
    try:  # in a query, the `+` of an offset stands for a blank
        moment = datetime.fromisoformat(plain.replace(" ", "+") if "T" in plain else plain)
    except ValueError:
        raise BadRequest(f"{text!r} is no moment", field=field, hint=LIKE_MOMENT) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
