"""The usage spool: bounded, recovered after a crash, never in the way of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.accounts.spool import Settlement, Spool
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import StoreError
from dragoman.events import Usage
from dragoman.store.accounts.budgets import ChargedBudget
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.databases import BACKENDS


def row(number: int) -> Settlement:
    tokens = Usage(input_tokens=number, output_tokens=1, estimated=True)
    record = UsageRecord(id=f"u{number}", owner="ann", status="finished", started_at=1.5, tokens=tokens)
    return Settlement(record, (ChargedBudget("key:k", "total", 5),), reserved=3, spent=2, boot="b")


ROWS = [row(number) for number in range(600)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "usage.spool"


class Reader:
    """Takes what is replayed, and refuses it from the row that is named on."""

    def __init__(self, *, refuse: str = "") -> None:
        self.rows: list[Settlement] = []
        self.refuse = refuse

    async def __call__(self, chunk: Sequence[Settlement]) -> None:
        if self.refuse in [settlement.record.id for settlement in chunk]:
            raise StoreError("down")
        self.rows += chunk


def cut_off(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


async def replay(spool: Spool) -> list[Settlement]:
    reader = Reader()
    assert await spool.replay(reader) == len(reader.rows)
    return reader.rows


async def opened(path: Path, *, max_rows: int = 10_000, max_bytes: int = 10_000_000) -> Spool:
    spool = Spool(path, max_rows=max_rows, max_bytes=max_bytes)
    await spool.open()
    return spool


async def test_what_was_put_in_comes_out_once_in_order_also_in_another_process(path: Path) -> None:
    spool = await opened(path)
    for at in range(0, 600, 7):
        spool.append(ROWS[at : at + 7])
    await spool.close()
    later = await opened(path)
    assert later.row_count == 600
    assert await replay(later) == ROWS
    assert (later.row_count, await replay(later), list(path.parent.iterdir())) == (0, [], [])
    await later.close()


async def test_a_replay_that_fails_is_begun_again_while_new_rows_come(path: Path) -> None:
    spool = await opened(path)
    spool.append(ROWS[:500])
    reader = Reader(refuse="u300")
    with pytest.raises(StoreError):
        await spool.replay(reader)
    assert reader.rows == ROWS[:256]
    spool.append(ROWS[500:])
    await spool.close()
    later = await opened(path)
    assert later.row_count == 600
    assert await replay(later) == ROWS
    assert later.row_count == 0
    await later.close()


@pytest.mark.parametrize("cut", [1, 30, 100])
async def test_a_line_that_a_crash_cut_off_costs_only_itself(path: Path, *, cut: int) -> None:
    spool = await opened(path)
    spool.append(ROWS[:3])
    await spool.close()
    cut_off(path, cut)
    later = await opened(path)
    later.append(ROWS[3:5])
    expected = ROWS[:3] if cut == 1 else ROWS[:2]
    assert await replay(later) == expected + ROWS[3:5]
    assert later.row_count == 0
    await later.close()


@pytest.mark.parametrize(("max_rows", "max_bytes"), [(2, 10_000_000), (10_000, 600)])
async def test_a_full_spool_drops_the_newest_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture, *, max_rows: int, max_bytes: int
) -> None:
    spool = await opened(path, max_rows=max_rows, max_bytes=max_bytes)
    spool.append(ROWS[:10])
    fitting = spool.row_count
    assert spool.dropped == 10 - fitting
    assert "is full: " in caplog.text
    assert await replay(spool) == ROWS[:fitting]
    spool.append(ROWS[:fitting])
    assert (spool.row_count, spool.dropped) == (fitting, 10 - fitting)
    await spool.close()


async def test_what_the_disk_does_not_take_waits_in_memory(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("in the way")
    spool = await opened(path)
    spool.append(ROWS[:300])
    with pytest.raises(OSError, match="File exists"):
        await spool.flush()
    assert spool.row_count == 300
    assert caplog.text.count("cannot write the spool") == 1
    assert await replay(spool) == ROWS[:300]
    spool.append(ROWS[300:400])
    with pytest.raises(OSError, match="File exists"):
        await spool.flush()
    path.parent.unlink()
    assert await replay(spool) == ROWS[300:400]
    assert (spool.row_count, list(path.parent.iterdir())) == (0, [])
    await spool.close()


async def test_what_was_flushed_is_on_disk(path: Path) -> None:
    spool = await opened(path)
    spool.append(ROWS)
    await asyncio.wait_for(spool.flush(), 120)
    assert lines(path) == 600
    await spool.close()


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_text_that_no_database_takes_costs_neither_its_record_nor_those_written_with_it(
    tmp_path: Path,
) -> None:
    odd = replace(ROWS[1].record, model_served="m\ud83d", finish_reason="stop\0")
    async with await Store.open(tmp_path / "hub") as store:
        ledger = UsageLedger(store, Spool(tmp_path / "usage.spool"))
        for settlement in (ROWS[0], replace(ROWS[1], record=odd), ROWS[2]):
            ledger.add(settlement)
        await ledger.flush()
        stored = {record.id: record.model_served for record in await store.usage.list()}
        assert stored == {"u0": None, "u1": "m\N{REPLACEMENT CHARACTER}", "u2": None}
        await ledger.close()
