"""The clock and time zones."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import BadRequest
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.tools.builtin import builtin_operations
from dragoman.tools.clock import convert

NEW_YEAR = 1_767_225_599.9  # a blink before 2026


async def ask(name: str, **input: Any) -> dict[str, Any]:
    async with Calls(Registry(*builtin_operations(clock=lambda: NEW_YEAR)), MemoryLedger()) as calls:
        return (await calls.call(name, input, context=Context())).to_json()


async def test_now_is_what_the_clock_says() -> None:
    assert (await ask("time.now"))["result"] == {
        "time": "2025-12-31T23:59:59+00:00",
        "timezone": "UTC",
        "utc_offset": "+0000",
        "weekday": "Wednesday",
        "unix": 1_767_225_599,
    }
    assert (await ask("time.now", timezone="Asia/Kathmandu"))["result"]["time"] == "2026-01-01T05:44:59+05:45"


@pytest.mark.parametrize(
    ("input", "time"),
    [
        ({"time": "2026-03-29T12:30", "to_timezone": "Europe/Berlin"}, "2026-03-29T14:30:00+02:00"),
        (
            {"time": "2026-03-01 09:00", "from_timezone": "America/New_York", "to_timezone": "UTC"},
            "2026-03-01T14:00:00+00:00",
        ),
        (
            {"time": "2026-03-01T09:00+09:00", "from_timezone": "Europe/Berlin", "to_timezone": "UTC"},
            "2026-03-01T00:00:00+00:00",
        ),
        ({"time": "2026-03-01", "to_timezone": "Asia/Tokyo"}, "2026-03-01T09:00:00+09:00"),
    ],
)
async def test_times_are_converted_between_zones(input: dict[str, str], time: str) -> None:
    assert (await ask("time.convert", **input))["result"]["time"] == time


@pytest.mark.parametrize(
    "zone", ["Europe/Berlim", "../../etc/passwd", "/etc/localtime", "America", "", "a\0b"]
)
async def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    error = (await ask("time.now", timezone=zone))["error"]
    assert (error["code"], error["message"]) == ("bad_request", f"There is no time zone {zone!r}.")


@pytest.mark.parametrize("field", ["to_timezone", "from_timezone"])
def test_the_error_names_the_field_of_a_zone_that_is_none(field: str) -> None:
    zones = {"to_timezone": "UTC", "from_timezone": "UTC", field: "Mars/Utopia"}
    with pytest.raises(BadRequest) as error:
        convert("2026-03-29T12:30", **zones)
    assert error.value.field == field


async def test_a_zone_that_is_misspelled_brings_suggestions() -> None:
    assert "Europe/Berlin" in (await ask("time.now", timezone="Europe/Berlim"))["error"]["hint"]


@pytest.mark.parametrize("time", ["noon", "2026-13-01", "0001-01-01T00:00", ""])
async def test_a_time_that_is_none_is_refused(time: str) -> None:
    error = (await ask("time.convert", time=time, to_timezone="America/New_York"))["error"]
    assert error["message"] == f"{time!r} is not a valid date and time; write it like 2026-03-29T14:30."


async def test_an_hour_that_the_clocks_skip_is_refused() -> None:
    skipped = {"time": "2026-03-29T02:30", "from_timezone": "Europe/Berlin", "to_timezone": "UTC"}
    error = (await ask("time.convert", **skipped))["error"]
    assert error["message"] == "2026-03-29T02:30 does not exist in Europe/Berlin: clocks go forward then."
