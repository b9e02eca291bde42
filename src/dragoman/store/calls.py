"""Operation calls in the database: the persistent ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    CTE,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    null,
    select,
    tuple_,
    update,
)

from dragoman.errors import Conflict, StoreError, Unavailable
from dragoman.identity import door
from dragoman.operations.call_tree import MAX_SHOWN_LENGTH, CallRow
from dragoman.operations.ledger import CallCompletion, CallRecord, LedgerEntry
from dragoman.operations.outcome import CallFailure
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    DatabaseJob,
    Params,
    Row,
    decode_json,
    encode_json,
    match_filter,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.tables.core import IS_RUNNING, approvals, calls, hosts, runs

log = logging.getLogger(__name__)

RECORD_COLUMNS = CallRecord.__struct_fields__
RUNNING_FIELDS: dict[str, Any] = {**dict.fromkeys(CallCompletion.__struct_fields__), "status": "running"}
RESUMED_FIELDS = ("run_id", "step", "started_at", "host")
LINE_COLUMNS = CallRow.__struct_fields__
INTERRUPTED_STATUS = case(
    (calls.c.effect == literal_column("'once'"), literal_column("'uncertain'")),
    else_=literal_column("'aborted'"),
)
Interruptible: TypeAlias = Literal["all", "host", "run_id", "absent"]
INTERRUPTIBLE: tuple[Interruptible, ...] = ("all", "host", "run_id", "absent")
FILTERS = ("owner", "run_id", "session_id", "status", "operation")


class CallStatements:
    """The SQL of `CallRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = calls.c.id == bindparam("id")
        open_ended = calls.c.status.in_(
            [literal_column(f"'{status}'") for status in ("pending", "running", "uncertain")]
        )
        ended: dict[str, Any] = {name: bindparam(name) for name in RUNNING_FIELDS}
        entries = select(*(calls.c[name] for name in (*RECORD_COLUMNS, *RUNNING_FIELDS)))
        self.insert = compiler.compile(insert(calls))
        self.end = compiler.compile(update(calls).where(this, open_ended).values(ended))
        anew: dict[str, Any] = {name: bindparam(name) for name in RESUMED_FIELDS}
        waiting = calls.c.status == literal_column("'pending'")
        resumed = update(calls).where(this, waiting).values(status=literal_column("'running'"), **anew)
        self.resume = compiler.compile(resumed.values(error=null()))
        cut_off = calls.c.status.in_(
            [literal_column(f"'{status}'") for status in ("uncertain", "aborted", "pending")]
        )
        restarted = update(calls).where(this, cut_off).values(status=literal_column("'running'"), **anew)
        self.restart = compiler.compile(restarted.values(error=null(), ended_at=null()))
        interrupted = {"status": INTERRUPTED_STATUS, "ended_at": bindparam("now")}
        self.interrupt = {
            of: compiler.compile(update(calls).where(running_calls(of)).values(interrupted))
            for of in INTERRUPTIBLE
        }
        given_up = update(calls).where(calls.c.id.in_(select(descendant_ids().c.id)), waiting).values(ended)
        self.find_pending = compiler.compile(select(calls.c.id).where(this, waiting).with_for_update())
        self.give_up = compiler.compile(given_up)
        ended_with: dict[str, Any] = {"status": literal_column("'aborted'"), "ended_at": bindparam("now")}
        lost = update(calls).where(waiting).values(ended_with | {"error": null()})
        self.abort_interrupted = {
            of: compiler.compile(lost.where(calls.c.id.in_(select(interrupted_ids(of).c.id))))
            for of in INTERRUPTIBLE
        }
        ended_since = (calls.c.run_id == bindparam("of")) & (calls.c.ended_at >= bindparam("since"))
        is_aborted = calls.c.status.in_([literal_column("'aborted'"), literal_column("'uncertain'")])
        cut_off_now: dict[str, Any] = {"status": INTERRUPTED_STATUS, "error": null()}
        self.cut_off = compiler.compile(update(calls).where(ended_since, is_aborted).values(cut_off_now))
        self.get = compiler.compile(entries.where(this))
        self.find_host = compiler.compile(select(calls.c.host).where(this, IS_RUNNING))
        self.list_for_run = compiler.compile(oldest_first(entries.where(calls.c.run_id == bindparam("id"))))
        self.list_done = compiler.compile(oldest_first(entries.where(done_in_answer())))
        self.list_descendants = compiler.compile(select_descendants())
        self.count_descendants = compiler.compile(select(func.count()).select_from(descendant_ids()))
        self.list_ancestors = compiler.compile(select_ancestors())
        self.list_run_calls = compiler.compile(
            first_rows(select_lines().where(calls.c.run_id == bindparam("id")))
        )
        self.count_run_calls = compiler.compile(
            select(func.count()).select_from(calls).where(calls.c.run_id == bindparam("id"))
        )


class CallRepository:
    """The persistent `Ledger`: each record is committed when the method returns."""

    def __init__(self, database: Database, *, host_id: str | None = None) -> None:
        """`host_id` is the host whose calls these are, if several share the database."""
        self._database = database
        self._host_id = host_id
        self._unsent: dict[str, dict[str, Any]] = {}
        """Calls whose start is not yet with the writer, as long as the database's `lazy_rounds` is this."""
        self._unsent_since = -1

    @cached_property
    def _sql(self) -> CallStatements:
        return self._database.statements(CallStatements)

    async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
        """Insert the call before it runs. Raises Conflict when its id is taken.

        Without `wait` it is inserted within milliseconds, or together with its end.
        """
        params = to_params(record) | RUNNING_FIELDS | {"input": encode_json(record.input)}
        params["host"] = self._host_id
        params["door"] = None if record.run_id or record.parent_id else door.get()
        sql, database = self._sql.insert, self._database

        def job(connection: DatabaseConnection) -> None:
            connection.execute_batched(sql, params)

        def failed(error: Exception) -> None:
            log.error("cannot record call %s: %s", record.id, error)
            if params["status"] != "running":  # it has its end, too, which is not to be lost
                database.defer(job)

        if wait:
            await database.write(job)
            return
        database.enqueue(job, on_failure=failed, is_lazy=True)
        if self._unsent_since != database.lazy_rounds:
            self._unsent_since = database.lazy_rounds
            self._unsent.clear()
        self._unsent[record.id] = params

    async def record_resume(self, record: CallRecord) -> None:
        """Record that a pending call runs now. Raises Conflict when it is no longer pending."""
        await self._record_again(
            record, self._sql.resume, refusal=f"call {record.id!r} is not waiting for an approval"
        )

    async def record_restart(self, record: CallRecord) -> None:
        """Record that a call which a crash has interrupted runs again. Raises Conflict when it has ended."""
        await self._record_again(record, self._sql.restart, refusal=f"call {record.id!r} has ended")

    async def _record_again(self, record: CallRecord, sql: str, *, refusal: str) -> None:
        params = {name: getattr(record, name) for name in ("id", "run_id", "step", "started_at")}
        params["host"] = self._host_id

        def job(connection: DatabaseConnection) -> None:
            if not connection.execute(sql, params):
                raise Conflict(refusal)

        await self._database.write(job)

    async def find_host(self, id: str) -> str | None:
        """Return the host that executes a call; None when it does not run, or there are no hosts."""
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.find_host, {"id": id})
        )
        return None if row is None or row[0] is None else str(row[0])

    async def record_end(self, call_id: str, completion: CallCompletion, *, wait: bool = True) -> None:
        """Record how the call ended. Does nothing for a call that has already ended or was never recorded.

        While the database is down this raises, and the record is written once the database is up again.
        """
        params = {"id": call_id, **to_params(completion), "notes": encode_json(completion.notes or None)}
        params |= {"result": encode_json(completion.result), "error": encode_json(completion.error)}
        sql, database = self._sql.end, self._database

        def job(connection: DatabaseConnection) -> None:
            connection.execute_batched(sql, params)

        def failed(error: Exception) -> None:
            log.error("cannot record the end of call %s: %s", call_id, error)
            database.defer(job)

        is_merged = self._merge_end(call_id, params)
        try:
            if wait:
                await database.write(write_nothing if is_merged else job)
            elif not is_merged:
                database.enqueue(job, on_failure=failed)
        except (StoreError, Unavailable):
            if not is_merged:
                database.defer(job)
            raise

    def _merge_end(self, call_id: str, params: Mapping[str, Any]) -> bool:
        """Add the end of a call to its start if the writer does not have that yet: one INSERT writes both."""
        if self._unsent_since != self._database.lazy_rounds or not self._database.is_up:
            return False
        start = self._unsent.pop(call_id, None)
        if start is not None:
            start.update(params)
        return start is not None

    async def close_pending(self, call_id: str, completion: CallCompletion) -> None:
        """Record the end of a pending call and of its pending descendants."""
        params = {"id": call_id, **to_params(completion), "notes": encode_json(completion.notes or None)}
        params |= {"result": encode_json(completion.result), "error": encode_json(completion.error)}

        def job(connection: DatabaseConnection) -> None:
            if connection.fetch_one(self._sql.find_pending, {"id": call_id}) is not None:
                connection.execute_batched(self._sql.give_up, params)

        await self._database.write(job)

    async def interrupt_running(
        self, now: float, *, host: str | None = None, run_id: str | None = None
    ) -> int:
        """End the calls marked as running, because their process is gone; return how many there were.

        All of them, or those of a host or of a run. A `once` call becomes uncertain, any other aborted. Their
        pending descendants are aborted too.
        """
        of: Interruptible = "run_id" if run_id is not None else "host" if host is not None else "all"
        return await self._interrupt(of, {"now": now} if of == "all" else {"now": now, "of": run_id or host})

    async def interrupt_absent(self, now: float) -> int:
        """Do the same with the calls of hosts that the database does not have: it was restored or copied."""
        return await self._interrupt("absent", {"now": now})

    async def _interrupt(self, of: Interruptible, params: Mapping[str, Any]) -> int:
        def job(connection: DatabaseConnection) -> int:
            connection.execute(self._sql.abort_interrupted[of], params)
            return connection.execute(self._sql.interrupt[of], params)

        return await self._database.write(job)

    def cut_off_job(self, run_id: str, since: float) -> DatabaseJob[None]:
        """Return a job that marks a run's calls that were aborted since a time as interrupted by a crash.

        So they are made again, or asked about, when the run continues at another host.
        """

        def job(connection: DatabaseConnection) -> None:
            connection.execute(self._sql.cut_off, {"of": run_id, "since": since})

        return job

    async def get(self, call_id: str) -> LedgerEntry | None:
        """Return the call, or None."""
        found = await self._read_entries(self._sql.get, {"id": call_id})
        return found[0] if found else None

    async def list_for_run(self, run_id: str) -> Sequence[LedgerEntry]:
        """Return the run's calls by start time; `record.parent_id` makes them a tree."""
        return await self._read_entries(self._sql.list_for_run, {"id": run_id})

    async def list_done(self, session_id: str, message_id: str, *, operation: str) -> Sequence[LedgerEntry]:
        """Return the calls of an operation that the runs of an answer have made, oldest first."""
        params = {"session_id": session_id, "message_id": message_id, "operation": operation}
        return await self._read_entries(self._sql.list_done, params)

    async def list_run_calls(self, run_id: str, *, limit: int) -> tuple[Sequence[CallRow], int]:
        """Return the run's first calls by start time, abridged, and how many it has."""
        return await self._list_and_count(
            self._sql.list_run_calls, self._sql.count_run_calls, params={"id": run_id, "limit": limit}
        )

    async def list_descendants(self, call_id: str, *, limit: int) -> tuple[Sequence[CallRow], int]:
        """Return the call and its first descendants, abridged, and how many there are."""
        return await self._list_and_count(
            self._sql.list_descendants, self._sql.count_descendants, params={"id": call_id, "limit": limit}
        )

    async def _list_and_count(self, sql: str, count: str, *, params: Params) -> tuple[Sequence[CallRow], int]:
        found = await self._read_lines(sql, params)
        if len(found) < params["limit"]:
            return found, len(found)
        row = await self._database.read(lambda connection: connection.fetch_one(count, {"id": params["id"]}))
        return found, int(row[0]) if row else len(found)

    async def list_ancestors(self, call_id: str) -> Sequence[CallRow]:
        """Return the call's ancestors, outermost first, and the call itself."""
        found = await self._read_lines(self._sql.list_ancestors, {"id": call_id})
        return order_ancestors(found, call_id)

    async def list(
        self, filters: Mapping[str, str], *, before: tuple[float, str] | None = None, limit: int = 50
    ) -> Sequence[CallRow]:
        """Return calls that match the `FILTERS`, newest first; `old_session_id` is an alternative id.

        `before` is `(started_at, id)` of the last call of the previous page.
        """
        params: dict[str, Any] = dict(filters)
        if before is not None:
            params |= {"before_at": before[0], "before_id": before[1]}
        sql = self._database.query_sql(select_calls, frozenset(params))
        return await self._read_lines(sql, {**params, "limit": limit})

    async def _read_lines(self, sql: str, params: Params) -> Sequence[CallRow]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_line(row) for row in rows]

    async def _read_entries(self, sql: str, params: Params) -> Sequence[LedgerEntry]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_entry(row) for row in rows]


def select_calls(names: frozenset[str]) -> Select[Any]:
    """Return the query for a page of calls with these parameters."""
    place = (calls.c.started_at, calls.c.id)
    wanted = [match_filter(calls.c[name], names) for name in FILTERS if name in names]
    found = select_lines().where(*wanted)
    if "before_at" in names:
        found = found.where(tuple_(*place) < tuple_(bindparam("before_at"), bindparam("before_id")))
    newest = found.order_by(*(each.desc() for each in place))
    return newest.limit(bindparam("limit")).offset(literal_column("0"))


def write_nothing(_: DatabaseConnection) -> None:
    """Do nothing in a transaction. Whoever waits for this job waits for the jobs queued before it."""


def select_lines() -> Select[Any]:
    """Return the query for calls as the tree shows them, with the approval that a pending call waits for."""
    approval_id = select(func.max(approvals.c.id)).where(approvals.c.call_id == calls.c.id).scalar_subquery()
    columns: dict[str, Any] = {name: calls.c[name] for name in LINE_COLUMNS if name in calls.c}
    columns |= {
        name: func.substr(calls.c[name], literal_column("1"), literal_column(str(MAX_SHOWN_LENGTH + 1)))
        for name in ("input", "result")
    }
    waits = calls.c.status == literal_column("'pending'")
    columns["approval_id"] = case((waits, approval_id), else_=literal_column("NULL"))
    return select(*(columns[name].label(name) for name in LINE_COLUMNS))


def oldest_first(query: Select[Any]) -> Select[Any]:
    return query.order_by(calls.c.started_at, calls.c.id)


def first_rows(query: Select[Any]) -> Select[Any]:
    return oldest_first(query).limit(bindparam("limit")).offset(literal_column("0"))


def descendant_ids() -> CTE:
    """Return the ids of a call and its descendants."""
    start = select(calls.c.id).where(calls.c.id == bindparam("id")).cte("branch", recursive=True)
    child = calls.alias("child")
    return start.union(select(child.c.id).join(start, child.c.parent_id == start.c.id))


def done_in_answer() -> ColumnElement[bool]:
    """Return the condition of the calls of an operation that the runs of an answer have done."""
    of_answer = select(runs.c.id).where(
        runs.c.session_id == bindparam("session_id"), runs.c.message_id == bindparam("message_id")
    )
    is_done = calls.c.status == literal_column("'done'")
    return and_(calls.c.run_id.in_(of_answer), calls.c.operation == bindparam("operation"), is_done)


def running_calls(of: Interruptible) -> ColumnElement[bool]:
    """Return the condition of the calls marked as running: all, those of a host or a run, or "absent", those
    of hosts that the database does not have. Calls without a host are from a hub on SQLite whose database
    was copied.
    """
    if of == "absent":
        return and_(IS_RUNNING, ~exists().where(hosts.c.id == calls.c.host))
    return and_(IS_RUNNING) if of == "all" else and_(IS_RUNNING, calls.c[of] == bindparam("of"))


def interrupted_ids(of: Interruptible) -> CTE:
    """Return the ids of the calls marked as running, and of their descendants."""
    start = select(calls.c.id).where(running_calls(of)).cte("interrupted", recursive=True)
    child = calls.alias("child")
    return start.union(select(child.c.id).join(start, child.c.parent_id == start.c.id))


def select_descendants() -> Select[Any]:
    """Return the query for a call and its descendants."""
    return first_rows(select_lines().where(calls.c.id.in_(select(descendant_ids().c.id))))


def select_ancestors() -> Select[Any]:
    """Return the query for a call and its ancestors."""
    start = (
        select(calls.c.id, calls.c.parent_id)
        .where(calls.c.id == bindparam("id"))
        .cte("branch", recursive=True)
    )
    parent = calls.alias("parent")
    branch = start.union(
        select(parent.c.id, parent.c.parent_id).join(start, parent.c.id == start.c.parent_id)
    )
    return select_lines().where(calls.c.id.in_(select(branch.c.id)))


def order_ancestors(lines: Iterable[CallRow], call_id: str) -> Sequence[CallRow]:
    """Return a call's ancestors, outermost first, and the call."""
    by_id = {line.id: line for line in lines}
    path: list[CallRow] = []
    call = by_id.pop(call_id, None)
    while call is not None:
        path.append(call)
        call = by_id.pop(call.parent_id or "", None)
    return path[::-1]


def to_line(row: Row) -> CallRow:
    fields = dict(zip(LINE_COLUMNS, row, strict=True))
    fields["error"] = decode_json(fields["error"], CallFailure)
    fields["notes"] = tuple(decode_json(fields["notes"]) or ())
    return CallRow(**fields)


def to_entry(row: Row) -> LedgerEntry:
    fields = dict(zip((*RECORD_COLUMNS, *RUNNING_FIELDS), row, strict=True))
    ended = {name: fields.pop(name) for name in RUNNING_FIELDS}
    fields["input"] = decode_json(fields["input"])
    ended["result"] = decode_json(ended["result"])
    ended["error"] = decode_json(ended["error"], CallFailure)
    ended["notes"] = tuple(decode_json(ended["notes"]) or ())
    return LedgerEntry(record=CallRecord(**fields), **ended)
