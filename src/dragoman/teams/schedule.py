"""When triggers fire: cron expressions, what was missed, and windows. Plain functions of a time.

Times are unix seconds. Expressions follow Debian's cron where clocks change: a job of an hour that is left
out fires right after the change, one of an hour that occurs twice fires once; what fires every hour or more
often goes by real time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import islice
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from dragoman.errors import BadRequest

MissedPolicy: TypeAlias = Literal["skip", "once", "all"]

GRACE = 60.0  # seconds; an occurrence that is later than this was missed
MAX_CATCH_UP = 100  # occurrences that `missed: all` fires at once
MAX_COUNTED = 10_000  # missed occurrences that are counted
MAX_WINDOW = timedelta(days=1)
MINUTE = timedelta(minutes=1)
MAX_CACHED_WINDOWS = 1_000
MAX_EXPRESSION = 200
ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}")


class Due(msgspec.Struct, frozen=True):
    """An occurrence to fire: when it was due, and how many were missed with it or before it."""

    at: float
    missed_count: int = 0


class Window(msgspec.Struct, frozen=True):
    """A stretch of time within which a trigger ticks: its beginning and end."""

    start: float
    end: float


WINDOWS: dict[tuple[str, str | None], Window] = {}
"""The window of each expression and zone that was computed last."""


def find_zone(name: str) -> ZoneInfo:
    """Return an IANA time zone. Raises BadRequest."""
    try:
        if not ZONE_NAME.fullmatch(name):
            raise ValueError(name)
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: the name of a folder of zones
        raise BadRequest(
            f"{name[:60]!r} is not a time zone", field="zone", hint="use an IANA name such as Europe/Berlin"
        ) from None


def check_expression(expression: str, *, field: str = "cron") -> str:
    """Return a cron expression of five fields that occurs at some time. Raises BadRequest."""
    hint = "minute, hour, day of the month, month, day of the week: `30 2 * * mon-fri`"
    if len(expression) > MAX_EXPRESSION or len(expression.split()) != 5:
        raise BadRequest(f"{expression[:60]!r} is not a cron expression of 5 fields", field=field, hint=hint)
    try:
        found = next(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        text = f"{expression[:60]!r} is not a cron expression: {error}"
        raise BadRequest(text, field=field, hint=hint) from None
    if found is None:
        raise BadRequest(f"{expression[:60]!r} never occurs", field=field, hint=hint)
    return " ".join(expression.split())


def occurrences_after(expression: str, after: float, *, zone: ZoneInfo) -> Iterator[float]:
    """Yield the times of an expression after a time."""
    # CronSim counts in whole minutes and starts after the given one, so the time itself may come first.
    for found in CronSim(expression, datetime.fromtimestamp(after, zone)):
        if found.timestamp() > after:
            yield found.timestamp()


def next_occurrence(expression: str, after: float, *, zone: ZoneInfo) -> float | None:
    """Return the first time of an expression after a time; None if there is none within 50 years."""
    return next(occurrences_after(expression, after, zone=zone), None)


def latest_occurrences(expression: str, until: float, *, zone: ZoneInfo, count: int) -> Sequence[float]:
    """Return the last times of an expression up to a time, oldest first."""
    behind = datetime.fromtimestamp(until, zone) + MINUTE
    times = (found.timestamp() for found in CronSim(expression, behind, reverse=True))
    return list(islice((at for at in times if at <= until), count))[::-1]


def due_occurrences(
    expression: str, first: float, *, now: float, zone: ZoneInfo, missed: MissedPolicy
) -> Sequence[Due]:
    """Return the occurrences since `first` that fire now, by the policy for missed ones, oldest first."""
    if first > now:
        return ()
    times, count = deque([first], maxlen=MAX_CATCH_UP), 1
    for at in occurrences_after(expression, first, zone=zone):
        if at > now or count >= MAX_COUNTED:
            break
        count += 1
        times.append(at)
    if count >= MAX_COUNTED:
        times.extend(latest_occurrences(expression, now, zone=zone, count=MAX_CATCH_UP))
    is_late = now - times[-1] > GRACE
    match missed:
        case "all":
            return [Due(at, int(now - at > GRACE)) for at in times]
        case "once":
            return [Due(times[-1], count if is_late else count - 1)]
        case "skip":
            return [] if is_late else [Due(times[-1], count - 1)]


def occurrence_key(at: float) -> str:
    """Return the name of the occurrence of a time: the same at every host."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def window_at(expression: str, at: float, *, zone: ZoneInfo) -> Window | None:
    """Return the window that a time is in; None if it is in none.

    An expression matches the minutes of its windows, which begin and end where minutes stop following each
    other. One that continues for more than a day is cut at midnight.
    """
    found = WINDOWS.get((expression, zone.key))
    if found is None or not found.start <= at < found.end:
        found = find_window(expression, at, zone=zone)
        if found is not None:
            if len(WINDOWS) >= MAX_CACHED_WINDOWS:
                WINDOWS.clear()
            WINDOWS[expression, zone.key] = found
    return found


