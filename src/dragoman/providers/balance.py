"""Load balancing: which of several routes answers the next request of an alias.

A `RouteLoad` records how busy, how fast and how healthy one route is; a `Balancer` orders the members of one
alias by that. Both are plain objects without I/O; the clock is passed in.
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
FORGET_SECONDS = 120.0  # in which the latency of an unused route falls to 37 %, so that it is tried again


class BalancedModels(msgspec.Struct, frozen=True):
    """The models of an alias that balances. `weights` are by the models' names, 1 for those without."""

    models: Sequence[str]
    strategy: Strategy
    weights: Mapping[str, float] = {}


class RouteLoad:
    """The requests of one route: how many are active, how soon answers start, and whether it fails.

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
        """Whether the route is passed over because it has failed too often."""
        return self._rests_until > self._clock()

    @property
    def expected_seconds(self) -> float:
        """How long another request would wait for its answer; 0 before the first measurement."""
        if self._measured_at is None:
            return 0.0
        age = self._clock() - self._measured_at
        return self._latency * math.exp(-age / FORGET_SECONDS) * (self.active + 1)

    def start(self) -> RouteAttempt:
        """Count a request that is sent now."""
        return RouteAttempt(self, self._clock)

    def measure(self, seconds: float) -> None:
        """Add the seconds until an answer started to the moving average."""
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
    """One request on a route. Always `end` it; later calls do nothing."""

    def __init__(self, load: RouteLoad, clock: Callable[[], float]) -> None:
        self._load = load
        self._clock = clock
        self._started_at = clock()
        self._answered = False
        self._ended = False
        load.active += 1

    def mark_answered(self) -> None:
        """Record that the answer has started."""
        self._answered = True
        self._load.measure(self._clock() - self._started_at)

    def fail(self) -> None:
        """End the request with a failure that another route might not have had."""
        if not self._ended:
            self._load.record_failure()
            if not self._answered:
                self._load.measure(max(FAILED_SECONDS, self._clock() - self._started_at))
            self._answered = False
        self.end()

    def end(self) -> None:
        """End the request; it is a success if its answer has started."""
        if self._ended:
            return
        self._ended = True
        self._load.active -= 1
        if self._answered:
            self._load.record_success()


class Balancer:
    """Orders the members of one alias; `weights` are in the order of the members."""

    def __init__(self, strategy: Strategy, weights: Sequence[float]) -> None:
        self._strategy = strategy
        self._weights = weights
        self._chosen = 0  # how often any member was chosen
        self._last_chosen = [0] * len(weights)
        self._credit = [0.0] * len(weights)  # for smooth weighted round robin, as in nginx

    def order(self, loads: Sequence[RouteLoad], *, healthy: Sequence[bool], select: bool) -> Sequence[int]:
        """Return the positions of the members in the order to try them, those that are not healthy last.

        `select`: a request follows, so it is counted for the first one.
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
