"""Windows: what came in the last minute, and what goes on now, for each key and owner. Reads no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dragoman.limits import Limits

MINUTE = 60.0
EXACT = 1_024  # entries that stand by themselves; beyond, those of the same 60 ms are one
TOGETHER = MINUTE / EXACT
SWEEP = 60.0

Measure: TypeAlias = Literal["requests", "tokens", "parallel"]


@dataclass(slots=True, eq=False)
class Entry:
    """An amount that counts until a minute after `at`."""

    at: float
    amount: int
    since: float


@dataclass(slots=True)
class Window:
    """A sum over the last 60 seconds.

    Exact up to 1,024 entries; beyond, some stay in it for up to 60 ms too long, never too short. So no
    window of 60 seconds ever has more than was allowed, and one of them takes a bounded space.
    """

    total: int = 0
    entries: deque[Entry] = field(default_factory=deque)

    def wait(self, now: float, amount: int, *, limit: int) -> float:
        """Seconds until there is room for the amount: 0 for at once, infinity when it is over the limit."""
        self.forget(now)
        excess = self.total + amount - limit
        if excess <= 0:
            return 0.0
        for entry in self.entries:
            excess -= entry.amount
            if excess <= 0:
                return max(entry.at + MINUTE - now, 0.001)
        return float("inf")

    def add(self, now: float, amount: int) -> Entry:
        """Count the amount."""
        self.total += amount
        if len(self.entries) >= EXACT and now - self.entries[-1].since < TOGETHER:
            entry = self.entries[-1]
            entry.at, entry.amount = now, entry.amount + amount
        else:
            entry = Entry(now, amount, now)
            self.entries.append(entry)
        return entry

    def take_back(self, now: float, entry: Entry, *, amount: int) -> None:
        """Count no more what was added as part of this entry."""
        self.forget(now)
        if entry.at + MINUTE > now:
            entry.amount -= amount
            self.total -= amount

    def forget(self, now: float) -> None:
        """Drop what is older than a minute."""
        entries = self.entries
        while entries and entries[0].at + MINUTE <= now:
            self.total -= entries.popleft().amount


@dataclass(slots=True)
class Scope:
    """What one key or owner does."""

    requests: Window = field(default_factory=Window)
    tokens: Window = field(default_factory=Window)
    parallel: int = 0

    def is_idle(self, now: float) -> bool:
        self.requests.forget(now)
        self.tokens.forget(now)
        return not (self.parallel or self.requests.entries or self.tokens.entries)


class Bound(NamedTuple):
    """The limits of a scope, like `key:…` or `owner:…`."""

    scope: str
    limits: Limits


class Denial(NamedTuple):
    """What there is no room for, whose limit it is, and for how many seconds; infinity: ever."""

    scope: str
    measure: Measure
    limit: int
    wait: float


class Stay(NamedTuple):
    """What a request holds while it runs."""

    scopes: Sequence[tuple[Scope, Entry | None]]
    tokens: int


class Windows:
    """All scopes. Those that did nothing for a minute take no space."""

    def __init__(self) -> None:
        self._scopes: dict[str, Scope] = {}
        self._swept = 0.0

    def __len__(self) -> int:
        return len(self._scopes)

    def enter(self, now: float, bounds: Sequence[Bound], *, tokens: int) -> Stay | Denial:
        """Count a request in all scopes; or in none of them, and say which has no room.

        `tokens` are those of the prompt; those of the answer are known and counted when it `leave`s.
        """
        if now - self._swept >= SWEEP:
            self._sweep(now)
        scopes = [self._scopes.get(bound.scope) or Scope() for bound in bounds]
        for bound, scope in zip(bounds, scopes, strict=True):
            denial = refuse(now, bound, scope=scope, tokens=tokens)
            if denial is not None:
                return denial
        held = []
        for bound, scope in zip(bounds, scopes, strict=True):
            self._scopes[bound.scope] = scope
            scope.parallel += 1
            if bound.limits.requests_per_minute is not None:
                scope.requests.add(now, 1)
            counts = bound.limits.tokens_per_minute is not None
            held.append((scope, scope.tokens.add(now, tokens) if counts else None))
        return Stay(held, tokens)

    def leave(self, now: float, stay: Stay, *, tokens: int | None) -> None:
        """A request has ended; it took so many tokens, or as many as was thought."""
        for scope, entry in stay.scopes:
            scope.parallel -= 1
            if entry is not None and tokens is not None:
                scope.tokens.take_back(now, entry, amount=stay.tokens)
                if tokens:
                    scope.tokens.add(now, tokens)

    def _sweep(self, now: float) -> None:
        self._swept = now
        for name in [name for name, scope in self._scopes.items() if scope.is_idle(now)]:
            del self._scopes[name]


def refuse(now: float, bound: Bound, *, scope: Scope, tokens: int) -> Denial | None:
    """Why the scope has no room for one more request, if it has none."""
    limits = bound.limits
    if limits.parallel is not None and scope.parallel >= limits.parallel:
        return Denial(bound.scope, "parallel", limits.parallel, 1.0)
    if limits.requests_per_minute is not None:
        wait = scope.requests.wait(now, 1, limit=limits.requests_per_minute)
        if wait:
            return Denial(bound.scope, "requests", limits.requests_per_minute, wait)
    if limits.tokens_per_minute is not None:
        wait = scope.tokens.wait(now, tokens, limit=limits.tokens_per_minute)
        if wait:
            return Denial(bound.scope, "tokens", limits.tokens_per_minute, wait)
    return None
