"""Several hubs of this process on one schema of Postgres, each with a data folder and a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman.store.postgres import membership
from dragoman.store.postgres.membership import Membership
from tests.effort import PROFILE
from tests.hosts.postgres_proxy import PostgresProxy, proxied
from tests.postgres_server import shared_server
from tests.serving import Served, serving

TIMEOUT = 120.0
collect_ignore = [] if PROFILE == "thorough" else ["test_full_disk.py"]


class HostCluster:
    """Hosts that share a database. `url` is its address, `hosts` are those that are open."""

    def __init__(self, folder: Path, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.hosts: list[Served] = []
        self._folder = folder
        self._stack = stack
        self._stacks: dict[str, AsyncExitStack] = {}

    async def open(
        self, number: int = 2, *, steps: Sequence[Mapping[str, Any]] = ({"text": "Good day."},), **config: Any
    ) -> Sequence[Served]:
        """Open more hosts, whose scripted provider plays `steps`, one a turn, and return them.

        `config` are fields of dragoman.yaml, `play` and `keys` those of `serving`.
        """
        options: dict[str, Any] = {"play": "turns", "database": self.url, **config}
        opened = []
        for _ in range(number):
            one = await self._stack.enter_async_context(AsyncExitStack())
            data = self._folder / f"host-{len(self._stacks) + 1}"
            host = await one.enter_async_context(serving(data, steps, **options))
            self._stacks[host_id(host)] = one
            self.hosts.append(host)
            opened.append(host)
        return opened

    async def close(self, host: Served) -> None:
        """Close a host, as SIGTERM does."""
        self.hosts.remove(host)
        await self._stacks[host_id(host)].aclose()

    def lose(self, host: Served) -> None:
        """Let a host lose its membership without leaving, as `kill -9` does; its process goes on."""
        shared = host.hub.store.membership
        assert shared is not None
        abandon(shared)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL in the schema of the hosts."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as raw:
            cursor = raw.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []


def host_id(host: Served) -> str:
    """Return the id of a hub among the hosts."""
    assert host.hub.store.host_id is not None
    return host.hub.store.host_id


def abandon(member: Membership) -> None:
    """End the ticks and the connection of a host; its row stays."""
    member._stopping.set()
    assert member._thread is not None
    member._thread.join()
    member._disconnect()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts tick often, and fence after a tenth of a second; none is frozen because the machine stalls."""
    monkeypatch.setattr(membership, "FROZEN", 3_600.0)
    monkeypatch.setattr(membership, "INTERVAL", 0.02)
    monkeypatch.setattr(membership, "GRACE", 0.1)
    monkeypatch.setattr(membership, "RESCUE_INTERVAL", 0.2)


@pytest.fixture
def schema_url() -> Iterator[str]:
    """The URL of a schema for hosts."""
    with shared_server().schema() as schema:
        yield shared_server().url(schema)


@pytest.fixture
def proxy(tmp_path: Path, schema_url: str) -> Iterator[PostgresProxy]:
    """A proxy to the database of the hosts: give its URL to those whose connections break."""
    with proxied(tmp_path / "p", schema_url) as made:
        yield made


@pytest.fixture
async def hosts(schema_url: str, tmp_path: Path) -> AsyncIterator[HostCluster]:
    """Hosts that share a database: `await hosts.open(3)`."""
    async with AsyncExitStack() as stack:
        yield HostCluster(tmp_path, schema_url, stack)
