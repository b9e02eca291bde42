"""`GET /api/usage?bucket=`: sums and percentiles over time, without gaps, within caps."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from dragoman.events import Usage as Tokens
from dragoman.store.accounts.usage_series import MAX_RECORDS
from tests.databases import BACKENDS
from tests.server.openapi import operation, validator
from tests.server.test_usage import HOUR, NOON, Served, call, serving

SERIES = validator(
    operation("get", "/api/usage")["responses"]["200"]["content"]["application/json"]["schema"]
)
CALLS = [
    call(
        f"{n}",
        at=NOON - HOUR / 2,
        model_served="m",
        cost=0.25,
        duration=float(n),
        first_byte=n / 10,
        key_id="k",
    )
    for n in range(1, 101)
]
CALLS += [
    call("old", at=NOON - 3 * HOUR, model_served="n", cost=9.0, duration=5.0, tokens=Tokens(7, 3)),
    call("free", owner="bob", at=NOON + HOUR / 2, model_served=None, error="timeout"),
    call("before", at=NOON - 30 * HOUR, cost=1.0),
]


async def series(door: Served, query: str, headers: dict[str, str] | None = None) -> Any:
    found = await door.json(query, headers)
    SERIES.validate(found)
    return found


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_usage_over_time_has_every_hour_and_the_percentiles_of_each(tmp_path: Path) -> None:
    async with serving(tmp_path, *CALLS) as door:
        found = await series(door, "bucket=hour&group_by=model&since=2026-11-22T08:00Z")
        assert found["times"] == [NOON + hour * HOUR for hour in range(-4, 1)]
        assert found["asOf"] == NOON + HOUR
        total = found["total"]
        assert (total["calls"], total["failed"], total["unpriced"], total["cost"]) == (102, 1, 1, 34.0)
        assert total["points"]["calls"] == [0, 1, 0, 100, 1]
        assert total["points"]["cost"] == [0.0, 9.0, 0.0, 25.0, 0.0]
        assert total["points"]["duration"]["p95"] == [None, 5.0, None, 95.0, None]
        assert [row["group"]["model_served"] for row in found["rows"]] == ["m", "n", None]
        m, n, unknown = found["rows"]
        assert m["duration"] == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
        assert m["firstByte"] == {"p50": 5.0, "p95": 9.5, "p99": 9.9}
        assert (n["inputTokens"], n["outputTokens"], n["points"]["inputTokens"]) == (7, 3, [0, 7, 0, 0, 0])
        assert (unknown["cost"], unknown["duration"]["p50"]) == (None, None)
        assert unknown["points"]["failed"] == [0, 0, 0, 0, 1]
        assert (found["more"], found["sampled"]) == (False, False)


async def test_two_groups_come_at_once_and_only_the_largest_have_points(tmp_path: Path) -> None:
    async with serving(tmp_path, *CALLS) as door:
        found = await series(door, "bucket=day&group_by=owner,key&since=2d&top=1&limit=2")
        assert [(row["group"], "points" in row) for row in found["rows"]] == [
            ({"owner": "ann", "key_id": "k"}, True),
            ({"owner": "ann", "key_id": None}, False),
        ]
        assert found["more"] is True
        assert found["rows"][0]["points"]["calls"] == [0, 0, 100]
        day = await series(door, "bucket=hour")
        assert len(day["times"]) == 24
        assert day["rows"] == []
        assert day["total"]["calls"] == 102
        exported = await door.get("bucket=hour&group_by=model&format=csv&since=6h")
        rows = list(csv.DictReader(io.StringIO(exported.text)))
        assert [(row["hour"], row["model_served"], row["calls"]) for row in rows] == [
            ("2026-11-22T09:00Z", "n", "1"),
            ("2026-11-22T11:00Z", "m", "100"),
            ("2026-11-22T12:00Z", "", "1"),
        ]


async def test_ten_thousand_keys_are_cut_at_the_limit_and_say_so(tmp_path: Path) -> None:
    many = [call(f"{n}", key_id=f"k{n}", cost=n / 100) for n in range(10_000)]
    async with serving(tmp_path, *many) as door:
        found = await series(door, "bucket=hour&group_by=key")
        assert (len(found["rows"]), found["more"], found["total"]["calls"]) == (100, True, 10_000)
        assert found["rows"][0]["group"] == {"key_id": "k9999"}
        assert len([row for row in found["rows"] if "points" in row]) == 8
        assert len(many) < MAX_RECORDS


async def test_an_owner_sees_only_its_own_usage_over_time(tmp_path: Path) -> None:
    async with serving(tmp_path, *CALLS, keys=True) as door:
        bob, admin = await door.key("bob"), await door.key("root", "admin")
        found = await series(door, "bucket=hour&group_by=owner", bob)
        assert ([row["group"]["owner"] for row in found["rows"]], found["total"]["calls"]) == (["bob"], 1)
        assert (await series(door, "bucket=hour", admin))["total"]["calls"] == 102
        assert (await door.get("bucket=hour&owner=ann", bob)).status_code == 403


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("bucket=minute", "bucket"),
        ("bucket=hour&since=365d", "bucket"),
        ("bucket=hour&group_by=day", "group_by"),
        ("bucket=hour&group_by=owner,key,model", "group_by"),
        ("bucket=hour&since=2026-11-22&until=2026-11-21", "since"),
        ("bucket=hour&top=0", "top"),
        ("bucket=hour&top=51", "top"),
    ],
)
async def test_a_series_that_cannot_be_made_names_the_parameter(
    tmp_path: Path, query: str, field: str
) -> None:
    async with serving(tmp_path) as door:
        response = await door.get(query)
        assert (response.status_code, response.json()["error"]["field"]) == (400, field)
