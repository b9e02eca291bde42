"""Rate and concurrency limits of keys and owners, with sliding windows of a minute. Reads no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from dragoman.usage_limits import Limits

MINUTE = 60.0
MAX_EXACT_ENTRIES = 1_024  # beyond that, entries within 60 ms are merged
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

    Exact up to 1,024 entries; beyond that, entries count for up to 60 ms too long, never too short. So no 60
    seconds ever have more than the limit, and memory is bounded.
    """

    total: int = 0
    entries: deque[WindowEntry] = field(default_factory=deque)

    def seconds_until_room(self, now: float, amount: int, *, limit: int) -> float:
        """Return the seconds until the amount fits: 0 for now, infinity if it exceeds the limit by itself."""
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
        """Add an amount."""
        self.total += amount
        if len(self.entries) >= MAX_EXACT_ENTRIES and now - self.entries[-1].since < MERGE_SECONDS:
            entry = self.entries[-1]
            entry.at, entry.amount = now, entry.amount + amount
        else:
            entry = WindowEntry(now, amount, now)
            self.entries.append(entry)
        return entry

    def subtract(self, now: float, entry: WindowEntry, *, amount: int) -> None:
        """Subtract an amount that was added as part of this entry."""
        self.expire(now)
        if entry.at + MINUTE > now:
            entry.amount -= amount
            self.total -= amount

    def expire(self, now: float) -> None:
        """Drop entries older than a minute."""
        entries = self.entries
        while entries and entries[0].at + MINUTE <= now:
            self.total -= entries.popleft().amount


@dataclass(slots=True)
class ScopeCounters:
    """The counters of one key or owner."""

    requests: SlidingWindow = field(default_factory=SlidingWindow)
    tokens: SlidingWindow = field(default_factory=SlidingWindow)
    parallel: int = 0

    def is_idle(self, now: float) -> bool:
        self.requests.expire(now)
        self.tokens.expire(now)
        return not (self.parallel or self.requests.entries or self.tokens.entries)


class ScopeLimits(NamedTuple):
    """The limits of a scope: `key:ID` or `owner:NAME`."""

    scope: str
    limits: Limits


class LimitRejection(NamedTuple):
    """The limit that rejects a request, and the seconds until it would not; infinity for never."""

    scope: str
    kind: LimitKind
    limit: int
    retry_after: float


class LimitLease(NamedTuple):
    """What a request counts for while it runs. Pass it to `RequestLimiter.release`."""

    scopes: Sequence[tuple[ScopeCounters, WindowEntry | None]]
    tokens: int


class RequestLimiter:
    """The counters of all scopes. Scopes without requests for a minute are dropped."""

    def __init__(self) -> None:
        self._scopes: dict[str, ScopeCounters] = {}
        self._last_sweep = 0.0

    def __len__(self) -> int:
        return len(self._scopes)

    def acquire(
        self, now: float, limits: Sequence[ScopeLimits], *, tokens: int
    ) -> LimitLease | LimitRejection:
        """Count a request in all scopes; or in none, and return the limit that rejects it.

        `tokens` are those of the prompt; the answer's are counted on `release`.
        """
        if now - self._last_sweep >= SWEEP_SECONDS:
            self._sweep(now)
        scopes = [self._scopes.get(bound.scope) or ScopeCounters() for bound in limits]
        for bound, scope in zip(limits, scopes, strict=True):
            denial = check_limits(now, bound, counters=scope, tokens=tokens)
            if denial is not None:
                return denial
        counted = []
        for bound, scope in zip(limits, scopes, strict=True):
            self._scopes[bound.scope] = scope
            scope.parallel += 1
            if bound.limits.requests_per_minute is not None:
                scope.requests.add(now, 1)
            counts = bound.limits.tokens_per_minute is not None
            counted.append((scope, scope.tokens.add(now, tokens) if counts else None))
        return LimitLease(counted, tokens)

    def add_tokens(
        self, now: float, lease: LimitLease, *, limits: Sequence[ScopeLimits], tokens: int
    ) -> LimitLease | LimitRejection:
        """Count the tokens of a prompt that is known only after `acquire`; return the new lease."""
        for bound, (scope, _) in zip(limits, lease.scopes, strict=True):
            limit = bound.limits.tokens_per_minute
            if limit is not None and (wait := scope.tokens.seconds_until_room(now, tokens, limit=limit)):
                return LimitRejection(bound.scope, "tokens", limit, wait)
        counted = [(scope, entry and scope.tokens.add(now, tokens)) for scope, entry in lease.scopes]
        return LimitLease(counted, tokens)

    def release(self, now: float, lease: LimitLease, *, tokens: int | None) -> None:
        """End a request. `tokens` is what it used, None if only the estimate is known."""
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
    """Return the limit of the scope that rejects one more request, if there is one."""
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
