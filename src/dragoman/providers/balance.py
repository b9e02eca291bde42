"""Balance: which of several routes answers the next request of an alias.

Pure but for the clock it is handed. A `RouteLoad` knows how busy, how fast and how healthy one route is; a
`Balancer` orders the members of one alias by it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from dragoman.providers.key_pool import DEFAULT_COOLDOWN, Cooldown

Strategy: TypeAlias = Literal["failover", "round_robin", "least_busy", "weighted", "latency"]

FAILED_SECONDS = 10.0  # a failed attempt counts as at least this slow: refusals are fast
SAMPLE_WEIGHT = 0.3  # of a new latency in the moving average
FORGET_SECONDS = 120.0  # within these an unused route's latency falls to 37 %, so that it is tried again


class BalancedModels(msgspec.Struct, frozen=True):
    """The models of an alias that chooses among them; `weights` by their names, 1 for those without."""

    models: Sequence[str]
    strategy: Strategy
    weights: Mapping[str, float] = {}


class RouteLoad:
    """The requests of one route: how many are active, how soon answers began, and whether it fails.

    After `cooldown.failures` failed requests in a row within `cooldown.window` seconds the route rests for
    `cooldown.seconds`.
    """

    def __init__(
        self, *, cooldown: Cooldown = DEFAULT_COOLDOWN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.active = 0
        self._cooldown = cooldown
        self._clock = clock
        self._failures: list[float] = []
        self._rests_until = -math.inf
        self._latency = 0.0
        self._measured_at: float | None = None

    @property
    def resting(self) -> bool:
        """Whether the route has failed too often of late."""
        return self._rests_until > self._clock()

    @property
    def expected_seconds(self) -> float:
        """How long a further request waits for its answer; 0 while nothing was measured."""
        if self._measured_at is None:
            return 0.0
        age = self._clock() - self._measured_at
        return self._latency * math.exp(-age / FORGET_SECONDS) * (self.active + 1)

    def start(self) -> RouteAttempt:
        """Count a request that is sent now."""
        return RouteAttempt(self, self._clock)

    def measure(self, seconds: float) -> None:
        """Take the time until an answer began into the average."""
        first = self._measured_at is None
        self._latency = seconds if first else self._latency + SAMPLE_WEIGHT * (seconds - self._latency)
        self._measured_at = self._clock()

    def record_success(self) -> None:
        """Forget earlier failures."""
        self._failures.clear()

    def record_failure(self) -> None:
        """Count a failed request."""
        now = self._clock()
        since = now - self._cooldown.window
        self._failures = [failed_at for failed_at in self._failures if failed_at > since] + [now]
        if len(self._failures) >= self._cooldown.failures:
            self._failures.clear()
            self._rests_until = now + self._cooldown.seconds


class RouteAttempt:
    """One request under way on a route. `end` it in any case; only the first end counts."""

    def __init__(self, load: RouteLoad, clock: Callable[[], float]) -> None:
        self._load = load
        self._clock = clock
        self._started_at = clock()
        self._answered = False
        self._ended = False
        load.active += 1

    def mark_answered(self) -> None:
        """The answer has begun."""
        self._answered = True
        self._load.measure(self._clock() - self._started_at)

    def fail(self) -> None:
        """The request failed for a reason that another route may not have."""
        if not self._ended:
            self._load.record_failure()
            if not self._answered:
                self._load.measure(max(FAILED_SECONDS, self._clock() - self._started_at))
            self._answered = False
        self.end()

    def end(self) -> None:
        """The request is over; an answer that has begun counts as a success."""
        if self._ended:
            return
        self._ended = True
        self._load.active -= 1
        if self._answered:
            self._load.record_success()


class Balancer:
    """Orders the members of one alias; `weights` in their order."""

    def __init__(self, strategy: Strategy, weights: Sequence[float]) -> None:
        self._strategy = strategy
        self._weights = weights
        self._chosen = 0  # how often any member was chosen
        self._last_chosen = [0] * len(weights)
        self._credit = [0.0] * len(weights)  # smooth weighted round robin, as nginx has it

    def order(self, loads: Sequence[RouteLoad], *, healthy: Sequence[bool], select: bool) -> Sequence[int]:
        """Return the members' positions, the one to ask first; those that are not healthy come last.

        `select`: a request follows, so that the next one goes elsewhere.
        """
        positions = sorted(
            range(len(loads)), key=lambda at: (not healthy[at], *self._rank(at, loads[at]), at)
        )
        if select:
            self._select(positions[0], healthy)
        return positions

    def _rank(self, at: int, load: RouteLoad) -> tuple[float, ...]:
        match self._strategy:
            case "failover":
                return ()
            case "round_robin":
                return (self._last_chosen[at],)
            case "least_busy":
                return load.active, self._last_chosen[at]
            case "latency":
                return load.expected_seconds, self._last_chosen[at]
            case "weighted":
                return not self._weights[at], -self._credit[at] - self._weights[at]

    def _select(self, chosen: int, healthy: Sequence[bool]) -> None:
        self._chosen += 1
        self._last_chosen[chosen] = self._chosen
        for at, weight in enumerate(self._weights):
            if healthy[at]:
                self._credit[at] += weight
                self._credit[chosen] -= weight
