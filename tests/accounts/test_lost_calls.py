"""A model call that ended with its process: the estimate of it, and what its process had recorded itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.accounts.spool import Settlement, Spool
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.events import Usage
from dragoman.ids import sortable_id
from dragoman.store.accounts.budgets import SHARED_WINDOW, ChargedBudget, OpenedBudget
from dragoman.store.store import Store
from dragoman.usage_record import LOST_PREFIX, UsageRecord
from tests.databases import BACKENDS

NOON = 1_795_348_800.0
DAY = 86_400.0
CENTS = 10_000_000
SHARED = ChargedBudget("budget_1", SHARED_WINDOW, 1_000 * CENTS)


def settlement(
    id: str, *, at: float, cents: int, step: int = 1, call_id: str | None = None, day: int = 22
) -> Settlement:
    """What a call costs, in a budget of its key for a day, one for a month, and one that tasks share."""
    is_lost = id.startswith("lost_")
    record = UsageRecord(
        id=id,
        owner="ann",
        key_id="k",
        status="aborted" if is_lost else "finished",
        started_at=NOON + at,
        run_id="r",
        step=step,
        call_id=call_id,
        tokens=Usage(output_tokens=cents, estimated=is_lost),
        cost=cents / 100,
    )
    charges = tuple(
        ChargedBudget("key:k", window, 1_000 * CENTS) for window in (f"day:2026-11-{day}", "month:2026-11")
    )
    spent = cents * CENTS
    return Settlement(record, charges, 0, spent, "b", shared=((SHARED, 0),), shared_spent=spent)


ESTIMATE = settlement(sortable_id(LOST_PREFIX), at=10, cents=3)
REPEATED = settlement("repeated", at=11, cents=50)
LATE = settlement("late", at=0, cents=40)
AFTER_MIDNIGHT = [
    settlement(sortable_id(LOST_PREFIX), at=DAY, cents=3, day=23),
    settlement("repeated", at=DAY + 1, cents=50, day=23),
]
OTHERS = [
    settlement(sortable_id(LOST_PREFIX), at=-1, cents=2),  # of a call before this one
    settlement(sortable_id(LOST_PREFIX), at=10, cents=4, step=2),
    settlement(sortable_id(LOST_PREFIX), at=10, cents=5, call_id="c"),  # of a sub-agent
]
CASES = {
    "the estimate is there": [ESTIMATE, REPEATED, LATE],
    "the estimate comes after it": [LATE, ESTIMATE, REPEATED],
    "each of two lost calls": [
        ESTIMATE,
        settlement(sortable_id(LOST_PREFIX), at=30, cents=7),
        REPEATED,
        settlement("late too", at=20, cents=60),
        LATE,
    ],
    "the estimate is of the next day": [*AFTER_MIDNIGHT, LATE],
    "other calls have estimates": [*OTHERS, ESTIMATE, LATE],
    "there is none": [REPEATED, LATE],
}


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
@pytest.mark.parametrize("case", CASES)
async def test_a_call_of_a_lost_process_is_counted_once_whatever_is_known_of_it_first(
    tmp_path: Path, case: str
) -> None:
    settlements = CASES[case]
    counted = [each for each in settlements if each.record.id not in dropped(settlements)]
    async with await Store.open(tmp_path / "hub", clock=lambda: NOON) as store:
        ledger = UsageLedger(store, Spool(tmp_path / "usage.spool"))
        await store.budgets.open_shared([OpenedBudget(SHARED.scope, 0)])
        for charge in {charge for each in settlements for charge in each.charges}:
            await store.budgets.reserve([charge], 0)
        for each in settlements:
            if each.record.id.startswith("late"):
                await leave(ledger, tmp_path / each.record.id, each)
                await leave(ledger, tmp_path / each.record.id, each)
            else:
                ledger.add(each)
                await ledger.flush()
        assert {record.id for record in await store.usage.list()} == {each.record.id for each in counted}
        for charge in {charge for each in settlements for charge in [*each.charges, SHARED]}:
            paid = sum(each.spent for each in counted if charge in [*each.charges, SHARED])
            assert await store.budgets.get_balance(charge.scope, charge.window) == (paid, 0)
        await ledger.close()


def dropped(settlements: Sequence[Settlement]) -> set[str]:
    """The estimates of calls that are recorded, too: those right after them."""
    late = [each.record for each in settlements if each.record.id.startswith("late")]
    estimates = [
        each.record
        for each in settlements
        if each.record.id.startswith("lost_") and (each.record.step, each.record.call_id) == (1, None)
    ]
    return {
        min((each for each in estimates if each.started_at > record.started_at), key=started_at).id
        for record in late
        if estimates
    }


def started_at(record: UsageRecord) -> float:
    return record.started_at


async def leave(ledger: UsageLedger, path: Path, settlement: Settlement) -> None:
    """Write what an ended process has left in its spool."""
    spool = Spool(path)
    spool.append([settlement])
    await ledger.replay_leftover(spool)
