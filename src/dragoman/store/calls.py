"""Calls in the store: the ledger that outlives the process."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    CTE,
    Select,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    null,
    select,
    tuple_,
    update,
)

from dragoman.errors import Conflict, StoreError, Unavailable
from dragoman.operations.ledger import CallRecord, Ended, Entry
from dragoman.operations.outcome import CallFailure
from dragoman.operations.tree import SHOWN, Line
from dragoman.store.connection import Compiler, Connection, Params, Row, from_text, to_params, to_text
from dragoman.store.database import Database
from dragoman.store.tables import RUNNING, approvals, calls

log = logging.getLogger(__name__)

RECORD = CallRecord.__struct_fields__
NOT_ENDED: dict[str, Any] = {**dict.fromkeys(Ended.__struct_fields__), "status": "running"}
LINE = Line.__struct_fields__
FATE = case(
    (calls.c.effect == literal_column("'once'"), literal_column("'uncertain'")),
    else_=literal_column("'aborted'"),
)
FILTERS = ("owner", "run_id", "session_id", "status", "operation")


class CallStatements:
    """The SQL of `Calls`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = calls.c.id == bindparam("id")
        open_ended = calls.c.status.in_(
            [literal_column(f"'{status}'") for status in ("pending", "running", "uncertain")]
        )
        ended: dict[str, Any] = {name: bindparam(name) for name in NOT_ENDED}
        entries = select(*(calls.c[name] for name in (*RECORD, *NOT_ENDED)))
        of_run = entries.where(calls.c.run_id == bindparam("id")).order_by(calls.c.started_at, calls.c.id)
        self.insert = compiler.compile(insert(calls))
        self.end = compiler.compile(update(calls).where(this, open_ended).values(ended))
        anew: dict[str, Any] = {name: bindparam(name) for name in ("run_id", "step", "started_at")}
        waiting = calls.c.status == literal_column("'pending'")
        resumed = update(calls).where(this, waiting).values(status=literal_column("'running'"), **anew)
        self.resume = compiler.compile(resumed.values(error=null()))
        self.interrupt = compiler.compile(
            update(calls).where(RUNNING).values(status=FATE, ended_at=bindparam("now"))
        )
        given_up = update(calls).where(calls.c.id.in_(select(branch().c.id)), waiting).values(ended)
        self.waits = compiler.compile(select(calls.c.id).where(this, waiting))
        self.give_up = compiler.compile(given_up)
        lost = update(calls).where(calls.c.id.in_(select(interrupted().c.id)), waiting)
        ended_with: dict[str, Any] = {"status": literal_column("'aborted'"), "ended_at": bindparam("now")}
        self.lose = compiler.compile(lost.values(ended_with))
        self.get = compiler.compile(entries.where(this))
        self.of_run = compiler.compile(of_run)
        self.below = compiler.compile(below())
        self.below_count = compiler.compile(select(func.count()).select_from(branch()))
        self.above = compiler.compile(above())
        self.run_lines = compiler.compile(page(lines().where(calls.c.run_id == bindparam("id"))))
        self.run_count = compiler.compile(
            select(func.count()).select_from(calls).where(calls.c.run_id == bindparam("id"))
        )


