"""Usage in the store: what each model call consumed."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import bindparam, func, insert, select

from dragoman.events import Usage
from dragoman.store.connection import Connection, Job, Row
from dragoman.store.database import Database
from dragoman.store.rows import to_params
from dragoman.store.tables import usage

TOKENS = tuple(name for name in Usage.__struct_fields__ if name != "estimated")


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. None means unknown. `cost` is in US dollars, `duration` in seconds."""

    id: str
    owner: str
    status: str
    started_at: float
    run_id: str | None = None
    session_id: str | None = None
    key_id: str | None = None
    step: int | None = None
    provider: str | None = None
    model_asked: str | None = None
    model_served: str | None = None
    tokens: Usage = Usage()
    cost: float | None = None
    duration: float | None = None
    finish_reason: str | None = None


class Totals(msgspec.Struct, frozen=True):
    """Sums over model calls. What none of them knew is None; `tokens.estimated` if any of them was."""

    calls: int
    cost: float | None
    tokens: Usage


class UsageRecords:
    """What was consumed, and for whom. Deleting a session does not delete its usage."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = database.compile(insert(usage))
        self._totals: dict[frozenset[str], str] = {}

    def adding(self, record: UsageRecord) -> Job[None]:
        """A job that adds the record; give it to `Store.post` or `Store.write`."""
        params = to_params(record) | to_params(record.tokens)

        def job(connection: Connection) -> None:
            connection.run(self._insert, params)

        return job

    async def add(self, record: UsageRecord) -> None:
        """Add the record; it is committed on return."""
        await self._database.write(self.adding(record))

    async def totals(
        self,
        *,
        owner: str | None = None,
        key_id: str | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
        since: float | None = None,
    ) -> Totals:
        """The sums over the records that match all that is given and started at `since` or later."""
        asked = {"owner": owner, "key_id": key_id, "session_id": session_id, "run_id": run_id, "since": since}
        params: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        sql = self._totals_by(frozenset(params))
        row = await self._database.read(lambda connection: connection.one(sql, params))
        return as_totals(row or (0, None, 0, *(None for _ in TOKENS)))

    def _totals_by(self, names: frozenset[str]) -> str:
        if names not in self._totals:
            sums = [func.sum(usage.c[name]) for name in ("cost", *TOKENS)]
            wanted = [usage.c[name] == bindparam(name) for name in sorted(names - {"since"})]
            if "since" in names:
                wanted.append(usage.c.started_at >= bindparam("since"))
            estimated = func.count().filter(usage.c.estimated)
            statement = select(func.count(), estimated, *sums).where(*wanted)
            self._totals[names] = self._database.compile(statement)
        return self._totals[names]


def as_totals(row: Row) -> Totals:
    calls, estimated, cost, *tokens = row
    counts = dict(zip(TOKENS, tokens, strict=True))
    return Totals(calls=calls, cost=cost, tokens=Usage(**counts, estimated=estimated > 0))
