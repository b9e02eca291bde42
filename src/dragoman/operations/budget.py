"""A budget: how many calls a tree may make and what they may cost; shared by all that is below it."""

from __future__ import annotations

from dragoman.errors import BudgetExhausted


class Budget:
    """What is left for a call and all below it: `usd` and `calls`; None: as much as it likes."""

    def __init__(self, *, usd: float | None = None, calls: int | None = None) -> None:
        self.usd = usd
        self.calls = calls
        self.spent = 0.0
        self.made = 0

    @property
    def is_spent(self) -> bool:
        """Whether the money is spent."""
        return self.usd is not None and self.spent >= self.usd

    def count(self) -> None:
        """One more call. BudgetExhausted when there were enough, or the money is spent."""
        if self.calls is not None and self.made >= self.calls:
            raise BudgetExhausted(f"the budget of {self.calls} calls is used up")
        if self.is_spent:
            raise BudgetExhausted(f"the budget of {self.usd:g} USD is spent")
        self.made += 1

    def spend(self, usd: float) -> None:
        """Money is spent. BudgetExhausted when that was more than there is: it is counted all the same."""
        self.spent += usd
        if self.usd is not None and self.spent > self.usd:
            raise BudgetExhausted(f"the budget of {self.usd:g} USD is spent")
