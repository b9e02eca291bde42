"""A budget: how many calls a tree may make and what they may cost; shared by all that is below it."""

from __future__ import annotations

from dragoman.errors import BudgetExhausted

ROUNDING_TOLERANCE = 1e-9  # dollars that sums of floats may be off by


class Budget:
    """What is left for a call and all below it: `usd` and `calls`; None: as much as it likes.

    Who does not know yet what something costs reserves what it may cost, and settles it afterwards: so
    those who spend at the same time do not spend the same dollar. A budget within another one, `parent`, is
    spent out of both.
    """

    def __init__(
        self, *, usd: float | None = None, calls: int | None = None, parent: Budget | None = None
    ) -> None:
        self.usd = usd
        self.calls = calls
        self.parent = parent
        self.spent = 0.0
        self.reserved = 0.0
        self.calls_made = 0

    @property
    def is_spent(self) -> bool:
        """Whether the money is spent, here or above."""
        if self.parent is not None and self.parent.is_spent:
            return True
        return self.usd is not None and self.spent >= self.usd

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit to the money, here or above."""
        return self.usd is not None or (self.parent is not None and self.parent.is_limited)

    @property
    def remaining(self) -> float | None:
        """US dollars that are neither spent nor reserved, here; None where there is no limit."""
        return None if self.usd is None else max(0.0, self.usd - self.spent - self.reserved)

    def count_call(self) -> None:
        """One more call. BudgetExhausted when there were enough, or the money is spent."""
        if self.calls is not None and self.calls_made >= self.calls:
            raise BudgetExhausted(f"the budget of {self.calls} calls is used up")
        if self.usd is not None and self.spent >= self.usd:
            raise BudgetExhausted(f"the budget of {self.usd:g} USD is spent")
        if self.parent is not None:
            self.parent.count_call()
        self.calls_made += 1

    def spend(self, usd: float) -> None:
        """Money is spent. BudgetExhausted when that was more than there is: it is counted all the same."""
        self.spent += usd
        if self.parent is not None:
            self.parent.spend(usd)
        if self.usd is not None and self.spent > self.usd:
            raise BudgetExhausted(f"the budget of {self.usd:g} USD is spent")

    def reserve(self, usd: float) -> None:
        """Keep money back for what is about to be done. BudgetExhausted when there is not so much left."""
        left = self.remaining
        if left is not None and usd > left + ROUNDING_TOLERANCE:
            raise BudgetExhausted(
                f"the budget of {self.usd:g} USD has {left:.6f} left, and this may cost {usd:.6f}",
                transient=self.reserved > 0 and not self.is_spent,
            )
        if self.parent is not None:
            self.parent.reserve(usd)
        self.reserved += usd

    def settle(self, reserved: float, usd: float) -> None:
        """What was reserved is free again, and so much of it was spent."""
        self.reserved = max(0.0, self.reserved - reserved)
        self.spent += usd
        if self.parent is not None:
            self.parent.settle(reserved, usd)