class Calls:
    """A `Ledger`: what it was told is committed when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lists: dict[frozenset[str], str] = {}

    @cached_property
    def _sql(self) -> CallStatements:
        return self._database.statements(CallStatements)

    async def begin(self, record: CallRecord, *, wait: bool = True) -> None:
        """Keep the intent. Conflict when the id is taken."""
        params = to_params(record) | NOT_ENDED | {"input": to_text(record.input)}

        def job(connection: Connection) -> int:
            return connection.run(self._sql.insert, params)

        if wait:
            await self._database.write(job)
        else:
            self._database.post(job)

    async def resume(self, record: CallRecord) -> None:
        """Keep that a call which waited runs now. Conflict when it does not wait any more."""
        params = {name: getattr(record, name) for name in ("id", "run_id", "step", "started_at")}

        def job(connection: Connection) -> None:
            if not connection.run(self._sql.resume, params):
                raise Conflict(f"call {record.id!r} does not wait for an approval")

        await self._database.write(job)

    async def end(self, call_id: str, ended: Ended, *, wait: bool = True) -> None:
        """Keep how it ended. Does nothing for a call that has ended already or never began.

        While the database is down this raises, and is kept once it is up again.
        """
        params = {"id": call_id, **to_params(ended), "notes": to_text(ended.notes or None)}
        params |= {"result": to_text(ended.result), "error": to_text(ended.error)}

        def job(connection: Connection) -> int:
            return connection.run(self._sql.end, params)

        def failed(error: Exception) -> None:
            log.error("the end of call %s could not be written down: %s", call_id, error)
            self._database.owe(job)

        try:
            if wait:
                await self._database.write(job)
            else:
                self._database.post(job, failed=failed)
        except (StoreError, Unavailable):
            self._database.owe(job)
            raise

    async def give_up(self, call_id: str, ended: Ended) -> None:
        """Keep that a call which waits is not waited for any more, nor those below it that do."""
        params = {"id": call_id, **to_params(ended), "notes": to_text(ended.notes or None)}
        params |= {"result": to_text(ended.result), "error": to_text(ended.error)}

        def job(connection: Connection) -> None:
            if connection.one(self._sql.waits, {"id": call_id}) is not None:
                connection.run(self._sql.give_up, params)

        await self._database.write(job)

    async def interrupt(self, now: float) -> int:
        """End all calls that are marked as running: whoever made them is gone; how many there were.

        One that acts is uncertain, any other aborted; so are those below that wait for an answer.
        """

        def job(connection: Connection) -> int:
            connection.run(self._sql.lose, {"now": now})
            return connection.run(self._sql.interrupt, {"now": now})

        return await self._database.write(job)

    async def get(self, call_id: str) -> Entry | None:
        """The call, or None."""
        found = await self._read(self._sql.get, {"id": call_id})
        return found[0] if found else None

    async def for_run(self, run_id: str) -> Sequence[Entry]:
        """The run's calls as they began; `record.parent_id` makes them a tree."""
        return await self._read(self._sql.of_run, {"id": run_id})

    async def run_lines(self, run_id: str, *, limit: int) -> tuple[Sequence[Line], int]:
        """The run's first calls as they began, cut short, and how many it has."""
        return await self._counted(
            self._sql.run_lines, self._sql.run_count, params={"id": run_id, "limit": limit}
        )

    async def below(self, call_id: str, *, limit: int) -> tuple[Sequence[Line], int]:
        """The call and the first ones below it, at any depth, cut short, and how many there are."""
        return await self._counted(
            self._sql.below, self._sql.below_count, params={"id": call_id, "limit": limit}
        )

    async def _counted(self, sql: str, count: str, *, params: Params) -> tuple[Sequence[Line], int]:
        found = await self._lines(sql, params)
        if len(found) < params["limit"]:
            return found, len(found)
        row = await self._database.read(lambda connection: connection.one(count, {"id": params["id"]}))
        return found, int(row[0]) if row else len(found)

    async def above(self, call_id: str) -> Sequence[Line]:
        """The calls that the call is part of, the outermost first, and itself."""
        found = await self._lines(self._sql.above, {"id": call_id})
        return line_up(found, call_id)

    async def list(
        self, filters: Mapping[str, str], *, before: tuple[float, str] | None = None, limit: int = 50
    ) -> Sequence[Line]:
        """Calls that match (by FILTERS), the newest first; `before` is the place of the last one before."""
        params: dict[str, Any] = dict(filters)
        if before is not None:
            params |= {"before_at": before[0], "before_id": before[1]}
        return await self._lines(self._list_by(frozenset(params)), {**params, "limit": limit})

    def _list_by(self, names: frozenset[str]) -> str:
        if names not in self._lists:
            place = (calls.c.started_at, calls.c.id)
            wanted = [calls.c[name] == bindparam(name) for name in FILTERS if name in names]
            found = lines().where(*wanted)
            if "before_at" in names:
                found = found.where(tuple_(*place) < tuple_(bindparam("before_at"), bindparam("before_id")))
            newest = found.order_by(*(each.desc() for each in place))
            bound = newest.limit(bindparam("limit")).offset(literal_column("0"))
            self._lists[names] = self._database.compile(bound)
        return self._lists[names]

    async def _lines(self, sql: str, params: Params) -> Sequence[Line]:
        rows = await self._database.read(lambda connection: connection.all(sql, params))
        return [to_line(row) for row in rows]

    async def _read(self, sql: str, params: Params) -> Sequence[Entry]:
        rows = await self._database.read(lambda connection: connection.all(sql, params))
        return [to_entry(row) for row in rows]


