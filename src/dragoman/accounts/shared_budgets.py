"""Budgets that several processes spend of: rows of the database, reserved and settled like those of keys.

The budget of a run is its process's own until a task is given within it. From then on it is shared: whoever
has the task, and the run itself, reserve in the row what a model call may cost before they make it. So all
hosts together never spend more, and what a host had reserved comes back when it dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dragoman.accounts.budget_reservation import BudgetReservation
from dragoman.accounts.price import NANOS_PER_DOLLAR
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import BudgetExhausted, DragomanError, StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.operations.budget import Budget
from dragoman.store.accounts.budgets import (
    SHARED_WINDOW,
    BudgetRefusal,
    BudgetRepository,
    ChargedBudget,
    OpenedBudget,
)


def shared_charges(budget: Budget) -> tuple[ChargedBudget, ...]:
    """Return the charges of a budget and of those above it that other processes spend of, too."""
    return tuple(charge_of(each) for each in budget.chain if each.report is not None)


def charge_of(budget: Budget) -> ChargedBudget:
    """Return a shared budget as what pays for a call."""
    return ChargedBudget(budget.name or "", SHARED_WINDOW, to_nanos(budget.usd or 0.0))


def to_nanos(usd: float) -> int:
    return round(usd * NANOS_PER_DOLLAR)


class SharedReservation:
    """What a model call has reserved in the rows of the budgets that its run shares.

    A budget that is shared while the call is under way has its row with what the call had reserved by then.
    """

    def __init__(self, ledger: UsageLedger, own: BudgetReservation) -> None:
        self._ledger = ledger
        self._own = own
        self._parts = dict.fromkeys(shared_charges(own.budget), 0)

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
    """Begins to share budgets, and finds those that are shared."""

    def __init__(self, budgets: BudgetRepository, ledger: UsageLedger) -> None:
        self._budgets = budgets
        self._ledger = ledger

    def reservation(self, own: BudgetReservation) -> SharedReservation:
        """Return what reserves for a model call in the rows of the budgets that its run shares."""
        return SharedReservation(self._ledger, own)

    async def share(self, budget: Budget) -> Sequence[ChargedBudget]:
        """Share a budget and those above it, and return them. Raises StoreError, Unavailable.

        Model calls that have begun are in the row as reserved. It is queued before any later reservation.
        """
        own = [each for each in budget.chain if each.usd is not None and each.report is None]
        opened = []
        for each in own:
            each.name = each.name or new_id("budget")
            opened.append(OpenedBudget(each.name, to_nanos(each.spent), to_nanos(each.reserved)))
            self._set_report(each)
        charges = shared_charges(budget)
        if opened:
            try:
                await self._budgets.open_shared(opened)
            except DragomanError:  # a caller that is cancelled does not stop the writing
                for each in own:
                    each.report = None
                raise
        return charges

    async def rejoin(self, budget: Budget) -> bool:
        """Go on with a budget as it was shared before, if it was; return whether."""
        spent = None if budget.name is None or budget.usd is None else await self._find_spent(budget.name)
        if spent is None:
            return False
        own, budget.spent = budget.spent, max(budget.spent, spent)
        if own > spent:
            await self._budgets.open_shared([OpenedBudget(budget.name or "", to_nanos(own), 0)])
        self._set_report(budget)
        return True

    async def restore(self, charges: Sequence[ChargedBudget]) -> Budget | None:
        """Return the budgets that another process has shared, the first one within those after it."""
        above: Budget | None = None
        for charge in reversed(charges):
            above = Budget(usd=charge.limit / NANOS_PER_DOLLAR, parent=above, name=charge.scope)
            above.spent = await self._find_spent(charge.scope) or 0.0
            self._set_report(above)
        return above

    async def _find_spent(self, name: str) -> float | None:
        spent = await self._budgets.find_shared(name)
        return None if spent is None else spent / NANOS_PER_DOLLAR

    def _set_report(self, budget: Budget) -> None:
        budget.report = partial(self._settle, charge_of(budget))

    def _settle(self, charge: ChargedBudget, usd: float) -> None:
        self._ledger.settle([charge], reserved=0, spent=to_nanos(usd))
