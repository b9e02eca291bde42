"""Windows: what came in the last minute, and what goes on now, for each key and owner. Reads no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dragoman.limits import Limits

MINUTE = 60.0
MAX_EXACT_ENTRIES = 1_024  # entries that stand by themselves; beyond, those of the same 60 ms are one
MERGE_SECONDS = MINUTE / MAX_EXACT_ENTRIES
SWEEP_SECONDS = 60.0

LimitKind: TypeAlias = Literal["requests", "tokens", "parallel"]


@dataclass(slots=True, eq=False)
class WindowEntry:
    """An amount that counts until a minute after `at`."""

    at: float
    amount: int
    since: float


@dataclass(slots=True)
class SlidingWindow:
    """A sum over the last 60 seconds.

    Exact up to 1,024 entries; beyond, some stay in it for up to 60 ms too long, never too short. So no
    window of 60 seconds ever has more than was allowed, and one of them takes a bounded space.
    """

    total: int = 0
    entries: deque[WindowEntry] = field(default_factory=deque)

    def seconds_until_room(self, now: float, amount: int, *, limit: int) -> float:
        """Seconds until there is room for the amount: 0 for at once, infinity when it is over the limit."""
        self.expire(now)
        excess = self.total + amount - limit
        if excess <= 0:
            return 0.0
        for entry in self.entries:
            excess -= entry.amount
            if excess <= 0:
                return max(entry.at + MINUTE - now, 0.001)
        return float("inf")

    def add(self, now: float, amount: int) -> WindowEntry:
        """Count the amount."""
        self.total += amount
        if len(self.entries) >= MAX_EXACT_ENTRIES and now - self.entries[-1].since < MERGE_SECONDS:
            entry = self.entries[-1]
            entry.at, entry.amount = now, entry.amount + amount
        else:
            entry = WindowEntry(now, amount, now)
            self.entries.append(entry)
        return entry

    def subtract(self, now: float, entry: WindowEntry, *, amount: int) -> None:
        """Count no more what was added as part of this entry."""
        self.expire(now)
        if entry.at + MINUTE > now:
            entry.amount -= amount
            self.total -= amount

    def expire(self, now: float) -> None:
        """Drop what is older than a minute."""
        entries = self.entries
        while entries and entries[0].at + MINUTE <= now:
            self.total -= entries.popleft().amount


@dataclass(slots=True)
class ScopeCounters:
    """What one key or owner does."""

    requests: SlidingWindow = field(default_factory=SlidingWindow)
    tokens: SlidingWindow = field(default_factory=SlidingWindow)
    parallel: int = 0

    def is_idle(self, now: float) -> bool:
        self.requests.expire(now)
        self.tokens.expire(now)
        return not (self.parallel or self.requests.entries or self.tokens.entries)


class ScopeLimits(NamedTuple):
    """The limits of a scope, like `key:…` or `owner:…`."""

    scope: str
    limits: Limits


class LimitRejection(NamedTuple):
    """What there is no room for, whose limit it is, and for how many seconds; infinity: ever."""

    scope: str
    kind: LimitKind
    limit: int
    retry_after: float


class LimitLease(NamedTuple):
    """What a request holds while it runs."""

    scopes: Sequence[tuple[ScopeCounters, WindowEntry | None]]
    tokens: int


class RequestLimiter:
    """All scopes. Those that did nothing for a minute take no space."""

    def __init__(self) -> None:
        self._scopes: dict[str, ScopeCounters] = {}
        self._last_sweep = 0.0

    def __len__(self) -> int:
        return len(self._scopes)

    def acquire(
        self, now: float, limits: Sequence[ScopeLimits], *, tokens: int
    ) -> LimitLease | LimitRejection:
        """Count a request in all scopes; or in none of them, and say which has no room.

        `tokens` are those of the prompt; those of the answer are known and counted when it `release`s.
        """
        if now - self._last_sweep >= SWEEP_SECONDS:
            self._sweep(now)
        scopes = [self._scopes.get(bound.scope) or ScopeCounters() for bound in limits]
        for bound, scope in zip(limits, scopes, strict=True):
            denial = check_limits(now, bound, counters=scope, tokens=tokens)
            if denial is not None:
                return denial
        held = []
        for bound, scope in zip(limits, scopes, strict=True):
            self._scopes[bound.scope] = scope
            scope.parallel += 1
            if bound.limits.requests_per_minute is not None:
                scope.requests.add(now, 1)
            counts = bound.limits.tokens_per_minute is not None
            held.append((scope, scope.tokens.add(now, tokens) if counts else None))
        return LimitLease(held, tokens)

    def release(self, now: float, lease: LimitLease, *, tokens: int | None) -> None:
        """A request has ended; it took so many tokens, or as many as was thought."""
        for scope, entry in lease.scopes:
            scope.parallel -= 1
            if entry is not None and tokens is not None:
                scope.tokens.subtract(now, entry, amount=lease.tokens)
                if tokens:
                    scope.tokens.add(now, tokens)

    def _sweep(self, now: float) -> None:
        self._last_sweep = now
        for name in [name for name, scope in self._scopes.items() if scope.is_idle(now)]:
            del self._scopes[name]


def check_limits(
    now: float, scope_limits: ScopeLimits, *, counters: ScopeCounters, tokens: int
) -> LimitRejection | None:
    """Why the scope has no room for one more request, if it has none."""
    limits = scope_limits.limits
    if limits.parallel is not None and counters.parallel >= limits.parallel:
        return LimitRejection(scope_limits.scope, "parallel", limits.parallel, 1.0)
    if limits.requests_per_minute is not None:
        wait = counters.requests.seconds_until_room(now, 1, limit=limits.requests_per_minute)
        if wait:
            return LimitRejection(scope_limits.scope, "requests", limits.requests_per_minute, wait)
    if limits.tokens_per_minute is not None:
        wait = counters.tokens.seconds_until_room(now, tokens, limit=limits.tokens_per_minute)
        if wait:
            return LimitRejection(scope_limits.scope, "tokens", limits.tokens_per_minute, wait)
    return None