def lines() -> Select[Any]:
    """Calls as a tree shows them; an approval is looked for where a call waits for one."""
    asked = select(func.max(approvals.c.id)).where(approvals.c.call_id == calls.c.id).scalar_subquery()
    told: dict[str, Any] = {name: calls.c[name] for name in LINE if name in calls.c}
    told |= {
        name: func.substr(calls.c[name], literal_column("1"), literal_column(str(SHOWN + 1)))
        for name in ("input", "result")
    }
    waits = calls.c.status == literal_column("'pending'")
    told["approval_id"] = case((waits, asked), else_=literal_column("NULL"))
    return select(*(told[name].label(name) for name in LINE))


def page(found: Select[Any]) -> Select[Any]:
    in_order = found.order_by(calls.c.started_at, calls.c.id)
    return in_order.limit(bindparam("limit")).offset(literal_column("0"))


def branch() -> CTE:
    """The ids of a call and of all that it led to."""
    start = select(calls.c.id).where(calls.c.id == bindparam("id")).cte("branch", recursive=True)
    child = calls.alias("child")
    return start.union(select(child.c.id).join(start, child.c.parent_id == start.c.id))


def interrupted() -> CTE:
    """The ids of the calls that are marked as running, and of all that they led to."""
    start = select(calls.c.id).where(RUNNING).cte("interrupted", recursive=True)
    child = calls.alias("child")
    return start.union(select(child.c.id).join(start, child.c.parent_id == start.c.id))


def below() -> Select[Any]:
    """A call and all that it led to."""
    return page(lines().where(calls.c.id.in_(select(branch().c.id))))


def above() -> Select[Any]:
    """A call and all that led to it."""
    start = (
        select(calls.c.id, calls.c.parent_id)
        .where(calls.c.id == bindparam("id"))
        .cte("branch", recursive=True)
    )
    parent = calls.alias("parent")
    branch = start.union(
        select(parent.c.id, parent.c.parent_id).join(start, parent.c.id == start.c.parent_id)
    )
    return lines().where(calls.c.id.in_(select(branch.c.id)))


def line_up(found: Iterable[Line], call_id: str) -> Sequence[Line]:
    """A call and its parents, the outermost first."""
    known = {line.id: line for line in found}
    path: list[Line] = []
    here = known.pop(call_id, None)
    while here is not None:
        path.append(here)
        here = known.pop(here.parent_id or "", None)
    return path[::-1]


def to_line(row: Row) -> Line:
    fields = dict(zip(LINE, row, strict=True))
    fields["error"] = from_text(fields["error"], CallFailure)
    fields["notes"] = tuple(from_text(fields["notes"]) or ())
    return Line(**fields)


def to_entry(row: Row) -> Entry:
    fields = dict(zip((*RECORD, *NOT_ENDED), row, strict=True))
    ended = {name: fields.pop(name) for name in NOT_ENDED}
    fields["input"] = from_text(fields["input"])
    ended["result"] = from_text(ended["result"])
    ended["error"] = from_text(ended["error"], CallFailure)
    ended["notes"] = tuple(from_text(ended["notes"]) or ())
    return Entry(record=CallRecord(**fields), **ended)
