"""When triggers are due: time zones, clocks that change, what was missed, and windows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from dragoman.errors import BadRequest
from dragoman.teams import schedule
from dragoman.teams.schedule import (
    MAX_CATCH_UP,
    Due,
    MissedPolicy,
    Window,
    check_expression,
    due_occurrences,
    find_window,
    find_zone,
    next_tick,
    occurrence_key,
    occurrences_after,
    tick_key,
    window_at,
)
from tests.effort import rows

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("zone", "cron", "after", "expected"),
    [
        # An hour is left out: a job in it fires right after the change, and the next day as always.
        (
            BERLIN,
            "30 2 * * *",
            "2026-03-28T12:00+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
        ),
        # An hour occurs twice: a job in it fires once.
        (
            BERLIN,
            "30 2 * * *",
            "2026-10-24T12:00+02:00",
            ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
        ),
        # What fires every hour or more often goes by real time.
        (
            BERLIN,
            "*/30 * * * *",
            "2026-03-29T01:00+01:00",
            ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"],
        ),
        (
            BERLIN,
            "0 * * * *",
            "2026-10-25T01:30+02:00",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
        ),
        (
            NEW_YORK,
            "15 1 * * *",
            "2026-10-31T12:00-04:00",
            ["2026-11-01T01:15-04:00", "2026-11-02T01:15-05:00"],
        ),
        (
            NEW_YORK,
            "0 9 * * *",
            "2026-03-07T12:00-05:00",
            ["2026-03-08T09:00-04:00", "2026-03-09T09:00-04:00"],
        ),
        # Half an hour is left out.
        (
            LORD_HOWE,
            "15 2 * * *",
            "2026-10-03T12:00+10:30",
            ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"],
        ),
        ("Asia/Kolkata", "0 0 1 1 *", "2026-06-01T00:00+05:30", ["2027-01-01T00:00+05:30"]),
        ("UTC", "0 12 29 2 *", "2026-01-01T00:00+00:00", ["2028-02-29T12:00+00:00"]),
        ("UTC", "0 8 * * mon#1", "2026-11-23T00:00+00:00", ["2026-12-07T08:00+00:00"]),
    ],
)
def test_times_where_clocks_change(zone: str, cron: str, after: str, expected: list[str]) -> None:
    found = islice(occurrences_after(cron, at(after), zone=find_zone(zone)), len(expected))
    assert list(found) == [at(text) for text in expected]


@pytest.mark.parametrize(
    ("missed", "now", "expected"),
    [
        ("once", "2026-11-23T03:00:20+00:00", [("03:00", 0)]),
        ("skip", "2026-11-23T03:00:20+00:00", [("03:00", 0)]),
        ("all", "2026-11-23T03:00:20+00:00", [("03:00", 0)]),
        ("once", "2026-11-23T05:30:00+00:00", [("05:00", 3)]),
        ("skip", "2026-11-23T05:30:00+00:00", []),
        ("all", "2026-11-23T05:30:00+00:00", [("03:00", 1), ("04:00", 1), ("05:00", 1)]),
        ("once", "2026-11-23T05:00:10+00:00", [("05:00", 2)]),
        ("skip", "2026-11-23T05:00:10+00:00", [("05:00", 2)]),
        ("all", "2026-11-23T05:00:10+00:00", [("03:00", 1), ("04:00", 1), ("05:00", 0)]),
        ("once", "2026-11-23T02:59:59+00:00", []),
    ],
)
def test_what_was_missed_fires_by_its_policy(
    missed: MissedPolicy, now: str, expected: list[tuple[str, int]]
) -> None:
    first = at("2026-11-23T03:00+00:00")
    due = due_occurrences("0 * * * *", first, now=at(now), zone=find_zone("UTC"), missed=missed)
    assert list(due) == [Due(at(f"2026-11-23T{hour}+00:00"), count) for hour, count in expected]


def test_a_year_of_missed_minutes_is_bounded() -> None:
    first = at("2025-11-23T03:00+00:00")
    now = at("2026-11-23T03:00+00:00")
    due = due_occurrences("* * * * *", first, now=now, zone=find_zone("UTC"), missed="all")
    assert len(due) == MAX_CATCH_UP
    [once] = due_occurrences("* * * * *", first, now=now, zone=find_zone("UTC"), missed="once")
    assert (once.at, once.missed_count) == (now, 9_999)
    [on_time] = due_occurrences("* * * * *", first, now=now + 5, zone=find_zone("UTC"), missed="skip")
    assert on_time == Due(now, 9_999)


@pytest.mark.parametrize(
    ("during", "moment", "start", "end"),
    [
        ("* 9-17 * * mon-fri", "2026-10-26T09:00+01:00", "2026-10-26T09:00+01:00", "2026-10-26T18:00+01:00"),
        (
            "* 9-17 * * mon-fri",
            "2026-10-26T17:59:59+01:00",
            "2026-10-26T09:00+01:00",
            "2026-10-26T18:00+01:00",
        ),
        ("* 9-17 * * mon-fri", "2026-10-26T18:00+01:00", None, None),
        ("* 9-17 * * mon-fri", "2026-10-25T12:00+01:00", None, None),
        # Over midnight, and over a night with 23 or 25 hours.
        ("* 22-23,0-5 * * *", "2026-06-01T03:00+02:00", "2026-05-31T22:00+02:00", "2026-06-01T06:00+02:00"),
        ("* 22-23,0-5 * * *", "2026-03-29T04:30+02:00", "2026-03-28T22:00+01:00", "2026-03-29T06:00+02:00"),
        ("* 22-23,0-5 * * *", "2026-10-25T04:30+01:00", "2026-10-24T22:00+02:00", "2026-10-25T06:00+01:00"),
        # Without an end, it is cut at midnight.
        ("* * * * *", "2026-06-01T03:00+02:00", "2026-06-01T00:00+02:00", "2026-06-02T00:00+02:00"),
        ("* * * * sat,sun", "2026-06-06T12:00+02:00", "2026-06-06T00:00+02:00", "2026-06-07T00:00+02:00"),
        ("30 9 * * *", "2026-06-01T09:30:30+02:00", "2026-06-01T09:30+02:00", "2026-06-01T09:31+02:00"),
    ],
)
def test_the_window_of_a_time(during: str, moment: str, start: str | None, end: str | None) -> None:
    found = window_at(during, at(moment), zone=find_zone(BERLIN))
    again = find_window(during, at(moment), zone=find_zone(BERLIN))
    assert found == again
    assert (found and (found.start, found.end)) == (start and end and (at(start), at(end)))


@pytest.mark.parametrize(
    ("zone", "start", "end"),
    [
        # Midnight occurs twice, or 23:00 does; midnight is left out; a day is left out.
        ("America/Havana", "2026-11-01T00:00-04:00", "2026-11-02T00:00-05:00"),
        ("America/Santiago", "2026-04-04T00:00-03:00", "2026-04-05T00:00-04:00"),
        ("America/Sao_Paulo", "2018-02-17T00:00-02:00", "2018-02-18T00:00-03:00"),
        ("America/Santiago", "2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"),
        ("Asia/Beirut", "2026-03-29T01:00+03:00", "2026-03-30T00:00+03:00"),
        ("Pacific/Apia", "2011-12-31T00:00+14:00", "2012-01-01T00:00+14:00"),
        ("UTC", "2028-02-29T00:00+00:00", "2028-03-01T00:00+00:00"),
    ],
)
def test_each_moment_of_a_day_is_in_one_window_wherever_clocks_change(
    zone: str, start: str, end: str
) -> None:
    first, last = at(start), at(end)
    length = int(last - first)
    beside_edges = [*range(0, 7_200, 1_800), *range(length - 7_200, length, 1_800)]  # where clocks change
    between = rows(range(7_200, length - 7_200, 1_800), quick=8)
    moments = [first - 1, *(first + seconds for seconds in (*beside_edges, *between)), last]
    found = [find_window("* * * * *", moment, zone=find_zone(zone)) for moment in moments]
    assert set(found[1:-1]) == {Window(first, last)}
    before, after = found[0], found[-1]
    assert before is not None
    assert after is not None
    assert (before.end, after.start) == (first, last)


@pytest.mark.parametrize(
    "during", ["* * * * *", "0-59 * * * *", "* 22-23,0-5 * * *", "30-59,0-10 9-17 * * *"]
)
@pytest.mark.parametrize(
    "moment", ["2026-06-01T02:40+02:00", "2026-03-29T04:30+02:00", "2026-10-25T02:10+01:00"]
)
def test_a_window_is_found_hour_by_hour(during: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by its minutes, also where clocks change by an hour or half of one, but in far fewer steps."""
    steps: list[CronSim] = []

    class Counted(CronSim):
        def __next__(self) -> datetime:
            steps.append(self)
            return super().__next__()

    monkeypatch.setattr(schedule, "CronSim", Counted)
    for name in (BERLIN, "UTC", "Australia/Lord_Howe"):
        zone, count = find_zone(name), len(steps)
        found = find_window(during, at(moment), zone=zone)
        assert len(steps) - count <= 120
        if found is not None and found.end - found.start < 82_800:  # else it is a day
            minutes = {each.timestamp() for each in minutes_around(during, at(moment), zone=zone)}
            inside = set(range(int(found.start), int(found.end), 60))
            assert inside <= minutes
            assert minutes.isdisjoint({found.start - 60, found.end})


