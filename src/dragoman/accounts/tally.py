"""The tally: what this process knows of the budgets, so that they hold while the database is down."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.store.budgets import Charge, Refusal

MOST = 10_000


class Tally:
    """What was spent and is reserved of each budget, as far as was seen here."""

    def __init__(self) -> None:
        self._spent: dict[tuple[str, str], int] = {}
        self._reserved: dict[tuple[str, str], int] = {}

    def knows(self, charge: Charge) -> bool:
        """Whether anything is known of a budget."""
        return (charge.scope, charge.window) in self._spent

    def learn(self, charge: Charge, spent: int) -> None:
        """The database says what was spent."""
        self._forget()
        key = (charge.scope, charge.window)
        self._spent[key] = max(spent, self._spent.get(key, 0))

    def reserve(self, charges: Sequence[Charge], amount: int) -> Refusal | None:
        """Reserve the amount in all budgets, or in none."""
        for charge in charges:
            key = (charge.scope, charge.window)
            spent, reserved = self._spent.get(key, 0), self._reserved.get(key, 0)
            if spent + reserved + amount > charge.limit:
                return Refusal(charge, spent, reserved)
        self._add(charges, amount)
        return None

    def settle(self, charges: Sequence[Charge], *, reserved: int, spent: int) -> None:
        """What was reserved here is free again, and this was spent, wherever it was reserved."""
        self._forget()
        if reserved:
            self._add(charges, -reserved)
        for charge in charges:
            key = (charge.scope, charge.window)
            self._spent[key] = self._spent.get(key, 0) + spent

    def _add(self, charges: Sequence[Charge], amount: int) -> None:
        for charge in charges:
            key = (charge.scope, charge.window)
            left = self._reserved.get(key, 0) + amount
            if left > 0:
                self._reserved[key] = left
            else:
                self._reserved.pop(key, None)

    def _forget(self) -> None:
        """Let go of the older half when there are too many: days that are over come first."""
        if len(self._spent) >= MOST:
            for key in list(self._spent)[: MOST // 2]:
                del self._spent[key]
