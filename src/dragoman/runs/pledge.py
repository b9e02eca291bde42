"""A pledge: what is kept back of a run's budget for one model call, until it is known what that cost."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.accounts.price import DEFAULT_OUTPUT, NANO, Price
from dragoman.errors import BudgetExhausted
from dragoman.operations.budget import Budget

CHARACTERS = 4  # of an answer, for one token


class Pledge:
    """Money of a budget for one model call: as much as it may cost, more while its answer outgrows that.

    Without a price nothing can be kept back: such a call is paid for when its provider has told what it cost.
    """

    def __init__(self, budget: Budget | None, price: Price | None) -> None:
        self._budget = budget
        self._price = price if budget is not None and budget.is_limited else None
        self._held = 0.0
        self._room = 0  # tokens of the answer that are paid for
        self._open = True

    def take(self, tokens: Callable[[], int], most: int | None) -> None:
        """Keep it back: for so many `tokens` of the prompt, and an answer of `most`. BudgetExhausted."""
        budget, price = self._budget, self._price
        if budget is not None and budget.is_spent:
            raise BudgetExhausted("the budget of this run is spent")
        if price is not None:
            self._room = DEFAULT_OUTPUT if most is None else most
            self._keep(price.ceiling(tokens(), self._room))

    def note(self, said: int) -> None:
        """The answer has so many characters. BudgetExhausted when it outgrows what is left."""
        price = self._price
        while price is not None and said > self._room * CHARACTERS:
            self._keep(price.ceiling(0, DEFAULT_OUTPUT))
            self._room += DEFAULT_OUTPUT

    def settle(self, usd: float | None, *, answered: bool) -> None:
        """What it cost; None: nobody knows, and what was kept back counts if it was `answered`.

        Only the first time counts.
        """
        if not self._open or self._budget is None:
            return
        self._open = False
        unknown = self._held if answered else 0.0
        self._budget.settle(self._held, unknown if usd is None else usd)

    def _keep(self, nanos: int) -> None:
        if self._budget is not None:
            self._budget.reserve(nanos / NANO)
            self._held += nanos / NANO