def minutes_around(during: str, moment: float, *, zone: ZoneInfo) -> Iterator[datetime]:
    """The minutes that an expression matches within a day of a time."""
    times = CronSim(during, datetime.fromtimestamp(moment - 90_000, zone))
    return takewhile(lambda found: found.timestamp() < moment + 90_000, times)


def test_ticks_of_a_window_have_the_same_names_at_every_host() -> None:
    window = window_at("* 9-17 * * *", at("2026-06-01T12:00+00:00"), zone=find_zone("UTC"))
    assert window is not None
    noon = at("2026-06-01T12:00+00:00")
    assert {tick_key(window, noon + late, tick=300) for late in (0.0, 1.5, 299.9)} == {
        "2026-06-01T09:00:00Z#36"
    }
    assert next_tick(window, noon, tick=300) == noon + 300
    assert next_tick(window, noon + 299, tick=300) == noon + 300
    assert next_tick(window, window.end - 300, tick=300) is None
    assert next_tick(window, window.start - 10, tick=300) == window.start
    assert occurrence_key(noon) == "2026-06-01T12:00:00Z"


@pytest.mark.parametrize(
    "text", ["", "* * * *", "61 * * * *", "0 0 31 2 *", "@daily", "0 0 0 * * *", "a" * 300, "*/0 * * * *"]
)
def test_an_expression_that_is_not_valid_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_expression(text)
    assert refused.value.field == "cron"
    assert refused.value.hint


@pytest.mark.parametrize("name", ["", "Europe", "Nowhere/Else", "../etc/passwd", "/etc/localtime", "a" * 300])
def test_a_zone_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="time zone"):
        find_zone(name)
