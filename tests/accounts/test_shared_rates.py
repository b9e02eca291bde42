"""Rates over many hosts: within the limit in every minute, and used up where there is demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pytest

from dragoman.accounts.request_limiter import LimitLease, LimitRejection, RequestLimiter, ScopeLimits
from dragoman.accounts.shared_rates import EXCHANGE_INTERVAL, SharedRates
from dragoman.store.hosts.rates import KEPT_SECONDS, HostRate, RateDecision, RateKey
from dragoman.usage_limits import Limits
from tests.loop_clock import LoopClock
from tests.waiting import until

STEP = 0.05
MINUTE = 60.0


class SimulatedStore:
    """The rows of all hosts, and the database's clock."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.exchanges = 0
        self._rows: dict[RateKey, dict[str, HostRate]] = {}

    async def exchange(
        self, host: str, decisions: Mapping[RateKey, RateDecision]
    ) -> Mapping[RateKey, tuple[float, HostRate]]:
        self.exchanges += 1
        found = {}
        for key, decide in decisions.items():
            rows = self._rows.setdefault(key, {})
            own = decide(self.now, [row for name, row in rows.items() if name != host])
            rows[host] = own
            found[key] = (self.now, own)
        return found

    async def delete_old(self, now: float) -> None:
        for rows in self._rows.values():
            for name in [name for name, row in rows.items() if row.lease_until < now - KEPT_SECONDS]:
                del rows[name]


class Simulation:
    """Hosts whose clocks differ, and one scope with a limit."""

    def __init__(self, hosts: int, limits: Limits, *, seed: int = 1) -> None:
        self.store = SimulatedStore()
        self.limits = [ScopeLimits("key:k", limits)]
        rng = random.Random(seed)
        self.hosts = [self._host(f"host_{number}", rng.uniform(-1e5, 1e5)) for number in range(hosts)]
        self.accepted: list[tuple[float, int]] = []
        self.accepted_by_one = 0
        """How many of the same requests one host that got them all would accept."""
        self._one = RequestLimiter()
        self._ticks = [rng.uniform(0, EXCHANGE_INTERVAL) for _ in range(hosts)]

    def _host(self, name: str, skew: float) -> SharedRates:
        return SharedRates(self.store, name, monotonic=lambda: self.store.now + skew)

    async def ask(self, host: int, *, tokens: int = 1) -> LimitRejection | None:
        if isinstance(self._one.acquire(self.store.now, self.limits, tokens=tokens), LimitLease):
            self.accepted_by_one += 1
        answer = await self.hosts[host].acquire(self.limits, tokens=tokens)
        if isinstance(answer, LimitRejection):
            return answer
        self.accepted.append((self.store.now, tokens))
        return None

    async def run(self, seconds: float, demand: Callable[[float], Sequence[int]], *, tokens: int = 1) -> None:
        """Let requests come in: `demand` returns the hosts that are asked at a moment."""
        begin = self.store.now
        while self.store.now < begin + seconds:
            for host in demand(self.store.now - begin):
                await self.ask(host, tokens=tokens)
            self.store.now += STEP
            for number, member in enumerate(self.hosts):
                self._ticks[number] -= STEP
                if self._ticks[number] <= 0:
                    self._ticks[number] += EXCHANGE_INTERVAL
                    await member.tick()

    def most_in_a_minute(self) -> int:
        """The most that was accepted in any minute."""
        return max(
            sum(amount for at, amount in self.accepted if start <= at < start + MINUTE)
            for start, _ in self.accepted
        )


def even(rate: float, hosts: int, rng: random.Random) -> Callable[[float], Sequence[int]]:
    """So many requests a second at all hosts together, at random ones."""
    return lambda _: [
        rng.randrange(hosts) for _ in range(sum(rng.random() < rate * STEP / 8 for _ in range(8)))
    ]


def skewed(rate: float, hosts: int, rng: random.Random) -> Callable[[float], Sequence[int]]:
    """Nine of ten requests at one host, which changes every 20 seconds."""
    spread = even(rate, hosts, rng)
    return lambda at: [int(at / 20) % hosts if rng.random() < 0.9 else each for each in spread(at)]


def bursts(size: int, hosts: int) -> Callable[[float], Sequence[int]]:
    """So many requests at every host in the same moment, once in five seconds."""
    return lambda at: [*range(hosts)] * size if at % 5 < STEP else []


Demand: TypeAlias = Callable[[float], Sequence[int]]
DEMANDS: dict[str, Callable[[int, int, random.Random], Demand]] = {
    "even": lambda limit, hosts, rng: even(limit / 60 * 2.5, hosts, rng),
    "skewed": lambda limit, hosts, rng: skewed(limit / 60 * 2.5, hosts, rng),
    "bursts": lambda limit, hosts, _: bursts(max(1, round(limit / hosts / 5)), hosts),
    "at one host": lambda limit, _, rng: even(limit / 60 * 1.2, 1, rng),
}


