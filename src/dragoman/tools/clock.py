"""`time.now` and `time.convert`: the current time and time zones."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Annotated, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import Field

from dragoman.errors import BadRequest
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.suggestions import find_similar_names

TimezoneName = Annotated[str, Field(examples=["UTC", "Europe/Berlin"], max_length=64)]


class ClockTime(TypedDict):
    """A point in time in one time zone. `unix` is in seconds."""

    time: str
    timezone: str
    utc_offset: str
    weekday: str
    unix: int


def operations(clock: Callable[[], float] = time.time) -> list[Operation]:
    """Return `time.now` and `time.convert`; `clock` returns unix seconds."""

    # async, because handing it to a thread would take longer than the function does
    async def now(timezone: TimezoneName = "UTC") -> ClockTime:
        """Get the current date and time in a time zone.

        Args:
            timezone: The IANA name of the time zone.
        """
        zone = get_timezone(timezone, field="timezone")
        return clock_time(datetime.fromtimestamp(clock(), UTC).astimezone(zone))

    return [from_function(function, "time", effect="read", timeout=5) for function in (now, convert)]


def convert(time: str, to_timezone: TimezoneName, *, from_timezone: TimezoneName = "UTC") -> ClockTime:
    """Convert a date and time from one time zone to another.

    Args:
        time: Date and time in ISO 8601, like 2026-03-29T14:30. If it includes an offset, that is used.
        to_timezone: The IANA name of the time zone to convert to.
        from_timezone: The IANA name of the time zone that the time is in.
    """
    try:
        parsed = datetime.fromisoformat(time)
        source = parsed
        if parsed.tzinfo is None:
            source = parsed.replace(tzinfo=get_timezone(from_timezone, field="from_timezone"))
        target = source.astimezone(get_timezone(to_timezone, field="to_timezone"))
        round_trip = target.astimezone(source.tzinfo)
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{time[:80]!r} is not a valid date and time; write it like 2026-03-29T14:30.", field="time"
        ) from None
    if round_trip.replace(tzinfo=None) != source.replace(tzinfo=None):
        raise BadRequest(f"{time} does not exist in {from_timezone}: clocks go forward then.", field="time")
    return clock_time(target)


def clock_time(value: datetime) -> ClockTime:
    """Return a point in time as its zone's clock shows it."""
    return ClockTime(
        time=value.isoformat(timespec="seconds"),
        timezone=str(value.tzinfo),
        utc_offset=value.strftime("%z"),
        weekday=value.strftime("%A"),
        unix=int(value.timestamp()),
    )


def get_timezone(name: str, *, field: str) -> tzinfo:
    """Return the time zone of an IANA name. Raises BadRequest for the field, with suggestions."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        similar = find_similar_names(name, sorted(available_timezones()), limit=3)
        hint = f"Did you mean {' or '.join(similar)}?" if similar else "Names look like Europe/Berlin."
        raise BadRequest(f"There is no time zone {name!r}.", field=field, hint=hint) from None
