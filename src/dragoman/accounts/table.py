"""The table of limits: which of them stand for whom, and which budgets pay for a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import msgspec

from dragoman.accounts.price import NANO
from dragoman.accounts.windows import Bound
from dragoman.limits import NO_LIMITS, Limits
from dragoman.operations.identity import Identity
from dragoman.store.budgets import Charge, Refusal

DAY = 86_400


class LimitTable(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's limits.

    A key has its own limits or, where it has none, `keys`; its owner has `owner[NAME]` or `owners` in all.
    `unpriced` says what becomes of a request with a money limit for a model without a price.
    """

    keys: Limits = NO_LIMITS
    owners: Limits = NO_LIMITS
    owner: Mapping[str, Limits] = {}
    unpriced: Literal["refuse", "allow"] = "refuse"

    @property
    def is_empty(self) -> bool:
        """Whether only a key's own limits can stand for anybody."""
        return self.keys == NO_LIMITS and self.owners == NO_LIMITS and not self.owner

    def bounds(self, identity: Identity) -> Sequence[Bound]:
        """The limits that stand for a caller."""
        bounds = []
        if identity.key_id is not None:
            own = self.keys if identity.limits is None else identity.limits
            bounds.append(Bound(f"key:{identity.key_id}", own))
        bounds.append(Bound(f"owner:{identity.owner}", self.owner.get(identity.owner, self.owners)))
        return [bound for bound in bounds if bound.limits != NO_LIMITS]


def charges_of(bounds: Sequence[Bound], now: float) -> tuple[Charge, ...]:
    """The budgets that pay for a request of this moment, in unix seconds."""
    charges: list[Charge] = []
    for scope, limits in bounds:
        if limits.usd_per_day is not None or limits.usd_per_month is not None:
            day, month = windows_of(int(now // DAY))
            if limits.usd_per_day is not None:
                charges.append(Charge(scope, day, nanos(limits.usd_per_day)))
            if limits.usd_per_month is not None:
                charges.append(Charge(scope, month, nanos(limits.usd_per_month)))
        if limits.usd_total is not None:
            charges.append(Charge(scope, "total", nanos(limits.usd_total)))
    return tuple(charges)


@lru_cache(maxsize=4)
def windows_of(day: int) -> tuple[str, str]:
    """The windows of a UTC day, counted from 1970."""
    date = datetime.fromtimestamp(day * DAY, UTC)
    return f"day:{date:%Y-%m-%d}", f"month:{date:%Y-%m}"


def nanos(usd: float) -> int:
    return round(usd * NANO)


# ---- The tally: what this process knows of the budgets, so that they hold while the database is down.

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
