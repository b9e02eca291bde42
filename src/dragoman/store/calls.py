"""Calls in the store: the ledger that outlives the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, insert, literal_column, select, update

from dragoman.operations.ledger import CallRecord, Entry, Status
from dragoman.operations.outcome import CallFailure
from dragoman.store.connection import Job, Params, Row
from dragoman.store.database import Database
from dragoman.store.rows import from_text, to_params, to_text
from dragoman.store.tables import calls

RECORD = CallRecord.__struct_fields__
NOT_ENDED = {"status": "running", "ended_at": None, "result": None, "error": None}


class Calls:
    """A `Ledger`: what it was told is committed when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database
        this = calls.c.id == bindparam("id")
        open_ended = calls.c.status.in_([literal_column("'running'"), literal_column("'uncertain'")])
        ended: dict[str, Any] = {name: bindparam(name) for name in NOT_ENDED}
        entries = select(*(calls.c[name] for name in (*RECORD, *NOT_ENDED)))
        of_run = entries.where(calls.c.run_id == bindparam("id")).order_by(calls.c.started_at, calls.c.id)
        self._insert = database.compile(insert(calls))
        self._end = database.compile(update(calls).where(this, open_ended).values(ended))
        self._get = database.compile(entries.where(this))
        self._of_run = database.compile(of_run)

    async def begin(self, record: CallRecord, *, wait: bool = True) -> None:
        """Keep the intent. Conflict when the id is taken."""
        params = to_params(record) | NOT_ENDED | {"input": to_text(record.input)}
        await self._keep(lambda connection: connection.run(self._insert, params), wait=wait)

    async def end(
        self,
        call_id: str,
        status: Status,
        *,
        ended_at: float,
        result: Any = None,
        error: CallFailure | None = None,
        wait: bool = True,
    ) -> None:
        """Keep how it ended. Does nothing for a call that has ended already or never began."""
        params = {"id": call_id, "status": status, "ended_at": ended_at}
        params |= {"result": to_text(result), "error": to_text(error)}
        await self._keep(lambda connection: connection.run(self._end, params), wait=wait)

    async def _keep(self, job: Job[Any], *, wait: bool) -> None:
        if wait:
            await self._database.write(job)
        else:
            self._database.post(job)

    async def get(self, call_id: str) -> Entry | None:
        """The call, or None."""
        found = await self._read(self._get, {"id": call_id})
        return found[0] if found else None

    async def for_run(self, run_id: str) -> Sequence[Entry]:
        """The run's calls as they began; `record.parent_id` makes them a tree."""
        return await self._read(self._of_run, {"id": run_id})

    async def _read(self, sql: str, params: Params) -> Sequence[Entry]:
        rows = await self._database.read(lambda connection: connection.all(sql, params))
        return [to_entry(row) for row in rows]


def to_entry(row: Row) -> Entry:
    fields = dict(zip((*RECORD, *NOT_ENDED), row, strict=True))
    status, ended_at, result, error = (fields.pop(name) for name in NOT_ENDED)
    fields["input"] = from_text(fields["input"])
    return Entry(
        record=CallRecord(**fields),
        status=status,
        ended_at=ended_at,
        result=from_text(result),
        error=from_text(error, CallFailure),
    )