def find_window(expression: str, at: float, *, zone: ZoneInfo) -> Window | None:
    """Compute what `window_at` returns; a window of a day takes about two milliseconds."""
    minute = datetime.fromtimestamp(at, zone).replace(second=0, microsecond=0)
    start = window_edge(expression, minute, is_start=True)
    if start is None:
        return None
    end = window_edge(expression, minute, is_start=False) or minute
    if end.timestamp() - start.timestamp() >= MAX_WINDOW.total_seconds():
        return day_of(minute)
    return Window(start.timestamp(), end.timestamp() + 60)


def day_of(moment: datetime) -> Window:
    """Return the day of a time, of 23 to 25 hours where clocks change, also at midnight."""
    first = moment.date()
    edges = (datetime.combine(each, time.min, moment.tzinfo) for each in (first, first + timedelta(days=1)))
    start, end = (each.timestamp() for each in edges)
    return Window(start, end)


def window_edge(expression: str, minute: datetime, *, is_start: bool) -> datetime | None:
    """Return the first or last of the matching minutes in a row around one; None if it does not match."""
    step, limit = -MINUTE if is_start else MINUTE, minute.astimezone(UTC)
    edge, following = None, limit
    times = occurrences_from(expression, minute, is_reverse=is_start)
    is_hourly = len(times.minutes) == 60  # where one minute of an hour matches, the others do
    while abs(following - limit) <= MAX_WINDOW and (found := next(times, None)) is not None:
        if found.astimezone(UTC) != following:
            break
        edge = edge_of_hour(found, is_start=is_start) if is_hourly else found
        following = edge.astimezone(UTC) + step
        if edge != found:
            times = occurrences_from(expression, following.astimezone(minute.tzinfo), is_reverse=is_start)
    return edge


def occurrences_from(expression: str, minute: datetime, *, is_reverse: bool) -> CronSim:
    """Return the times of an expression from a minute on, that included."""
    beside = minute.astimezone(UTC) + (MINUTE if is_reverse else -MINUTE)
    return CronSim(expression, beside.astimezone(minute.tzinfo), reverse=is_reverse)


def edge_of_hour(minute: datetime, *, is_start: bool) -> datetime:
    """Return the first or last minute of an hour; the minute itself where clocks change in between."""
    edge = minute.replace(minute=0 if is_start else 59)
    return edge if edge.utcoffset() == minute.utcoffset() else minute


def next_tick(window: Window, after: float, *, tick: float) -> float | None:
    """Return the first time after a time at which a window ticks; None when it is over by then."""
    count = max(0, int((after - window.start) // tick) + 1)
    at = window.start + count * tick
    return at if at < window.end else None


def tick_key(window: Window, at: float, *, tick: float) -> str:
    """Return the name of the tick of a time."""
    return f"{occurrence_key(window.start)}#{int((at - window.start) // tick)}"
