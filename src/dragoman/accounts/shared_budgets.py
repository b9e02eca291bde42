"""Budgets that several processes spend from: rows of the database, reserved and settled like those of keys.

The budget of a run belongs to its process until the run creates a task. From then on the task and the run
share it: each reserves in the row what a model call may cost before it makes the call. So all hosts together
never spend more than the budget, and the reservations of a host are released when it dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dragoman.accounts.budget_reservation import BudgetReservation
from dragoman.accounts.price import NANOS_PER_DOLLAR, to_nanos
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import BudgetExhausted, DragomanError, StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.operations.budget import Budget
from dragoman.store.accounts.budgets import (
    CALLS_WINDOW,
    SHARED_WINDOW,
    UNLIMITED,
    BudgetRefusal,
    BudgetRepository,
    ChargedBudget,
    OpenedBudget,
)


def shared_charges(budget: Budget) -> tuple[ChargedBudget, ...]:
    """Return the charges of a budget and of those above it that other processes spend from, too."""
    return tuple(charge_of(each) for each in budget.chain if each.report is not None)


def charge_of(budget: Budget) -> ChargedBudget:
    """Return a shared budget as what pays for a call."""
    return ChargedBudget(budget.name or "", SHARED_WINDOW, to_nanos(budget.usd or 0.0))


def shared_limits(budget: Budget) -> Sequence[ChargedBudget]:
    """Return the limits of a budget and of those above it that others share, to be stored with a task."""
    return [
        ChargedBudget(
            each.name or "", SHARED_WINDOW, UNLIMITED if each.usd is None else to_nanos(each.usd), each.calls
        )
        for each in budget.chain
        if each.report is not None or each.count is not None
    ]


class SharedReservation:
    """A model call's reservation in the rows of the budgets that its run shares.

    If a budget becomes shared while the call is under way, its new row includes the reservation so far.
    """

    def __init__(self, ledger: UsageLedger, own: BudgetReservation) -> None:
        self._ledger = ledger
        self._own = own
        self._parts = dict.fromkeys(shared_charges(own.budget), 0)

    @property
    def charges(self) -> Sequence[ChargedBudget]:
        """The budgets that pay."""
        return tuple(self._parts)

    async def reserve(self) -> None:
        """Reserve in the rows what was reserved in this process. BudgetExhausted."""
        if self._parts:
            await self._reserve(self._own.nanos)

    async def grow(self, amount: int) -> None:
        """Reserve as much more as was just reserved in this process. BudgetExhausted."""
        self._add_late(self._own.nanos - amount)
        if self._parts:
            await self._reserve(amount)

    def release(self) -> None:
        """Release all; nothing was spent."""
        for charge, reserved in self.take():
            if reserved:
                self._ledger.release_reservation([charge], reserved)

    def take(self) -> Sequence[tuple[ChargedBudget, int]]:
        """Return the budgets that pay, each with what is reserved of it, to settle or release them; once."""
        self._add_late(self._own.nanos)
        parts, self._parts = self._parts, {}
        return tuple(parts.items())

    def _add_late(self, reserved: int) -> None:
        for charge in shared_charges(self._own.budget):
            self._parts.setdefault(charge, reserved)

    async def _reserve(self, amount: int) -> None:
        charges = tuple(self._parts)
        try:
            refusal = await self._ledger.reserve(charges, amount)
        except (StoreError, Unavailable):
            return  # while the database is down, what this process knows of the budget counts
        if refusal is not None:
            raise self._refused(refusal, amount)
        for charge in charges:
            self._parts[charge] += amount

    def _refused(self, refusal: BudgetRefusal, amount: int) -> BudgetExhausted:
        """Return the error of a refusal, after noting in this process what the others have spent."""
        for budget in self._own.budget.chain:
            if budget.name == refusal.charge.scope:
                budget.spent = max(budget.spent, refusal.spent / NANOS_PER_DOLLAR)
        left = max(0, refusal.charge.limit - refusal.spent - refusal.reserved)
        return BudgetExhausted(
            f"The budget of {refusal.charge.limit / NANOS_PER_DOLLAR:g} USD, which is shared with tasks, has "
            f"{left / NANOS_PER_DOLLAR:.6f} left; this call may cost {amount / NANOS_PER_DOLLAR:.6f}.",
            transient=refusal.reserved > 0 and refusal.spent + amount <= refusal.charge.limit,
        )


class SharedBudgets:
    """Starts to share budgets between processes, and restores those that are shared already."""

    def __init__(self, budgets: BudgetRepository, ledger: UsageLedger) -> None:
        self._budgets = budgets
        self._ledger = ledger

    def reservation(self, own: BudgetReservation) -> SharedReservation:
        """Return the reservation of a model call in the rows of the budgets that its run shares."""
        return SharedReservation(self._ledger, own)

    async def share(self, budget: Budget) -> Sequence[ChargedBudget]:
        """Share a budget and those above it, and return them. Raises StoreError, Unavailable.

        Model calls that have begun are in the row as reserved. It is queued before any later reservation.
        """
        of_money = [each for each in budget.chain if each.usd is not None and each.report is None]
        of_calls = [each for each in budget.chain if each.calls is not None and each.count is None]
        opened: list[OpenedBudget] = []
        for each in of_money:
            each.name = each.name or new_id("budget")
            opened.append(OpenedBudget(each.name, to_nanos(each.spent), to_nanos(each.reserved)))
            self._set_report(each)
        for each in of_calls:
            each.name = each.name or new_id("budget")
            opened.append(OpenedBudget(each.name, each.calls_made, window=CALLS_WINDOW))
            each.count = self.count_call
        limits = shared_limits(budget)
        if opened:
            try:
                await self._budgets.open_shared(opened)
            except DragomanError:  # not CancelledError: the write continues when the caller is cancelled
                for each in of_money:
                    each.report = None
                for each in of_calls:
                    each.count = None
                raise
        return tuple(limits)

    async def count_call(self, budget: Budget) -> None:
        """Count a call in the rows of the limits of calls that are shared. BudgetExhausted."""
        shared = [each for each in budget.chain if each.count is not None and each.calls is not None]
        charges = [ChargedBudget(each.name or "", CALLS_WINDOW, each.calls or 0) for each in shared]
        try:
            refusal = await self._budgets.count(charges)
        except (StoreError, Unavailable):
            return  # while the database is down, what this process has counted counts
        if refusal is not None:
            raise BudgetExhausted(
                f"The budget of {refusal.charge.limit} calls, which is shared with tasks, is used up."
            )

    async def rejoin(self, budget: Budget) -> bool:
        """Share a budget again that an earlier process had shared; return whether it had."""
        name = budget.name
        if name is None:
            return False
        spent = None if budget.usd is None else await self._find_spent(name)
        made = None if budget.calls is None else await self._budgets.find_shared(name, window=CALLS_WINDOW)
        behind: list[OpenedBudget] = []
        if spent is not None:
            if budget.spent > spent:
                behind.append(OpenedBudget(name, to_nanos(budget.spent)))
            budget.spent = max(budget.spent, spent)
            self._set_report(budget)
        if made is not None:
            if budget.calls_made > made:
                behind.append(OpenedBudget(name, budget.calls_made, window=CALLS_WINDOW))
            budget.calls_made = max(budget.calls_made, made)
            budget.count = self.count_call
        if behind:
            await self._budgets.open_shared(behind)
        return spent is not None or made is not None

    async def restore(self, charges: Sequence[ChargedBudget]) -> Budget | None:
        """Return the budgets that another process has shared, the first one within those after it."""
        above: Budget | None = None
        for charge in reversed(charges):
            usd = None if charge.limit >= UNLIMITED else charge.limit / NANOS_PER_DOLLAR
            above = Budget(usd=usd, calls=charge.calls, parent=above, name=charge.scope)
            if usd is not None:
                above.spent = await self._find_spent(charge.scope) or 0.0
                self._set_report(above)
            if charge.calls is not None:
                made = await self._budgets.find_shared(charge.scope, window=CALLS_WINDOW)
                above.calls_made = made or 0
                above.count = self.count_call
        return above

    async def _find_spent(self, name: str) -> float | None:
        spent = await self._budgets.find_shared(name)
        return None if spent is None else spent / NANOS_PER_DOLLAR

    def _set_report(self, budget: Budget) -> None:
        budget.report = partial(self._settle, charge_of(budget))

    def _settle(self, charge: ChargedBudget, usd: float) -> None:
        self._ledger.settle([charge], reserved=0, spent=to_nanos(usd))
