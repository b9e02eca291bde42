"""What each host has counted and leased of the rates that hosts share, for the last minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Double, bindparam, cast, delete, func, literal_column, select

from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.database import Database
from dragoman.store.tables.core import host_rates

KEPT_SECONDS = 150.0  # longer than the row of a host that has ended counts
RATE_LOCK = 0x64726172  # the class of advisory locks on rates

RateKey: TypeAlias = tuple[str, str]
"""A scope (`key:ID`, `owner:NAME`) and what is counted (`requests`, `tokens`)."""


class HostRate(msgspec.Struct, frozen=True, kw_only=True):
    """A host's part of a rate: its counts by slot, and what it may still count until `lease_until`.

    Times are those of the database's clock, in unix seconds. A slot is named by its end, in tenths of a
    second.
    """

    host: str
    counts: Mapping[int, int] = {}
    lease: int = 0
    lease_until: float = 0.0


RateDecision: TypeAlias = Callable[[float, Sequence[HostRate]], HostRate]
"""Returns a host's new row from the database's time and the other hosts' rows. It may run twice."""


class HostRateStatements:
    """The SQL of `HostRateRepository`; see `Database.statements`. Postgres only."""

    def __init__(self, compiler: Compiler) -> None:
        table = host_rates
        lock_class: ColumnElement[int] = literal_column(str(RATE_LOCK))
        lock = func.pg_advisory_xact_lock(lock_class, func.hashtext(bindparam("of")))
        locked = select(lock).subquery()
        now = cast(func.extract("epoch", func.clock_timestamp()), Double)  # once the lock is taken
        self.lock = compiler.compile(select(now).select_from(locked))
        this = (table.c.scope == bindparam("of")) & (table.c.kind == bindparam("counted"))
        found = select(table.c.host, table.c.counts, table.c.lease, table.c.lease_until)
        self.list = compiler.compile(found.where(this))
        put = compiler.insert(table)
        changed = {name: put.excluded[name] for name in ("counts", "lease", "lease_until")}
        self.put = compiler.compile(
            put.on_conflict_do_update(index_elements=["scope", "kind", "host"], set_=changed)
        )
        self.delete_old = compiler.compile(delete(table).where(table.c.lease_until < bindparam("before")))


class HostRateRepository:
    """The rates of all scopes in use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> HostRateStatements:
        return self._database.statements(HostRateStatements)

    async def exchange(
        self, host: str, decisions: Mapping[RateKey, RateDecision]
    ) -> Mapping[RateKey, tuple[float, HostRate]]:
        """Replace the host's rows by what `decisions` return; return them with the database's time.

        One host at a time decides on a rate. Raises StoreError, Unavailable.
        """

        def job(connection: DatabaseConnection) -> Mapping[RateKey, tuple[float, HostRate]]:
            return {
                key: self._exchange(connection, host, key=key, decide=decisions[key])
                for key in sorted(decisions)  # every host locks in this order: no deadlocks
            }

        return await self._database.write(job)

    async def delete_old(self, now: float) -> None:
        """Delete the rows of hosts that have ended, and of scopes without a request for minutes."""
        sql, params = self._sql.delete_old, {"before": now - KEPT_SECONDS}
        await self._database.write(lambda connection: connection.execute(sql, params))

    def _exchange(
        self, connection: DatabaseConnection, host: str, *, key: RateKey, decide: RateDecision
    ) -> tuple[float, HostRate]:
        scope, kind = key
        row = connection.fetch_one(self._sql.lock, {"of": f"{kind} {scope}"})
        now = float(row[0]) if row else 0.0
        rows = connection.fetch_all(self._sql.list, {"of": scope, "counted": kind})
        others = [
            HostRate(
                host=each[0], counts=decode_counts(each[1]), lease=int(each[2]), lease_until=float(each[3])
            )
            for each in rows
            if each[0] != host
        ]
        own = decide(now, others)
        counts = msgspec.json.encode(list(own.counts.items())).decode()
        lease = {"lease": own.lease, "lease_until": own.lease_until}
        connection.execute_batched(
            self._sql.put, {"scope": scope, "kind": kind, "host": host, "counts": counts, **lease}
        )
        return now, own


def decode_counts(text: str) -> dict[int, int]:
    return dict(msgspec.json.decode(text, type=list[tuple[int, int]]))
