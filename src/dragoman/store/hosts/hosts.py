"""The hosts that share a database: hub processes, each with an id that is new at each start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, func, select, update

from dragoman.errors import StoreError, Unavailable
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Params,
    select_fields,
    to_params,
    to_struct,
)
from dragoman.store.database import Database
from dragoman.store.tables.core import IS_RUNNING, hosts, runs


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A hub process. `url` and `token` are how other hosts call it; times are unix seconds.

    A host with `draining_at` begins no more runs. One with `fenced_at` writes nothing any more: it is gone,
    or was unreachable for so long that others have taken over its runs.
    """

    id: str
    name: str
    url: str | None = None
    token: str | None = None
    version: str
    started_at: float
    draining_at: float | None = None
    fenced_at: float | None = None

    def __repr__(self) -> str:
        return f"HostRecord({self.id!r})"  # the token is a secret


class HostStatements:
    """The SQL of `HostRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        found = select_fields(HostRecord, hosts)
        this = hosts.c.id == bindparam("of")
        is_member = hosts.c.fenced_at.is_(None)
        self.insert = compiler.compile(compiler.insert(hosts))
        self.list = compiler.compile(found.where(is_member).order_by(hosts.c.started_at, hosts.c.id))
        self.get = compiler.compile(found.where(this))
        values: dict[str, Any] = {"draining_at": bindparam("now")}
        self.drain = compiler.compile(update(hosts).where(this, is_member).values(values))
        address: dict[str, Any] = {"url": bindparam("at"), "token": bindparam("secret")}
        self.set_address = compiler.compile(update(hosts).where(this, is_member).values(address))
        fenced: dict[str, Any] = {"fenced_at": bindparam("now")}
        self.fence = compiler.compile(update(hosts).where(this, is_member).values(fenced))
        self.delete = compiler.compile(delete(hosts).where(this))
        counted = select(runs.c.host, func.count()).where(IS_RUNNING, runs.c.host.is_not(None))
        self.count_runs = compiler.compile(counted.group_by(runs.c.host))


class HostRepository:
    """All hosts of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> HostStatements:
        return self._database.statements(HostStatements)

    async def add(self, host: HostRecord) -> None:
        """Insert a host. Raises Conflict when its id is taken."""
        await self._database.write(lambda connection: connection.execute(self._sql.insert, to_params(host)))

    async def list(self) -> Sequence[HostRecord]:
        """Return the hosts that are not fenced, oldest first, also one that was killed a moment ago."""

        def query(connection: DatabaseConnection) -> Sequence[HostRecord]:
            return [to_struct(HostRecord, row) for row in connection.fetch_all(self._sql.list, {})]

        return await self._database.read(query)

    async def get(self, id: str) -> HostRecord | None:
        """Return a host, fenced or not; None when there is none."""

        def query(connection: DatabaseConnection) -> HostRecord | None:
            row = connection.fetch_one(self._sql.get, {"of": id})
            return None if row is None else to_struct(HostRecord, row)

        return await self._database.read(query)

    async def set_address(self, id: str, *, url: str, token: str) -> bool:
        """Write the URL and the token by which other hosts call a host. False when the host is gone.

        While the database is down this raises, and is written once it is up again.
        """
        params = {"of": id, "at": url, "secret": token}

        def job(connection: DatabaseConnection) -> bool:
            return connection.execute(self._sql.set_address, params) > 0

        try:
            return await self._database.write(job)
        except (StoreError, Unavailable):
            self._database.defer(job)
            raise

    async def drain(self, id: str, now: float) -> bool:
        """Ask a host to begin no more runs. False when it is gone."""
        return await self._change(self._sql.drain, {"of": id, "now": now})

    async def fence(self, id: str, now: float) -> bool:
        """Refuse all later writes of a host; return True to the one caller that did it.

        It waits for the host's current transaction.
        """
        return await self._change(self._sql.fence, {"of": id, "now": now})

    async def remove(self, id: str) -> None:
        """Delete a host that has ended, and has no more runs."""
        await self._change(self._sql.delete, {"of": id})

    async def count_runs(self) -> Mapping[str, int]:
        """Return how many runs each host executes; hosts without any are absent."""

        def query(connection: DatabaseConnection) -> Mapping[str, int]:
            return {str(row[0]): int(row[1]) for row in connection.fetch_all(self._sql.count_runs, {})}

        return await self._database.read(query)

    async def _change(self, sql: str, params: Params) -> bool:
        return await self._database.write(lambda connection: connection.execute(sql, params) > 0)
