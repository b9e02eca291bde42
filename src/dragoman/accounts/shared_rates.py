"""Rate limits over all hosts: each leases a part of what is left, and counts against it without the database.

A host asks the database when its lease is used up or old, at most about once a second for a rate in use. What
it has counted, and what it may still count, is in a row that the others read when they ask: so all hosts
together stay within the limit in every minute, however the load is spread. A lease that a dead host leaves
counts as used for a minute. All times are those of the database's clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple, Protocol

from dragoman.accounts.request_limiter import LimitKind, LimitRejection, ScopeLimits
from dragoman.errors import StoreError, Unavailable
from dragoman.store.hosts.rates import HostRate, RateDecision, RateKey

log = logging.getLogger(__name__)

MINUTE = 60
LEASE_SECONDS = 2.0
EXCHANGE_INTERVAL = 1.0
MIN_ELAPSED = 0.25  # seconds; the demand of a shorter burst is spread over this time
DEMAND_MARGIN = 1.2
MAX_ATTEMPTS = 8  # exchanges for one request, while other requests of this host use up each new lease
CLEANUP_INTERVAL = 60.0
MAX_FINE_LIMIT = 600
MAX_BATCH = 100  # rates in one transaction


class RateRequest(NamedTuple):
    """What a host asks of a rate: room for `needed` now, and for what it expects in the next second.

    `first` is the part of what is needed that is one request's.
    """

    host: str
    limit: int
    needed: int
    first: int
    expected: int
    counts: Mapping[int, int]


def slot_of(now: float, limit: int) -> int:
    """Return the end of the slot in which an amount is counted, in tenths of a second.

    A slot is a second long, or a tenth where there are few entries: an amount counts a slot too long.
    """
    return int(now * 10) + 1 if limit <= MAX_FINE_LIMIT else (int(now) + 1) * 10


def is_current(now: float, slot: int) -> bool:
    """Whether a slot's amount still counts: it does until a minute after the slot's end."""
    return slot / 10 + MINUTE > now


def used_amount(now: float, counts: Mapping[int, int]) -> int:
    """Return what still counts."""
    return sum(amount for slot, amount in counts.items() if is_current(now, slot))


def leased_amount(now: float, rate: HostRate) -> int:
    """Return what a host may have used of its lease since its last exchange.

    It counts until a minute after the end of the lease.
    """
    return rate.lease if rate.lease_until + MINUTE > now else 0


def room_left(now: float, request: RateRequest, *, others: Sequence[HostRate]) -> int:
    """Return how much of the limit nobody has counted or leased."""
    taken = sum(used_amount(now, each.counts) + leased_amount(now, each) for each in others)
    return request.limit - taken - used_amount(now, request.counts)


def decide_lease(now: float, others: Sequence[HostRate], *, request: RateRequest) -> HostRate:
    """Return the host's row with a new lease: what it needs now, or its fair share of what it expects."""
    room = room_left(now, request, others=others)
    active = 1 + sum(each.lease_until > now for each in others)
    wanted = max(request.needed, min(request.expected, room // active))
    counts = {slot: amount for slot, amount in request.counts.items() if is_current(now, slot)}
    return HostRate(
        host=request.host,
        counts=counts,
        lease=max(0, min(room, wanted)),
        lease_until=now + LEASE_SECONDS,
    )


def seconds_until_room(now: float, request: RateRequest, *, others: Sequence[HostRate]) -> float:
    """Return the seconds until the first request fits; those that wait with it do later."""
    excess = request.first - room_left(now, request, others=others)
    ends = [(each.lease_until, each.lease) for each in others if each.lease]
    for counts in (request.counts, *(each.counts for each in others)):
        ends += [(slot / 10 + MINUTE, amount) for slot, amount in counts.items()]
    for end, amount in sorted(ends):
        excess -= amount if end > now else 0
        if excess <= 0:
            return max(end - now, 0.001)
    return EXCHANGE_INTERVAL


class RateShare:
    """This host's part of one rate. Reads no clock."""

    def __init__(self) -> None:
        self.limit = 0
        self.counts: dict[int, int] = {}
        self.lease = 0
        self.lease_until = 0.0
        self.exchanged_at = 0.0
        self.retry_after = 0.0
        self._denied_until = 0.0
        self._demand = 0
        self._pace = 0.0  # the amount requested per second
        self._is_changed = False
        self.exchange: asyncio.Future[None] | None = None
        self.waiting = 0
        """What requests need that wait for the exchange under way."""

    def fits(self, now: float, amount: int, *, limit: int) -> bool:
        """Whether the amount may be counted without asking the database."""
        self.limit = limit
        return now < self.lease_until and self.lease >= amount

    def is_denied(self, now: float) -> bool:
        """Whether the database has just answered that there is too little room."""
        return now < self._denied_until

    def add(self, now: float, amount: int) -> int:
        """Count an amount against the lease; return the slot that it is counted in."""
        slot = slot_of(now, self.limit)
        self.lease = max(0, self.lease - amount)
        self.counts[slot] = self.counts.get(slot, 0) + amount
        self._is_changed = True
        return slot

    def replace(self, now: float, slot: int, *, before: int, amount: int) -> None:
        """Count another amount instead of one that was counted in `slot`."""
        if slot in self.counts:
            self.counts[slot] -= before
        if amount:
            self.add(now, amount)
            self.lease += min(before, amount)
        self._is_changed = True

    def ask(self, amount: int) -> None:
        """Note an amount that a request asks for, whether it gets it or not."""
        self._demand += amount

    def begin_exchange(self, now: float, host: str, *, needed: int, first: int) -> RateRequest:
        """Return the lease and build the request. Until `end_exchange` no request fits."""
        elapsed = min(max(now - self.exchanged_at, MIN_ELAPSED), LEASE_SECONDS)
        self._pace = max(self._demand / elapsed, self._pace / 2 if self._demand else 0.0)
        self._demand, self.lease, self._is_changed = 0, 0, False
        self.counts = {slot: amount for slot, amount in self.counts.items() if is_current(now, slot)}
        expected = min(self.limit, ceil(self._pace * EXCHANGE_INTERVAL * DEMAND_MARGIN))
        return RateRequest(host, self.limit, needed, first, expected, dict(self.counts))

    def end_exchange(self, now: float, own: HostRate, *, needed: int, retry_after: float) -> None:
        """Store the new lease."""
        self.lease, self.lease_until, self.exchanged_at = own.lease, own.lease_until, now
        self.retry_after = retry_after
        is_short = own.lease < needed
        self._denied_until = now + min(retry_after, EXCHANGE_INTERVAL) if is_short else 0.0

    def fail_exchange(self) -> None:
        """Report the counts with the next exchange instead. The returned lease stays returned."""
        self._is_changed = True

    def is_due(self, now: float) -> bool:
        """Whether there are counts to report to the other hosts, or an unused lease to return."""
        return bool(self._is_changed or self.lease) and now - self.exchanged_at >= EXCHANGE_INTERVAL

    def is_idle(self, now: float) -> bool:
        """Whether nothing of it counts any more."""
        is_busy = self.exchange is not None or self.waiting
        return not (is_busy or self.lease or self._is_changed or used_amount(now, self.counts))


class RateStore(Protocol):
    """Where hosts exchange their counts and leases: `HostRateRepository`, or the store of a simulation."""

    async def exchange(
        self, host: str, decisions: Mapping[RateKey, RateDecision]
    ) -> Mapping[RateKey, tuple[float, HostRate]]: ...

    async def delete_old(self, now: float) -> None: ...


class CountedRate(NamedTuple):
    """An amount that a request was counted with. Pass it to `SharedRates.settle`."""

    key: RateKey
    share: RateShare
    slot: int
    amount: int


class WantedRate(NamedTuple):
    """An amount that a request is to be counted with."""

    key: RateKey
    share: RateShare
    limit: int
    amount: int

    def take(self, now: float) -> CountedRate:
        """Count it."""
        return CountedRate(self.key, self.share, self.share.add(now, self.amount), self.amount)

    def rejection(self) -> LimitRejection:
        """Return the rejection; it never fits if it exceeds the limit by itself."""
        scope, kind = self.key
        counted: LimitKind = "requests" if kind == "requests" else "tokens"
        wait = min(max(self.share.retry_after, 0.001), MINUTE + 1.0)
        return LimitRejection(scope, counted, self.limit, wait if self.amount <= self.limit else float("inf"))


class SharedRates:
    """The rates of all scopes in use, as far as this host has a part of them."""

    def __init__(
        self, store: RateStore, host: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._host = host
        self._monotonic = monotonic
        self._offset: float | None = None  # of the database's clock
        self._shares: dict[RateKey, RateShare] = {}
        self._cleaned_at = 0.0
        self._is_alone = False

    def __len__(self) -> int:
        return len(self._shares)

    async def acquire(
        self, limits: Sequence[ScopeLimits], *, tokens: int
    ) -> Sequence[CountedRate] | LimitRejection:
        """Count a request in all scopes; or in none, and return the limit that rejects it.

        While the database does not answer, nothing is shared: each host applies the whole limit by itself.
        """
        rates = [
            WantedRate(key, self._shares.setdefault(key, RateShare()), limit, amount)
            for key, limit, amount in list_rates(limits, tokens=tokens)
        ]
        for rate in rates:
            rate.share.ask(rate.amount)
        try:
            for _ in range(MAX_ATTEMPTS):
                now = self._now()
                missing = [rate for rate in rates if not rate.share.fits(now, rate.amount, limit=rate.limit)]
                if not missing:
                    return [rate.take(now) for rate in rates]
                if refused := [rate for rate in missing if rate.share.is_denied(now)]:
                    return refused[0].rejection()
                for rate in missing:
                    await self._ask(rate)
        except (StoreError, Unavailable) as error:
            if not self._is_alone:  # once an outage, not once a request
                log.warning("the rates of this host are not shared with others: %s", error.message)
            self._is_alone = True
            return ()
        return rates[0].rejection()

    def settle(self, counted: Sequence[CountedRate], *, tokens: int | None) -> None:
        """Count the tokens that a request used in place of its estimate; None if they are unknown."""
        if tokens is None:
            return
        for rate in counted:
            if rate.key[1] == "tokens":
                rate.share.replace(self._now(), rate.slot, before=rate.amount, amount=tokens)

    def withdraw(self, counted: Sequence[CountedRate]) -> None:
        """Take back a request that was not admitted."""
        for rate in counted:
            rate.share.replace(self._now(), rate.slot, before=rate.amount, amount=0)

    async def run(self) -> None:
        """Report once a second what was counted, until cancelled."""
        while True:
            await asyncio.sleep(EXCHANGE_INTERVAL)
            try:
                await self.tick()
            except (StoreError, Unavailable):
                pass  # the counts go with the next exchange
            except Exception:  # such as a row that cannot be read; the next exchange may succeed
                log.exception("the rates of this host could not be exchanged")

    async def tick(self) -> None:
        """Report what was counted, and return unused leases. Raises StoreError, Unavailable."""
        now = self._now()
        due = [
            (key, share, 0)
            for key, share in self._shares.items()
            if share.exchange is None and share.is_due(now)
        ]
        for start in range(0, len(due), MAX_BATCH):
            await self._exchange(due[start : start + MAX_BATCH])
        for key in [key for key, share in self._shares.items() if share.is_idle(now)]:
            del self._shares[key]
        if now - self._cleaned_at >= CLEANUP_INTERVAL and self._offset is not None:
            self._cleaned_at = now
            await self._store.delete_old(now)

    def _now(self) -> float:
        """Return the database's time, as far as it is known."""
        return self._monotonic() + (self._offset or 0.0)

    async def _ask(self, rate: WantedRate) -> None:
        """Wait for the exchange under way, or make one for all requests that wait."""
        if rate.share.exchange is not None:
            rate.share.waiting += rate.amount
            await asyncio.shield(rate.share.exchange)
            return
        await self._exchange([(rate.key, rate.share, rate.amount)])

    async def _exchange(self, parts: Sequence[tuple[RateKey, RateShare, int]]) -> None:
        """Exchange these rates in one transaction. StoreError, Unavailable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        now, shares = self._now(), {key: share for key, share, _ in parts}
        requests = {}
        for key, share, amount in parts:
            needed, share.waiting, share.exchange = amount + share.waiting, 0, done
            requests[key] = share.begin_exchange(now, self._host, needed=needed, first=amount)
        waits: dict[RateKey, float] = {}

        def decide(now: float, others: Sequence[HostRate], *, key: RateKey) -> HostRate:
            waits[key] = seconds_until_room(now, requests[key], others=others)
            return decide_lease(now, others, request=requests[key])

        try:
            found = await self._store.exchange(
                self._host, {key: partial(decide, key=key) for key in requests}
            )
            self._is_alone = False
            for key, (database_now, own) in found.items():
                self._offset = database_now - self._monotonic()
                needed = requests[key].needed
                shares[key].end_exchange(database_now, own, needed=needed, retry_after=waits[key])
        except BaseException:
            for share in shares.values():
                share.fail_exchange()
            raise
        finally:
            for share in shares.values():
                share.exchange = None
            done.set_result(None)


def list_rates(limits: Sequence[ScopeLimits], *, tokens: int) -> Sequence[tuple[RateKey, int, int]]:
    """Return the rates that a request counts in: scope and kind, limit, amount."""
    rates: list[tuple[RateKey, int, int]] = []
    for scope, limit in limits:
        if limit.requests_per_minute is not None:
            rates.append(((scope, "requests"), limit.requests_per_minute, 1))
        if limit.tokens_per_minute is not None:
            rates.append(((scope, "tokens"), limit.tokens_per_minute, tokens))
    return rates
