"""Budgets: the calls and US dollars that a call tree may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from dragoman.errors import BudgetExhausted

ROUNDING_TOLERANCE = 1e-9  # US dollars: sums of floats are inexact


class Budget:
    """The limits that a call and all calls below it share: `usd` and `calls`; None means no limit.

    Reserve what a call may cost before its cost is known, and settle it afterwards: concurrent calls cannot
    spend the same dollar. A budget with a `parent` is charged to both.

    `name` identifies it where other processes spend from it, too; it stays the same when a run continues.
    """

    def __init__(
        self,
        *,
        usd: float | None = None,
        calls: int | None = None,
        parent: Budget | None = None,
        name: str | None = None,
    ) -> None:
        self.usd = usd
        self.calls = calls
        self.parent = parent
        self.name = name
        self.report: Callable[[float], None] | None = None
        """Reports an amount that was spent without a reservation to other processes; None without any."""
        self.count: Callable[[Budget], Awaitable[None]] | None = None
        """Counts a call in the limits that are shared with other processes; None without any."""
        self.spent = 0.0
        self.reserved = 0.0
        self.calls_made = 0

    @property
    def chain(self) -> Iterator[Budget]:
        """This budget and those above it."""
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.parent

    @property
    def is_spent(self) -> bool:
        """Whether the money is spent, here or in the parent."""
        if self.parent is not None and self.parent.is_spent:
            return True
        return self.usd is not None and self.spent >= self.usd

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit in US dollars, here or in the parent."""
        return self.usd is not None or (self.parent is not None and self.parent.is_limited)

    @property
    def remaining(self) -> float | None:
        """US dollars that are neither spent nor reserved, here; None without a limit."""
        return None if self.usd is None else max(0.0, self.usd - self.spent - self.reserved)

    @property
    def left(self) -> float | None:
        """US dollars that are left here and in all budgets above; None without a limit."""
        return min((budget.remaining for budget in self.chain if budget.remaining is not None), default=None)

    def count_call(self) -> None:
        """Count one call. Raises BudgetExhausted if no call is left, or the money is spent."""
        if self.calls is not None and self.calls_made >= self.calls:
            raise BudgetExhausted(f"The budget of {self.calls} calls is used up.")
        if self.usd is not None and self.spent >= self.usd:
            raise BudgetExhausted(f"The budget of {self.usd:g} USD is spent.")
        if self.parent is not None:
            self.parent.count_call()
        self.calls_made += 1

    async def count_shared_call(self) -> None:
        """Count one call in the limits that are shared with other processes.

        Raises BudgetExhausted if no call is left.
        """
        count = next((budget.count for budget in self.chain if budget.count is not None), None)
        if count is not None:
            await count(self)

    def spend(self, usd: float) -> None:
        """Add an amount to `spent`. Raises BudgetExhausted if the limit is exceeded; it is added anyway."""
        self.spent += usd
        if self.report is not None:
            self.report(usd)
        if self.parent is not None:
            self.parent.spend(usd)
        if self.usd is not None and self.spent > self.usd:
            raise BudgetExhausted(f"The budget of {self.usd:g} USD is spent.")

    def reserve(self, usd: float) -> None:
        """Reserve an amount. Raises BudgetExhausted if less is left."""
        remaining = self.remaining
        if remaining is not None and usd > remaining + ROUNDING_TOLERANCE:
            raise BudgetExhausted(
                f"The budget of {self.usd:g} USD has {remaining:.6f} left; this call may cost {usd:.6f}.",
                transient=self.reserved > 0 and not self.is_spent,
            )
        if self.parent is not None:
            self.parent.reserve(usd)
        self.reserved += usd

    def settle(self, reserved: float, usd: float) -> None:
        """Release a reservation and spend `usd` of it."""
        self.reserved = max(0.0, self.reserved - reserved)
        self.spent += usd
        if self.parent is not None:
            self.parent.settle(reserved, usd)


class CostTotal:
    """The known costs below a run, in US dollars: those of its sub-agents, and those that operations report.

    Costs are also added to the total of the parent run. `usd` is None while no cost is known.
    """

    __slots__ = ("parent", "usd")

    def __init__(self, parent: CostTotal | None = None) -> None:
        self.parent = parent
        self.usd: float | None = None

    @property
    def depth(self) -> int:
        """The number of runs above this one."""
        depth, above = 0, self.parent
        while above is not None:
            depth, above = depth + 1, above.parent
        return depth

    def add(self, usd: float | None) -> None:
        """Add a cost, here and above."""
        if usd is not None:
            self.usd = (self.usd or 0.0) + usd
            if self.parent is not None:
                self.parent.add(usd)
