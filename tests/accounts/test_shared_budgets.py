"""Budgets that tasks share: hosts that race for one stay within it, and a dead one's part comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from dragoman.accounts.budget_reservation import BudgetReservation
from dragoman.accounts.price import Price, TokenRates
from dragoman.accounts.request_size import AnswerBounds
from dragoman.accounts.shared_budgets import SharedBudgets, SharedReservation
from dragoman.accounts.spool import Settlement, Spool
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import BudgetExhausted
from dragoman.ids import new_id
from dragoman.operations.budget import Budget
from dragoman.store.accounts.budgets import CALLS_WINDOW, SHARED_WINDOW, UNLIMITED, ChargedBudget
from dragoman.store.hosts.hosts import HostRecord
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.databases import BACKENDS, BackendName
from tests.effort import rounds
from tests.store.places import Place, empty_place

LIMIT = 2_000  # nano-dollars
NANO = Price(name="test/nano", rates=(TokenRates(input=1_000, output=0),))  # a token of a prompt is one
USD = 1e-9
NAME = "answer:ses/msg"


class Host:
    """A process that has the database with others, and a budget of it."""

    def __init__(self, store: Store, ledger: UsageLedger) -> None:
        self.store = store
        self.ledger = ledger
        self.shared = SharedBudgets(store.budgets, ledger)

    def reserve(self, budget: Budget, tokens: int) -> tuple[BudgetReservation, SharedReservation]:
        """Reserve in this process, as a model call does; BudgetExhausted."""
        own = BudgetReservation(budget, NANO)
        shared = self.shared.reservation(own)
        own.reserve(lambda: tokens, AnswerBounds(0))
        return own, shared

    def settle(self, own: BudgetReservation, shared: SharedReservation, cost: int) -> None:
        """Write what a model call has cost."""
        record = UsageRecord(id=new_id("use"), owner="ann", status="finished", started_at=1.0)
        boot = self.ledger.boot_id
        self.ledger.add(Settlement(record, boot=boot, shared=tuple(shared.take()), shared_spent=cost))
        own.settle(cost * USD, answered=True)

    async def balance(self, name: str = NAME) -> tuple[int, int]:
        """What is spent and reserved."""
        return await self.store.budgets.get_balance(name, SHARED_WINDOW)


@pytest.fixture(params=BACKENDS)
async def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sequence[Host]]:
    """Three hosts that share a database; on SQLite one process three times."""
    backend: BackendName = request.param
    async with AsyncExitStack() as stack:
        place = stack.enter_context(empty_place(backend, tmp_path / "data"))
        yield [await join(place, f"host_{number}", stack) for number in range(3)]


async def join(place: Place, id: str, stack: AsyncExitStack) -> Host:
    store = await stack.enter_async_context(await place.open(exclusive=False))
    await store.hosts.add(HostRecord(id=id, name=id, version="1", started_at=1.0))
    store.budgets.host_id = id
    ledger = UsageLedger(store, Spool(place.folder / f"{id}.spool"))
    await ledger.open()
    stack.push_async_callback(ledger.close)
    return Host(store, ledger)


def nanos(amount: int) -> float:
    return amount * USD


async def test_tasks_at_all_hosts_never_spend_more_than_the_budget_and_a_dead_hosts_part_comes_back(
    hosts: Sequence[Host],
) -> None:
    for seed in range(rounds(quick=2, thorough=30)):
        await race(hosts, random.Random(seed), name=f"answer:ses/{seed}")


async def race(hosts: Sequence[Host], chance: random.Random, *, name: str) -> None:
    """Share a budget in which a call is under way; tasks of all hosts spend it, and the last host dies."""
    caller = Budget(usd=nanos(LIMIT), name=name)
    caller.spent = nanos(100)
    under_way = hosts[0].reserve(caller, 200)
    charges = await hosts[0].shared.share(caller)
    assert charges == (ChargedBudget(name, SHARED_WINDOW, LIMIT),)
    assert await hosts[0].balance(name) == (100, 200)
    budgets = [caller, *[await host.shared.restore(charges) for host in hosts[1:]]]
    spent, lost = [100], []

    async def work(at: int, *, dies: bool) -> None:
        task = Budget(usd=nanos(LIMIT // 2), parent=budgets[at])
        for _ in range(6):
            host = hosts[at]
            with suppress(BudgetExhausted):
                own, shared = host.reserve(task, chance.randint(1, 60))
                try:
                    await shared.reserve()
                    if chance.random() < 0.3:
                        own._add(20)  # as an answer does that is longer than was reserved
                        await shared.grow(20)
                except BudgetExhausted:
                    host.settle(own, shared, 0)
                    raise
                used, reserved = await host.balance(name)
                assert used + reserved <= LIMIT
                if dies and chance.random() < 0.5:
                    lost.append(own.nanos)
                    continue  # the process ends here: nobody settles
                if chance.random() < 0.2:
                    own.settle(None, answered=False)
                    shared.release()
                    continue
                cost = chance.randint(0, own.nanos)
                spent.append(cost)
                host.settle(own, shared, cost)

    await asyncio.gather(*(work(at, dies=at == 2) for at in range(3) for _ in range(12)))
    hosts[0].settle(*under_way, 150)
    spent.append(150)
    for host in hosts:
        await host.ledger.flush()
    assert await hosts[1].balance(name) == (sum(spent), sum(lost))
    assert lost
    assert sum(spent) <= LIMIT
    await hosts[0].store.budgets.release_host("host_2")
    assert await hosts[1].balance(name) == (sum(spent), 0)
    parts = await hosts[0].store.database.read(
        lambda connection: connection.fetch_all("SELECT sum(reserved) FROM host_reservations", {})
    )
    assert [tuple(row) for row in parts] in ([(0,)], [(None,)])


async def test_a_spent_budget_is_refused_at_each_host_and_by_the_run_itself(hosts: Sequence[Host]) -> None:
    caller = Budget(usd=nanos(LIMIT), name=NAME)
    charges = await hosts[0].shared.share(caller)
    far = await hosts[1].shared.restore(charges)
    assert far is not None
    own, shared = hosts[1].reserve(far, LIMIT - 10)
    await shared.reserve()
    blocked = hosts[0].reserve(caller, 11)
    with pytest.raises(BudgetExhausted) as waiting:
        await blocked[1].reserve()
    assert waiting.value.transient  # the other one may turn out to cost less
    hosts[0].settle(*blocked, 0)
    hosts[1].settle(own, shared, LIMIT - 10)
    await hosts[1].ledger.flush()
    again = hosts[0].reserve(caller, 11)
    with pytest.raises(BudgetExhausted) as refused:
        await again[1].reserve()
    assert not refused.value.transient
    hosts[0].settle(*again, 0)
    assert caller.remaining == pytest.approx(nanos(10))  # it has learnt what the others have spent


async def test_a_run_that_goes_on_elsewhere_has_what_is_left_of_its_budget(hosts: Sequence[Host]) -> None:
    caller = Budget(usd=nanos(LIMIT), name=NAME)
    charges = await hosts[0].shared.share(caller)
    far = await hosts[1].shared.restore(charges)
    assert far is not None
    own, shared = hosts[1].reserve(far, 1_500)
    await shared.reserve()
    hosts[1].settle(own, shared, 1_500)
    far.spend(nanos(100))  # what an operation has cost
    await hosts[1].ledger.flush()
    again = Budget(usd=nanos(LIMIT), name=NAME)
    again.spent = nanos(50)  # what the usage of the run says
    assert await hosts[2].shared.rejoin(again)
    assert again.remaining == pytest.approx(nanos(400))
    with pytest.raises(BudgetExhausted):
        again.reserve(nanos(500))
    assert not await hosts[2].shared.rejoin(Budget(usd=1.0, name="answer:ses/other"))
    assert not await hosts[2].shared.rejoin(Budget(usd=1.0))


@pytest.mark.parametrize("usd", [None, nanos(LIMIT)])
async def test_calls_at_all_hosts_never_pass_the_limit_and_none_is_lost(
    hosts: Sequence[Host], usd: float | None
) -> None:
    caller = Budget(usd=usd, calls=50, name=NAME, parent=Budget(calls=1_000))
    for _ in range(3):
        caller.count_call()
    charges = await hosts[0].shared.share(caller)
    budgets = [caller, *[await host.shared.restore(charges) for host in hosts[1:]]]
    made = [0, 0, 0]

    async def work(at: int) -> None:
        task = Budget(calls=12, parent=budgets[at])
        for _ in range(15):
            with suppress(BudgetExhausted):
                task.count_call()
                await task.count_shared_call()
                made[at] += 1

    await asyncio.gather(*(work(at) for at in range(3) for _ in range(4)))
    assert sum(made) == 47
    assert all(count <= 48 for count in made)
    again = Budget(usd=usd, calls=50, name=NAME)
    assert await hosts[1].shared.rejoin(again)
    with pytest.raises(BudgetExhausted):
        again.count_call()
    further = Budget(calls=60, name=NAME)  # as if its configuration had been changed meanwhile
    assert await hosts[2].shared.rejoin(further)
    further.count_call()
    await further.count_shared_call()
    assert await hosts[0].store.budgets.find_shared(NAME, window=CALLS_WINDOW) == 51


async def test_an_earlier_version_reads_a_limit_of_calls_as_one_without_an_end(hosts: Sequence[Host]) -> None:
    [charge, *_] = await hosts[0].shared.share(Budget(calls=5, name=NAME))
    assert charge == ChargedBudget(NAME, SHARED_WINDOW, UNLIMITED, 5)
    assert await hosts[0].store.budgets.find_shared(NAME) is None
