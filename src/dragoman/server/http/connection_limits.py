"""Limits of client connections: how many there may be, and how long each may take before it has a request.

They hold before anything is known about a client, so they cost a connection as little as possible: one timer
checks the deadlines of all connections, and a connection only stores its own deadline.
"""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import msgspec

log = logging.getLogger(__name__)

NEVER = float("inf")
LOG_INTERVAL = 60.0  # seconds in which a reason is logged once; the next line says how many there were
SWEEPS_PER_TIMEOUT = 8
MAX_SWEEP_INTERVAL = 1.0
EVICTED_AT_ONCE = 16  # finding the oldest reads all connections, so it is not done for each new one


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the connections of one server; sizes in bytes, times in seconds.

    `head`: a request's line and headers. `head_timeout`: from the first byte, or from the connection, to the
    end of the head. `body_rate`: bytes a second that a request body needs on average over each
    `body_timeout`. `idle_timeout`: between two requests. Clients in `shared_addresses` (networks) are proxies
    or this machine: many people come from one of these addresses, so `per_address` does not count there.
    """

    head: int = 65_536
    headers: int = 256
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    body_rate: int = 240
    idle_timeout: float = 5.0
    connections: int = 4_096
    per_address: int = 512
    shared_addresses: tuple[str, ...] = ("127.0.0.0/8", "::1")


class Connection(Protocol):
    """A client connection as the table sees it."""

    address: str
    deadline: float
    """When `expire` is to be called, in seconds of the loop's clock; NEVER while a request is answered."""
    waiting_since: float | None
    """Since when the connection waits for a request; None while one is read or answered."""

    def expire(self, now: float) -> None:
        """Close the connection, or set another deadline."""

    def evict(self) -> None:
        """Close the connection, which has no request, to make room."""


class BurstLog:
    """Logs a reason when it first occurs, and after LOG_INTERVAL how often it has occurred since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[str, float] = {}
        self._repeats: Counter[str] = Counter()

    def add(self, reason: str, address: str) -> None:
        """Log or count one occurrence."""
        if reason in self._started:
            self._repeats[reason] += 1
            return
        self._started[reason] = self._clock()
        log.warning("refused a connection from %s: %s", address, reason)

    def flush(self) -> None:
        """Log the occurrences of intervals that are over."""
        if not self._started:
            return
        now = self._clock()
        for reason, started in list(self._started.items()):
            if now - started < LOG_INTERVAL:
                continue
            del self._started[reason]
            if repeats := self._repeats.pop(reason, 0):
                log.warning("refused %d more connections within %g s: %s", repeats, now - started, reason)


class ConnectionTable:
    """The open connections of one server, and what it has refused."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.log = BurstLog()
        self._shared = [ipaddress.ip_network(network, strict=False) for network in limits.shared_addresses]
        self._groups: Counter[str] = Counter()
        self._connections: dict[Connection, str] = {}
        self._refused: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        shortest = min(limits.head_timeout, limits.body_timeout)
        self._interval = min(MAX_SWEEP_INTERVAL, shortest / SWEEPS_PER_TIMEOUT)

    def __len__(self) -> int:
        """How many connections are open, without those that were refused."""
        return len(self._connections)

    def add(self, connection: Connection) -> str | None:
        """Add a connection. Return None, or why there is no room for it.

        Where there is none, connections that wait for a request are closed, the longest waiting first: slow
        or idle clients keep nobody out.
        """
        self._start_sweeping()
        limits, group = self.limits, address_group(connection.address)
        is_shared = self._is_shared(connection.address)
        if not is_shared and self._groups[group] >= limits.per_address and not self._evict(group):
            self._refused.add(connection)
            return f"{limits.per_address} connections from one address (http.per_address)"
        if len(self._connections) >= limits.connections and not self._evict(None):
            self._refused.add(connection)
            return f"{limits.connections} connections are open (http.connections)"
        self._connections[connection] = group
        self._groups[group] += 1
        return None

    def replace(self, connection: Connection, successor: Connection) -> None:
        """Put another one in the place of a connection, which serves its client from here on."""
        group = self._connections.pop(connection, None)
        if group is not None:
            self._connections[successor] = group

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed; does nothing the second time."""
        self._refused.discard(connection)
        group = self._connections.pop(connection, None)
        if group is None:
            return
        self._groups[group] -= 1
        if not self._groups[group]:
            del self._groups[group]

    @property
    def refused(self) -> int:
        """How many refused connections are still open, until their clients have read why."""
        return len(self._refused)

    def _evict(self, group: str | None) -> bool:
        """Close the connections that wait longest, of one group or of all. False if none waits."""
        waiting = [
            connection
            for connection, its_group in self._connections.items()
            if connection.waiting_since is not None and (group is None or its_group == group)
        ]
        # Not all that wait: a few at a time leave the younger ones a chance to send their requests.
        count = min(EVICTED_AT_ONCE, max(1, len(waiting) // 4))
        for connection in heapq.nsmallest(count, waiting, key=lambda each: each.waiting_since or 0.0):
            self.log.add("closed while it had no request, to make room for others", connection.address)
            self.remove(connection)
            connection.evict()
        return bool(waiting)

    def _is_shared(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is None or any(
            parsed.version == network.version and parsed in network for network in self._shared
        )

    def _start_sweeping(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self.log.flush()
        now = asyncio.get_running_loop().time()
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.expire(now)
        for connection in [each for each in self._refused if each.deadline <= now]:
            connection.expire(now)
        if self._connections or self._refused:
            self._start_sweeping()


@lru_cache(maxsize=1_024)
def parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; None for a client without one, such as that of a Unix socket."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed


def address_group(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or an IPv6 network of 64 bits, as one host has."""
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address if parsed is None else str(parsed)
