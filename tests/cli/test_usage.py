"""`dragoman usage`."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from pathlib import Path

import pytest

from dragoman.cli import usage_table
from dragoman.events import Usage
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.cli.conftest import Run
from tests.cli.program import Hub


def calls(now: float) -> list[UsageRecord]:
    """One call a minute, the last one now."""
    return [
        UsageRecord(
            id=f"u{number}",
            owner="ada" if number % 2 else "bob",
            status="finished" if number else "failed",
            started_at=now - 60 * number,
            model_served="big" if number < 6 else "\x1b[31mold",
            provider="up",
            tokens=Usage(1_000, 100, estimated=number == 3),
            cost=0.25 if number < 6 else None,
            duration=2.0,
            first_byte=0.5,
        )
        for number in range(8)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with usage in it."""

    async def fill() -> None:
        async with await Store.open(tmp_path / "hub") as store:
            await store.write(store.usage.insert_missing_job(calls(time.time())))

    asyncio.run(fill())
    return tmp_path / "hub"


def test_usage_is_a_table_with_bars_and_totals(run: Run, data: Path) -> None:
    reply = run("usage", "--data", data)
    assert reply.code == 0
    lines = [line.split() for line in reply.out.splitlines() if line.strip()]
    assert lines[0] == ["MODEL", "COST", "CALLS", "FAILED", "IN", "OUT", "CACHED", "FIRST", "TIME"]
    assert lines[2] == [
        *("big", "█" * 16, "$1.5000", "6", "1", "~6,000", "~600", "-", "0.50", "s", "2.00", "s")
    ]
    assert lines[3][:4] == ["[31mold", "-", "2", "0"]
    assert lines[-1][:7] == ["total", "≥", "$1.5000", "8", "1", "~8,000", "~800"]
    assert "\x1b" not in reply.out


def test_usage_is_grouped_and_filtered_as_asked(run: Run, data: Path) -> None:
    found = run("usage", "--data", data, "--by", "owner,status", "--owner", "bob", "--json").json
    assert found["groupBy"] == ["owner", "status"]
    groups = [(row["group"]["status"], row["calls"]) for row in found["rows"]]
    assert groups == [("finished", 3), ("failed", 1)]
    assert run("usage", "--data", data, "--since", "90s", "--json").json["total"]["calls"] == 2
    until = run("usage", "--data", data, "--since", "all", "--until", "90s", "--model", "big", "--json").json
    assert until["total"]["calls"] == 4


def test_requests_are_listed_one_by_one(run: Run, data: Path) -> None:
    reply = run("usage", "--data", data, "--requests", "--limit", "2")
    lines = [line.split() for line in reply.out.splitlines() if line.strip()]
    assert [line[2] for line in lines[2:4]] == ["ada", "bob"]
    assert lines[-1][:3] == ["total", "8", "calls"]
    assert "more rows" in reply.err
    found = run("usage", "--data", data, "--requests", "--json").json
    assert [row["id"] for row in found["rows"]] == [f"u{number}" for number in reversed(range(8))]


def test_what_costs_next_to_nothing_is_not_shown_as_free(run: Run, tmp_path: Path) -> None:
    async def fill() -> None:
        async with await Store.open(tmp_path / "hub") as store:
            record = UsageRecord(id="u", owner="ada", status="finished", started_at=time.time(), cost=0.00002)
            await store.write(store.usage.insert_missing_job([record]))

    asyncio.run(fill())
    assert "< $0.0001" in run("usage", "--data", tmp_path / "hub").out


def test_csv_has_all_rows(run: Run, data: Path) -> None:
    grouped = list(csv.DictReader(io.StringIO(run("usage", "--data", data, "--by", "owner", "--csv").out)))
    assert [(row["owner"], row["calls"]) for row in grouped] == [("ada", "4"), ("bob", "4")]
    rows = list(csv.DictReader(io.StringIO(run("usage", "--data", data, "--requests", "--csv").out)))
    assert [row["id"] for row in rows] == [f"u{number}" for number in reversed(range(8))]
    some = run("usage", "--data", data, "--requests", "--csv", "--limit", "3").out
    assert len(some.splitlines()) == 4


def test_csv_continues_over_all_pages(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = run("usage", "--data", data, "--requests", "--csv").out
    monkeypatch.setattr("dragoman.server.accounts.usage_report.PAGE_SIZE", 3)
    assert run("usage", "--data", data, "--requests", "--csv").out == everything
    assert len(run("usage", "--data", data, "--requests", "--csv", "--limit", "5").out.splitlines()) == 6


def test_what_cannot_be_asked_is_reported(run: Run, data: Path) -> None:
    for wrong in (("--by", "colour"), ("--since", "never"), ("--until", "")):
        reply = run("usage", "--data", data, *wrong)
        assert (reply.code, reply.out, wrong[0][2:] in reply.err or wrong[1] in reply.err) == (1, "", True)
    nothing = run("usage", "--data", data, "--owner", "eve")
    assert (nothing.code, nothing.out, "nothing was used" in nothing.err) == (0, "", True)
    assert run("usage", "--data", data / "nowhere").code == 1


def test_usage_is_read_from_a_running_hub(run: Run, hub: Hub) -> None:
    assert run("chat", "hello", "--hub", hub.url).code == 0
    found = run("usage", "--hub", hub.url, "--by", "owner", "--json").json
    assert [row["group"] for row in found["rows"]] == [{"owner": "local"}]
    assert found["total"]["calls"] >= 1
    assert run("usage", "--hub", hub.url, "--requests", "--csv").out.startswith("id,request_id,started_at")
    refused = run("usage", "--hub", hub.url, "--by", "colour")
    assert (refused.code, "'colour'" in refused.err) == (1, True)


@pytest.mark.parametrize("arguments", [("--by", "day,owner,model"), ("--requests",)])
def test_a_narrow_terminal_shows_owner_model_and_cost_and_names_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    data: Path,
    arguments: tuple[str, ...],
) -> None:
    report = run("usage", "--data", data, *arguments, "--json").json
    monkeypatch.setattr(usage_table, "DEFAULT_WIDTH", 80)
    capsys.readouterr()
    usage_table.print_report(report)
    printed = capsys.readouterr()
    assert max(map(len, printed.out.splitlines())) <= 80
    for name in (
        "OWNER",
        "MODEL",
        "COST",
        "ada",
        "bob",
        "big",
        "$0.2500" if "--requests" in arguments else "$0.7500",
    ):
        assert name in printed.out
    assert "not shown in 80 columns: FIRST, CACHED" in printed.err
