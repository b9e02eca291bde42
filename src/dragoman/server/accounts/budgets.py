"""HTTP handler of budgets: the limits of keys and owners, what is spent of them, and when they reset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from dragoman.accounts.limit_table import LimitTable, charged_budgets
from dragoman.accounts.price import NANOS_PER_DOLLAR
from dragoman.accounts.request_limiter import ScopeLimits
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.operations.authorization import is_visible, visible_owner
from dragoman.store.accounts.budgets import ChargedBudget, window_bounds
from dragoman.store.accounts.keys import ApiKey
from dragoman.store.store import Store
from dragoman.usage_limits import NO_LIMITS, Limits

Json: TypeAlias = dict[str, Any]
MAX_SUBJECTS = 500


class BudgetSubject(msgspec.Struct, frozen=True):
    """A key or an owner with limits."""

    scope: ScopeLimits
    owner: str
    name: str | None = None


class BudgetHandlers:
    """Handler of `/api/budgets`. A key sees its owner's limits and those of its keys; with "admin", all."""

    def __init__(
        self, store: Store, limits: Callable[[], LimitTable], *, clock: Callable[[], float] = time.time
    ) -> None:
        """`limits` returns the limits in force, also after a reload."""
        self._store = store
        self._limits = limits
        self._clock = clock

    async def list(self, exchange: Exchange) -> None:
        """List the keys and owners with limits and their budgets; the most used one comes first."""
        now, visible = self._clock(), visible_owner(exchange.identity)
        valid = [key for key in await self._store.keys.list() if key.is_valid(now)]
        keys = [key for key in valid if is_visible(key.owner, to=visible)]
        table = self._limits()
        found = list(find_subjects(table, keys, caller=exchange.identity, is_admin=visible is None))
        subjects = found[:MAX_SUBJECTS]
        charges = [charged_budgets([subject.scope], now) for subject in subjects]
        places = [(charge.scope, charge.window) for each in charges for charge in each]
        balances = iter(await self._store.budgets.get_balances(places))
        rows = [
            subject_to_json(subject, [budget_to_json(charge, next(balances)) for charge in each])
            for subject, each in zip(subjects, charges, strict=True)
        ]
        rows.sort(key=lambda row: -max((share_of(each) for each in row["budgets"]), default=-1.0))
        await exchange.respond(
            200,
            {"budgets": rows, "more": len(found) > len(subjects), "asOf": now, "unpriced": table.unpriced},
        )


def find_subjects(
    table: LimitTable, keys: Sequence[ApiKey], *, caller: Identity, is_admin: bool
) -> Iterator[BudgetSubject]:
    """Yield the owners with limits, then the keys."""
    owners = {caller.owner, *(key.owner for key in keys), *(table.by_owner if is_admin else ())}
    for owner in sorted(owners):
        yield from subject_if_limited(
            f"owner:{owner}", table.by_owner.get(owner, table.default_owner), owner=owner
        )
    for key in keys:
        limits = table.default_key if key.limits is None else key.limits
        yield from subject_if_limited(f"key:{key.id}", limits, owner=key.owner, name=key.name)


def subject_if_limited(
    scope: str, limits: Limits, *, owner: str, name: str | None = None
) -> Iterable[BudgetSubject]:
    return [] if limits == NO_LIMITS else [BudgetSubject(ScopeLimits(scope, limits), owner, name)]


def subject_to_json(subject: BudgetSubject, budgets: Sequence[Json]) -> Json:
    """Return a key or an owner with its limits as JSON; a limit that it does not have is left out."""
    kind, _, id = subject.scope.scope.partition(":")
    limits = msgspec.to_builtins(subject.scope.limits)
    return {
        "kind": kind,
        "id": id,
        "owner": subject.owner,
        "name": subject.name,
        "limits": limits,
        "budgets": budgets,
    }


def budget_to_json(charge: ChargedBudget, balance: tuple[int, int]) -> Json:
    """Return a budget as JSON, in US dollars; `resetsAt` is None for one that is never reset."""
    spent, reserved = balance
    window, _, date = charge.window.partition(":")
    return {
        "window": window,
        "limit": charge.limit / NANOS_PER_DOLLAR,
        "spent": spent / NANOS_PER_DOLLAR,
        "reserved": reserved / NANOS_PER_DOLLAR,
        "resetsAt": window_bounds(charge.window)[1] if date else None,
    }


def share_of(budget: Json) -> float:
    """Return the share of a budget that is spent or reserved."""
    used: float = budget["spent"] + budget["reserved"]
    return used / budget["limit"] if budget["limit"] else 1.0
