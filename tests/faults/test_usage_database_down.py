"""The database is down: requests continue, and their usage is written later, once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from dragoman.accounts import usage_ledger
from dragoman.accounts.limit_table import LimitTable
from dragoman.accounts.meter import Meter
from dragoman.accounts.price import Price, TokenRates
from dragoman.accounts.price_lookup import PriceList
from dragoman.accounts.request_size import AnswerBounds
from dragoman.accounts.spool import Spool
from dragoman.errors import BudgetExhausted
from dragoman.events import Usage
from dragoman.identity import Identity
from dragoman.store import sqlite
from dragoman.store.store import DATABASE_FILE, Store
from dragoman.usage_limits import Limits
from dragoman.usage_record import UsageRecord
from tests.moved_database import garbage, replaced

DEADLINE = 120.0
NOON = 1_795_348_800.0
ANN = Identity(owner="ann", key_id="k")
CENT = Price(name="test/cent", rates=(TokenRates(input=0, output=10_000_000_000),))  # one token, one cent
CENTS = 10_000_000

Trouble: TypeAlias = Callable[[Path], AbstractContextManager[None]]


pytestmark = pytest.mark.sqlite_file  # the file itself is moved away, locked or overwritten


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' locks are waited for a moment only, and what was refused is soon tried again."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(usage_ledger, "RETRY_SECONDS", 0.05)


@contextmanager
def busy(folder: Path) -> Iterator[None]:
    """Another program writes, and does not come to an end."""
    with closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        yield


class Rooms(NamedTuple):
    """What a request meets."""

    store: Store
    meter: Meter
    risen: asyncio.Event

    async def ask(self, number: int) -> None:
        """One request that takes one token."""
        admission = await self.meter.admit(ANN, price=CENT, answer=AnswerBounds(1))
        tokens = Usage(output_tokens=1)
        record = UsageRecord(
            id=f"u{number:03}",
            owner="ann",
            key_id="k",
            status="finished",
            started_at=NOON + number,
            tokens=tokens,
        )
        admission.settle(record)

    async def up(self) -> None:
        """The database is up, and nothing waits."""
        async with asyncio.timeout(DEADLINE):
            await self.meter.ledger.flush()
            while not self.store.database.is_up:
                self.risen.clear()
                await self.risen.wait()
                await self.meter.ledger.flush()
        assert self.meter.ledger.spool.row_count == 0

    async def ids(self) -> list[str]:
        return [row.id for row in await self.store.usage.list()]

    async def spent(self) -> tuple[int, int]:
        return await self.store.budgets.get_balance("key:k", "total")


@asynccontextmanager
async def opened(folder: Path, limits: Limits | None = None) -> AsyncIterator[Rooms]:
    async with await Store.open(folder, tolerate_outages=True, clock=lambda: NOON) as store:
        table = LimitTable(default_key=limits or Limits())
        spool = Spool(folder / "usage.spool")
        meter = Meter(store, PriceList(), spool=spool, limits=table, clock=lambda: NOON)
        risen = asyncio.Event()
        async with meter:
            store.database.on_recovery(risen.set)
            yield Rooms(store, meter, risen)


def ids(count: int) -> list[str]:
    return [f"u{number:03}" for number in range(count)]


async def test_what_was_asked_while_the_database_was_down_at_the_start_is_written_later(
    tmp_path: Path,
) -> None:
    with garbage(tmp_path):
        async with opened(tmp_path) as rooms:
            for number in range(10):
                await rooms.ask(number)
            assert not rooms.store.database.is_up
        async with opened(tmp_path) as rooms:
            assert rooms.meter.ledger.spool.row_count == 10
            await rooms.ask(10)
    async with opened(tmp_path) as rooms:
        await rooms.up()
        assert await rooms.ids() == ids(11)


@pytest.mark.parametrize("trouble", [replaced, busy])
async def test_no_request_is_lost_or_counted_twice_when_the_database_goes_down_and_up(
    tmp_path: Path, trouble: Trouble
) -> None:
    async with opened(tmp_path, Limits(usd_total=5.0)) as rooms:
        for number in range(100):
            await rooms.ask(number)
        await rooms.up()
        with trouble(tmp_path):
            await asyncio.gather(*(rooms.ask(number) for number in range(100, 200)))
            for number in range(200, 300):
                await rooms.ask(number)
        await rooms.up()
        for number in range(300, 400):
            await rooms.ask(number)
        await rooms.up()
        assert await rooms.ids() == ids(400)
        assert await rooms.spent() == (400 * CENTS, 0)


async def test_a_budget_holds_while_the_database_is_down(tmp_path: Path) -> None:
    async with opened(tmp_path, Limits(usd_total=0.05)) as rooms:
        await rooms.ask(0)
        await rooms.up()
        with replaced(tmp_path):
            for number in range(1, 5):
                await rooms.ask(number)
            with pytest.raises(BudgetExhausted):
                await rooms.ask(5)
        await rooms.up()
        with pytest.raises(BudgetExhausted):
            await rooms.ask(6)
        assert (await rooms.ids(), await rooms.spent()) == (ids(5), (5 * CENTS, 0))


async def test_what_was_reserved_when_the_database_went_down_is_given_back(tmp_path: Path) -> None:
    async with opened(tmp_path, Limits(usd_total=5.0)) as rooms:
        reservations = [await rooms.meter.admit(ANN, price=CENT, answer=AnswerBounds(1)) for _ in range(3)]
        assert await rooms.spent() == (0, 3 * CENTS)
        with busy(tmp_path):
            await rooms.ask(0)
            for admission in reservations:
                admission.release()
        await rooms.up()
        assert await rooms.spent() == (CENTS, 0)


async def test_a_replay_that_a_crash_cut_off_counts_nothing_twice(tmp_path: Path) -> None:
    with garbage(tmp_path):
        async with opened(tmp_path, Limits(usd_total=5.0)) as rooms:
            for number in range(300):
                await rooms.ask(number)
    copy = (tmp_path / "usage.spool").read_bytes()
    for _ in range(2):
        async with opened(tmp_path, Limits(usd_total=50.0)) as rooms:
            await rooms.up()
            assert await rooms.ids() == ids(300)
            assert await rooms.spent() == (300 * CENTS, 0)
        (tmp_path / "usage.spool.replayed").write_bytes(copy)


async def test_a_row_that_the_database_refuses_does_not_delay_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as rooms:
        with busy(tmp_path):
            for number in range(3):
                await rooms.ask(number)
            bad = await rooms.meter.admit(ANN, price=None)
            bad.settle(UsageRecord(id="bad", owner="ann", status="x", started_at=NOON, step=2**70))
            await rooms.ask(3)
        await rooms.up()
        assert await rooms.ids() == ids(4)
    assert "the usage record 'bad' is lost" in caplog.text
