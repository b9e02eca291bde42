"""Part of a run's budget, reserved for one model call until its cost is known."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.accounts.price import DEFAULT_OUTPUT_TOKENS, NANOS_PER_DOLLAR, Price
from dragoman.accounts.request_size import CHARACTERS_PER_TOKEN, UNBOUNDED, AnswerBounds
from dragoman.errors import BudgetExhausted, DragomanError, ProviderError
from dragoman.operations.budget import Budget


class BudgetReservation:
    """Money of a run's budget reserved for one model call; it grows while the answer outgrows it.

    Without a price nothing can be reserved: such a call is paid for when its cost is known.
    """

    def __init__(self, budget: Budget, price: Price | None) -> None:
        self.budget = budget
        self.nanos = 0
        """Nano-dollars that were reserved so far, also after the settlement."""
        self._price = price if budget.is_limited else None
        self._output_tokens = 0  # of the answer that the reservation covers
        self._settled = False

    def reserve(self, input_tokens: Callable[[], int], answer: AnswerBounds = UNBOUNDED) -> None:
        """Reserve the most that the call may cost. Raises BudgetExhausted when there is no room for it."""
        if self.budget.is_spent:
            raise BudgetExhausted("the budget of this run is spent")
        if self._price is not None:
            limit = answer.output_tokens
            self._output_tokens = DEFAULT_OUTPUT_TOKENS if limit is None else limit
            self._add(answer.max_cost(self._price, input_tokens()))

    def grow(self, text_length: int) -> int:
        """Reserve more for a longer answer; return the nano-dollars added. Raises BudgetExhausted."""
        price, before = self._price, self.nanos
        while price is not None and text_length > self._output_tokens * CHARACTERS_PER_TOKEN:
            self._add(price.max_cost(0, DEFAULT_OUTPUT_TOKENS))
            self._output_tokens += DEFAULT_OUTPUT_TOKENS
        return self.nanos - before

    def settle(self, cost: float | None, *, answered: bool) -> None:
        """Release the reservation and spend the cost; only the first time counts.

        An unknown cost spends what was reserved if the model has answered, else nothing.
        """
        if self._settled:
            return
        self._settled = True
        reserved = self.nanos / NANOS_PER_DOLLAR
        unknown = reserved if answered else 0.0
        self.budget.settle(reserved, unknown if cost is None else cost)

    def _add(self, nanos: int) -> None:
        self.budget.reserve(nanos / NANOS_PER_DOLLAR)
        self.nanos += nanos


def refused(error: DragomanError) -> ProviderError:
    """Return the error of a run's model call that a limit of its caller refuses.

    Raise it `from` the limit's own error: callers read the budget's refusal from `__cause__`.
    """
    return ProviderError(error.message, category="rate_limit", hint=error.hint, transient=error.transient)
