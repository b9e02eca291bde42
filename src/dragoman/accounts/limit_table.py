"""The table of limits: which limits apply to a caller, and which budgets a request is charged to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import msgspec

from dragoman.accounts.price import to_nanos
from dragoman.accounts.request_limiter import ScopeLimits
from dragoman.identity import Identity
from dragoman.store.accounts.budgets import BudgetRefusal, ChargedBudget
from dragoman.usage_limits import NO_LIMITS, Limits

DAY_SECONDS = 86_400


class LimitTable(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's limits.

    A key has its own limits or, without any, `default_key`; its owner has `by_owner[NAME]` or `default_owner`
    for all keys together. `unpriced` decides on requests with a money limit for a model without a price.
    `named_documents` are the tokens of all documents together that a request only names.
    """

    default_key: Limits = NO_LIMITS
    default_owner: Limits = NO_LIMITS
    by_owner: Mapping[str, Limits] = {}
    unpriced: Literal["refuse", "allow"] = "refuse"
    named_documents: int = 100_000

    @property
    def is_empty(self) -> bool:
        """Whether the hub has no limits, so that only a key's own can apply."""
        return self.default_key == NO_LIMITS and self.default_owner == NO_LIMITS and not self.by_owner

    def limits_of(self, identity: Identity) -> Sequence[ScopeLimits]:
        """Return the limits that apply to a caller."""
        limits = []
        if identity.key_id is not None:
            own = self.default_key if identity.limits is None else identity.limits
            limits.append(ScopeLimits(f"key:{identity.key_id}", own))
        limits.append(
            ScopeLimits(f"owner:{identity.owner}", self.by_owner.get(identity.owner, self.default_owner))
        )
        return [scope_limits for scope_limits in limits if scope_limits.limits != NO_LIMITS]


def charged_budgets(limits_by_scope: Sequence[ScopeLimits], now: float) -> tuple[ChargedBudget, ...]:
    """Return the budgets that a request at the unix time `now` is charged to."""
    charges: list[ChargedBudget] = []
    for scope, limits in limits_by_scope:
        if limits.usd_per_day is not None or limits.usd_per_month is not None:
            day, month = budget_windows(int(now // DAY_SECONDS))
            if limits.usd_per_day is not None:
                charges.append(ChargedBudget(scope, day, to_nanos(limits.usd_per_day)))
            if limits.usd_per_month is not None:
                charges.append(ChargedBudget(scope, month, to_nanos(limits.usd_per_month)))
        if limits.usd_total is not None:
            charges.append(ChargedBudget(scope, "total", to_nanos(limits.usd_total)))
    return tuple(charges)


@lru_cache(maxsize=4)
def budget_windows(day: int) -> tuple[str, str]:
    """Return the day and month windows of a UTC day, counted from 1970."""
    date = datetime.fromtimestamp(day * DAY_SECONDS, UTC)
    return f"day:{date:%Y-%m-%d}", f"month:{date:%Y-%m}"


# Local budgets: what this process knows of the budgets, so that they are enforced while the database is down.

MAX_BUDGETS = 10_000


class LocalBudgets:
    """Spent and reserved amounts of each budget, as far as this process knows them."""

    def __init__(self) -> None:
        self._spent: dict[tuple[str, str], int] = {}
        self._reserved: dict[tuple[str, str], int] = {}

    def is_known(self, budget: ChargedBudget) -> bool:
        """Whether the spent amount of a budget is known."""
        return (budget.scope, budget.window) in self._spent

    def record_spent(self, budget: ChargedBudget, spent: int) -> None:
        """Record the spent amount that the database reported."""
        self._evict()
        key = (budget.scope, budget.window)
        self._spent[key] = max(spent, self._spent.get(key, 0))

    def reserve(self, charges: Sequence[ChargedBudget], amount: int) -> BudgetRefusal | None:
        """Reserve the amount in all budgets; or in none, and return the one that has too little left."""
        for charge in charges:
            key = (charge.scope, charge.window)
            spent, reserved = self._spent.get(key, 0), self._reserved.get(key, 0)
            if spent + reserved + amount > charge.limit:
                return BudgetRefusal(charge, spent, reserved)
        self._add(charges, amount)
        return None

    def settle(self, charges: Sequence[ChargedBudget], *, reserved: int, spent: int) -> None:
        """Release a reservation of this process and add what was spent."""
        self._evict()
        if reserved:
            self._add(charges, -reserved)
        for charge in charges:
            key = (charge.scope, charge.window)
            self._spent[key] = self._spent.get(key, 0) + spent

    def _add(self, charges: Sequence[ChargedBudget], amount: int) -> None:
        for charge in charges:
            key = (charge.scope, charge.window)
            left = self._reserved.get(key, 0) + amount
            if left > 0:
                self._reserved[key] = left
            else:
                self._reserved.pop(key, None)

    def _evict(self) -> None:
        """Drop the older half when there are too many: past days come first."""
        if len(self._spent) >= MAX_BUDGETS:
            for key in list(self._spent)[: MAX_BUDGETS // 2]:
                del self._spent[key]