@pytest.mark.parametrize("shape", DEMANDS)
@pytest.mark.parametrize(("hosts", "limit"), [(3, 6), (3, 120), (10, 10), (10, 300)])
async def test_every_minute_of_all_hosts_is_within_the_limit_and_used_up(
    shape: str, hosts: int, limit: int
) -> None:
    simulation = Simulation(hosts, Limits(requests_per_minute=limit))
    await simulation.run(150, DEMANDS[shape](limit, hosts, random.Random(3)))
    assert simulation.most_in_a_minute() <= limit
    assert len(simulation.accepted) >= 0.9 * simulation.accepted_by_one


async def test_a_burst_on_all_hosts_in_one_moment_stays_within_the_limit() -> None:
    simulation = Simulation(10, Limits(requests_per_minute=20))
    answers = [await simulation.ask(number % 10) for number in range(200)]
    assert answers.count(None) == 20
    refused = next(answer for answer in answers if answer is not None)
    assert (refused.kind, refused.limit) == ("requests", 20)
    assert 0 < refused.retry_after <= 61


async def test_tokens_are_counted_over_hosts_as_they_turn_out() -> None:
    simulation = Simulation(3, Limits(tokens_per_minute=1_000))
    first, second = simulation.hosts[0], simulation.hosts[1]
    taken = await first.acquire(simulation.limits, tokens=600)
    assert not isinstance(taken, LimitRejection)
    assert isinstance(await second.acquire(simulation.limits, tokens=600), LimitRejection)
    first.settle(taken, tokens=100)
    simulation.store.now += 2.0
    await first.tick()
    assert not isinstance(await second.acquire(simulation.limits, tokens=600), LimitRejection)
    too_many = await second.acquire(simulation.limits, tokens=1_001)
    assert isinstance(too_many, LimitRejection)
    assert too_many.retry_after == float("inf")


async def test_the_database_is_asked_once_a_second_and_not_for_each_request() -> None:
    simulation = Simulation(3, Limits(requests_per_minute=60_000))
    await simulation.run(20, lambda _: [*range(3)] * 5)  # 100 requests a second at each host
    assert len(simulation.accepted) == 20 / STEP * 15
    assert simulation.store.exchanges <= 3 * 20 * 2


async def test_the_lease_of_a_dead_host_counts_for_a_minute_and_no_longer() -> None:
    simulation = Simulation(2, Limits(requests_per_minute=10))
    dead, alive = simulation.hosts
    for _ in range(3):
        await dead.acquire(simulation.limits, tokens=0)
    simulation.hosts = [alive]
    simulation._ticks = [0.5]
    await simulation.run(50, lambda _: [0])
    assert len(simulation.accepted) <= 7
    simulation.accepted.clear()
    await simulation.run(90, lambda _: [0])
    assert simulation.most_in_a_minute() == 10


async def test_a_scope_that_nobody_uses_is_forgotten() -> None:
    simulation = Simulation(1, Limits(requests_per_minute=10))
    await simulation.run(2, lambda _: [0])
    assert len(simulation.hosts[0]) == 1
    await simulation.run(70, lambda _: [])
    assert len(simulation.hosts[0]) == 0


class CorruptedOnceStore(SimulatedStore):
    """A store in which a row cannot be read once `is_corrupted` is set, until the next exchange."""

    is_corrupted = False

    async def exchange(
        self, host: str, decisions: Mapping[RateKey, RateDecision]
    ) -> Mapping[RateKey, tuple[float, HostRate]]:
        if self.is_corrupted:
            self.is_corrupted = False
            raise ValueError("a row of another host cannot be read")
        return await super().exchange(host, decisions)


async def test_an_unexpected_error_does_not_end_the_reports_of_a_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, clock = CorruptedOnceStore(), LoopClock()
    rates = SharedRates(store, "host_1", monotonic=lambda: store.now)
    await rates.acquire([ScopeLimits("key:k", Limits(requests_per_minute=10))], tokens=1)
    reports = asyncio.create_task(rates.run())
    try:
        await asyncio.sleep(0)
        store.now += 2
        store.is_corrupted = True
        clock.set_ahead(EXCHANGE_INTERVAL)
        await until(lambda: not store.is_corrupted)
        clock.set_ahead(EXCHANGE_INTERVAL)
        await until(lambda: store.exchanges == 2 or reports.done())
        assert not reports.done()
        assert "cannot be read" in caplog.text
    finally:
        reports.cancel()
