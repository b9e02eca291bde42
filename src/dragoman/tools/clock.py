"""The clock: what time it is, and what time that is elsewhere."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Annotated, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import Field

from dragoman.errors import BadRequest
from dragoman.operations.decorator import from_function
from dragoman.operations.operation import Operation

TimezoneName = Annotated[str, Field(examples=["UTC", "Europe/Berlin"], max_length=64)]


class ClockTime(TypedDict):
    """A point in time, as a clock in one place shows it. `unix` is in seconds."""

    time: str
    timezone: str
    utc_offset: str
    weekday: str
    unix: int


def operations(clock: Callable[[], float] = time.time) -> list[Operation]:
    """`time.now` and `time.convert`; `clock` gives unix seconds."""

    def now(timezone: TimezoneName = "UTC") -> ClockTime:
        """Tell the current date and time in a time zone.

        Args:
            timezone: The IANA name of the time zone.
        """
        return clock_time(datetime.fromtimestamp(clock(), UTC).astimezone(get_timezone(timezone)))

    return [from_function(each, "time", effect="read", timeout=5) for each in (now, convert)]


def convert(time: str, to_timezone: TimezoneName, *, from_timezone: TimezoneName = "UTC") -> ClockTime:
    """Convert a date and time from one time zone to another.

    Args:
        time: Date and time in ISO 8601, like 2026-03-29T14:30. If it has an offset of its own, that counts.
        to_timezone: The IANA name of the time zone to convert to.
        from_timezone: The IANA name of the time zone that the time is in.
    """
    try:
        given = datetime.fromisoformat(time)
        here = given if given.tzinfo is not None else given.replace(tzinfo=get_timezone(from_timezone))
        there = here.astimezone(get_timezone(to_timezone))
        back = there.astimezone(here.tzinfo)
    except (ValueError, OverflowError):
        raise BadRequest(f"{time[:80]!r} is no date and time like 2026-03-29T14:30", field="time") from None
    if back.replace(tzinfo=None) != here.replace(tzinfo=None):
        raise BadRequest(f"{time} is skipped in {from_timezone}: clocks go forward there then", field="time")
    return clock_time(there)


def clock_time(value: datetime) -> ClockTime:
    """What a clock there shows."""
    return ClockTime(
        time=value.isoformat(timespec="seconds"),
        timezone=str(value.tzinfo),
        utc_offset=value.strftime("%z"),
        weekday=value.strftime("%A"),
        unix=int(value.timestamp()),
    )


def get_timezone(name: str) -> tzinfo:
    """The time zone of an IANA name; BadRequest suggests one when there is none."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = difflib.get_close_matches(name, available_timezones(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "names are like Europe/Berlin"
        raise BadRequest(f"there is no time zone {name!r}", field="timezone", hint=hint) from None
