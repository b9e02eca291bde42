"""The hosts of a hub, processes that share a database: their list over HTTP, and how one is drained."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dragoman.errors import NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.ids import new_id
from dragoman.store.hosts.hosts import HostRecord
from dragoman.store.store import Store
from dragoman.version import version

log = logging.getLogger(__name__)
POLL_INTERVAL = 0.25  # seconds between two checks whether another host drained this one


class HostStatus(msgspec.Struct, frozen=True):
    """A host as the API shows it; `since` in unix seconds. It has no address and no token."""

    id: str
    name: str
    version: str
    runs: int
    since: float
    draining: bool
    self: bool


class LocalHost:
    """This process as a host. With SQLite it is the only one, and its record is here alone."""

    def __init__(self, store: Store, *, on_drain: Callable[[], None]) -> None:
        """`on_drain` is called once, when the host is told to begin no more runs."""
        self._store = store
        self._on_drain = on_drain
        self._own_id = new_id("host")
        self._started_at = time.time()
        self._draining_at: float | None = None

    @property
    def record(self) -> HostRecord:
        """The host, without its address."""
        return HostRecord(
            id=self._store.host_id or self._own_id,
            name=socket.gethostname(),
            version=version(),
            started_at=self._started_at,
            draining_at=self._draining_at,
        )

    @property
    def is_draining(self) -> bool:
        """Whether the host begins no more runs."""
        return self._draining_at is not None

    def begin_draining(self) -> None:
        """Begin no more runs."""
        if self._draining_at is None:
            self._draining_at = time.time()
            log.warning("this host is drained: it begins no more runs")
            self._on_drain()

    async def watch(self) -> None:
        """Check every `POLL_INTERVAL` whether another host drained this one, until it has or on cancel."""
        membership = self._store.membership
        while membership is not None and not self.is_draining:
            await asyncio.sleep(POLL_INTERVAL)
            if membership.is_draining:
                self.begin_draining()


class HostHandlers:
    """Handlers of `/api/hosts`."""

    def __init__(self, store: Store, *, local: LocalHost, count_runs: Callable[[], int]) -> None:
        """`count_runs` returns how many runs this process executes."""
        self._store = store
        self._local = local
        self._count_runs = count_runs

    async def list(self, exchange: Exchange) -> None:
        """List the hosts, the oldest first."""
        await exchange.respond(200, {"hosts": [msgspec.to_builtins(each) for each in await self._hosts()]})

    async def drain(self, exchange: Exchange) -> None:
        """Drain a host: it begins no more runs. Answers with the host. NotFound."""
        id = exchange.path_params["id"]
        if self._store.host_id is not None:
            await self._store.hosts.drain(id, time.time())
        if id == self._local.record.id:
            self._local.begin_draining()
        for host in await self._hosts():
            if host.id == id:
                await exchange.respond(200, msgspec.to_builtins(host))
                return
        raise NotFound(f"there is no host {id[:100]!r}", hint="GET /api/hosts lists the hosts")

    async def _hosts(self) -> Sequence[HostStatus]:
        own = self._local.record
        if self._store.host_id is None:
            return [to_status(own, {own.id: self._count_runs()}, own_id=own.id)]
        records, runs = await self._store.hosts.list(), await self._store.hosts.count_runs()
        return [to_status(each, runs, own_id=own.id) for each in records]


def to_status(host: HostRecord, runs: Mapping[str, int], *, own_id: str) -> HostStatus:
    """Return the status of a host. `runs` says how many runs each host executes."""
    return HostStatus(
        id=host.id,
        name=host.name,
        version=host.version,
        runs=runs.get(host.id, 0),
        since=host.started_at,
        draining=host.draining_at is not None,
        self=host.id == own_id,
    )
