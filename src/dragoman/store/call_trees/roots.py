"""What was started from outside: runs, calls that nothing else made, and model calls of the gateway.

Each kind has its own table. A page is read from each table by an index on the start time, and merged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from dragoman.operations.outcome import CallStatus
from dragoman.store.call_trees.root_sums import SIZES, RootSums, SumReader, id_params, one_of
from dragoman.store.call_trees.waiting_runs import RunWait, WaitReader, is_waiting
from dragoman.store.connection import Compiler, DatabaseConnection, Params, Row, decode_json, match_filter
from dragoman.store.database import Database
from dragoman.store.tables.core import calls, runs, sessions, usage

RootKind: TypeAlias = Literal["run", "call", "model"]
KINDS: tuple[RootKind, ...] = get_args(RootKind)
MAX_IDS = SIZES[-1]
MAX_COUNTED = 10_000  # of each kind; more are not counted
MAX_PREVIEW = 120  # characters of the input
WAITING = "waiting"  # the status that is read for a finished run while its answer waits
RUN_STATUSES: Mapping[CallStatus, tuple[str, ...]] = {
    "running": ("running",),
    "pending": (WAITING,),
    "done": ("finished",),
    "failed": ("failed",),
    "aborted": ("stopped", "interrupted"),
}
MODEL_STATUSES: Mapping[CallStatus, tuple[str, ...]] = {"done": ("finished",), "aborted": ("aborted",)}


class RootQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which roots are wanted; None and `()` do not restrict. `until` is exclusive, `min_duration` in seconds.

    `ids` are at most MAX_IDS. `has_error`: it failed, or something below it. `old_session_id` is an
    alternative to `session_id`.
    """

    kinds: tuple[RootKind, ...] = KINDS
    ids: tuple[str, ...] = ()
    statuses: tuple[CallStatus, ...] = ()
    owner: str | None = None
    session_id: str | None = None
    old_session_id: str | None = None
    operation: str | None = None
    model: str | None = None
    door: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None
    min_duration: float | None = None
    has_error: bool = False

    def params(self) -> dict[str, Any]:
        """Return what is set, as parameters of a statement."""
        values = msgspec.structs.asdict(self)
        named = {name: values[name] for name in PARAMETERS if values[name] is not None}
        if self.text is not None:
            named["text"] = f"%{escape_like(self.text.lower())}%"
        return named | (id_params(self.ids, self.id_places) if self.ids else {})

    @property
    def id_places(self) -> int:
        """How many parameters for ids the statement for these has."""
        return next(size for size in SIZES if size >= len(self.ids))


PARAMETERS = (
    *("owner", "session_id", "old_session_id", "operation", "model"),
    *("door", "text", "since", "until", "min_duration"),
)


class RootRow(msgspec.Struct, frozen=True, kw_only=True):
    """A root as a list shows it. Times are unix seconds; `input` is the beginning of its JSON text.

    The `status` of a run is as stored, but WAITING for one that `waits` for something.
    """

    kind: RootKind
    id: str
    name: str | None
    status: str
    owner: str
    started_at: float
    ended_at: float | None = None
    session_id: str | None = None
    session_title: str | None = None
    agent: str | None = None
    door: str | None = None
    error: str | None = None
    input: str | None = None
    effect: str | None = None
    provider: str | None = None
    sums: RootSums = RootSums()
    waits: Sequence[RunWait] = ()


RootPlace: TypeAlias = tuple[float, str]
"""`started_at` and `id` of the last row of a page."""


class RootSource:
    """How one of the tables is read: the columns of a list, and the conditions of the filters."""

    def __init__(self, kind: RootKind) -> None:
        self.kind = kind
        self.table: Table = {"run": runs, "call": calls, "model": usage}[kind]

    def select_one(self) -> Select[Any]:
        """Return the query for the row of one id, a root or not."""
        return self._select().where(self.table.c.id == bindparam("id"))

    def select(self, query: RootQuery, names: Collection[str]) -> Select[Any]:
        """Return the query for a page, newest first."""
        place = (self.table.c.started_at, self.table.c.id)
        found = self._select().where(*self.conditions(query, names))
        if "before_at" in names:
            found = found.where(tuple_(*place) < tuple_(bindparam("before_at"), bindparam("before_id")))
        newest = found.order_by(*(each.desc() for each in place))
        return newest.limit(bindparam("limit")).offset(literal_column("0"))

    def count(self, query: RootQuery, names: Collection[str]) -> Select[Any]:
        """Return the query for the number of rows by status, of at most MAX_COUNTED."""
        found = select(self._status().label("status")).where(*self.conditions(query, names))
        if self.kind == "run":
            found = found.select_from(runs.outerjoin(sessions, sessions.c.id == runs.c.session_id))
        some = found.limit(literal_column(str(MAX_COUNTED))).offset(literal_column("0")).subquery()
        return select(some.c.status, func.count()).group_by(some.c.status)

    def conditions(self, query: RootQuery, names: Collection[str]) -> list[ColumnElement[bool]]:
        """Return the conditions of a query for rows of the table."""
        wanted = [*self._is_root(), *self._has_status(query.statuses)]
        table = self.table
        filters: dict[str, Callable[[], ColumnElement[bool]]] = {
            "owner": lambda: table.c.owner == bindparam("owner"),
            "session_id": lambda: match_filter(table.c.session_id, names),
            "operation": self._has_operation,
            "model": self._has_model,
            "door": lambda: table.c.door == bindparam("door"),
            "text": self._contains_text,
            "since": lambda: table.c.started_at >= bindparam("since"),
            "until": lambda: table.c.started_at < bindparam("until"),
            "min_duration": lambda: self._duration() >= bindparam("min_duration"),
        }
        wanted += [condition() for name, condition in filters.items() if name in names]
        if query.ids:
            wanted.append(one_of(table.c.id, query.id_places))
        if query.has_error:
            wanted.append(self._has_error())
        return wanted

    def _select(self) -> Select[Any]:
        columns = self._columns()
        found = select(*(columns[name].label(name) for name in ROW_COLUMNS))
        if self.kind == "run":
            found = found.select_from(runs.outerjoin(sessions, sessions.c.id == runs.c.session_id))
        return found

    def _columns(self) -> dict[str, ColumnElement[Any]]:
        table = self.table
        nothing: ColumnElement[Any] = literal_column("NULL")
        columns: dict[str, ColumnElement[Any]] = dict.fromkeys(ROW_COLUMNS, nothing)
        columns |= {name: table.c[name] for name in SHARED_COLUMNS}
        columns["status"] = self._status()
        match self.kind:
            case "run":
                columns["name"] = func.coalesce(runs.c.model, runs.c.agent)
                columns |= {"ended_at": runs.c.finished_at, "session_title": sessions.c.title}
                columns |= {"agent": runs.c.agent, "error": runs.c.error}
            case "call":
                columns["name"] = calls.c.operation
                columns |= {name: calls.c[name] for name in ("ended_at", "agent", "error", "effect")}
                columns["input"] = func.substr(
                    calls.c.input, literal_column("1"), literal_column(str(MAX_PREVIEW))
                )
            case "model":
                columns["name"] = func.coalesce(usage.c.model_served, usage.c.model_asked)
                columns["ended_at"] = usage.c.started_at + func.coalesce(
                    usage.c.duration, literal_column("0")
                )
                columns |= {"error": usage.c.error, "provider": usage.c.provider}
        return columns

    def _status(self) -> ColumnElement[str]:
        stored: ColumnElement[str] = self.table.c.status
        if self.kind != "run":
            return stored
        return case((is_waiting(), literal_column(f"'{WAITING}'")), else_=stored)

    def _is_root(self) -> list[ColumnElement[bool]]:
        match self.kind:
            case "run":
                return []
            case "call":
                return [calls.c.parent_id.is_(None), calls.c.run_id.is_(None)]
            case "model":
                return [usage.c.run_id.is_(None), usage.c.call_id.is_(None)]

    def _has_status(self, statuses: Sequence[CallStatus]) -> list[ColumnElement[bool]]:
        if not statuses:
            return []
        column: Column[Any] = self.table.c.status
        if self.kind == "call":
            return [is_one_of(column, statuses)]
        stored = RUN_STATUSES if self.kind == "run" else MODEL_STATUSES
        allowed = is_one_of(column, [name for status in statuses for name in stored.get(status, ())])
        if self.kind == "run":
            return [among_waiting(allowed, statuses)]
        if "failed" in statuses:  # of the many ways to fail
            ended = [name for names in MODEL_STATUSES.values() for name in names]
            allowed = or_(allowed, ~is_one_of(column, ended))
        return [allowed]

    def _has_operation(self) -> ColumnElement[bool]:
        name: ColumnElement[str] = bindparam("operation")
        match self.kind:
            case "run":
                return exists().where(calls.c.run_id == runs.c.id, calls.c.operation == name)
            case "call":
                below = calls.alias("below")
                return or_(
                    calls.c.operation == name,
                    exists().where(below.c.parent_id == calls.c.id, below.c.operation == name),
                )
            case "model":
                return literal_column("1") == literal_column("0")

    def _has_model(self) -> ColumnElement[bool]:
        name: ColumnElement[str] = bindparam("model")
        is_used = or_(
            usage.c.model_served == name,
            usage.c.model_asked == name,
            usage.c.provider.concat(literal_column("'/'")).concat(usage.c.model_served) == name,
        )
        match self.kind:
            case "run":
                return or_(runs.c.model == name, exists().where(usage.c.run_id == runs.c.id, is_used))
            case "call":
                return exists().where(usage.c.call_id == calls.c.id, is_used)
            case "model":
                return is_used

    def _contains_text(self) -> ColumnElement[bool]:
        searched: dict[RootKind, tuple[ColumnElement[Any], ...]] = {
            "run": (runs.c.id, runs.c.agent, runs.c.model, runs.c.error, sessions.c.title),
            "call": (calls.c.id, calls.c.operation, calls.c.input, calls.c.error, calls.c.agent),
            "model": (usage.c.id, usage.c.model_served, usage.c.model_asked, usage.c.provider, usage.c.error),
        }
        pattern: ColumnElement[str] = bindparam("text")
        return or_(*(func.lower(column).like(pattern, escape="/") for column in searched[self.kind]))

    def _duration(self) -> ColumnElement[float]:
        match self.kind:
            case "run":
                return runs.c.finished_at - runs.c.started_at
            case "call":
                return calls.c.ended_at - calls.c.started_at
            case "model":
                return usage.c.duration

    def _has_error(self) -> ColumnElement[bool]:
        failed: ColumnElement[str] = literal_column("'failed'")
        match self.kind:
            case "run":
                below = exists().where(calls.c.run_id == runs.c.id, calls.c.status == failed)
                return or_(runs.c.status == failed, below)
            case "call":
                child = calls.alias("child")
                below = exists().where(child.c.parent_id == calls.c.id, child.c.status == failed)
                return or_(calls.c.status == failed, below)
            case "model":
                return and_(*self._has_status(("failed",)))


SHARED_COLUMNS = ("id", "status", "owner", "started_at", "session_id", "door")
ROW_COLUMNS = tuple(name for name in RootRow.__struct_fields__ if name not in ("kind", "sums", "waits"))
SOURCES: Mapping[RootKind, RootSource] = {kind: RootSource(kind) for kind in KINDS}


class RootStatements:
    """The SQL of `RootRepository.get`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        self.get = {kind: compiler.compile(source.select_one()) for kind, source in SOURCES.items()}


class RootRepository:
    """Lists roots, with what is below them summed up by the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._compiled: dict[tuple[Any, ...], str] = {}

    async def list(
        self, query: RootQuery, *, before: RootPlace | None = None, limit: int = 50
    ) -> Sequence[RootRow]:
        """Return the roots older than `before`, newest first, each with its sums."""
        params = query.params() | {"limit": limit}
        if before is not None:
            params |= {"before_at": before[0], "before_id": before[1]}
        pages = [(kind, self._compile("list", kind, query=query, params=params)) for kind in query.kinds]

        def job(connection: DatabaseConnection) -> Sequence[RootRow]:
            found = [to_root(kind, row) for kind, sql in pages for row in connection.fetch_all(sql, params)]
            found.sort(key=lambda root: (root.started_at, root.id), reverse=True)
            return self._completed(found[:limit], connection)

        return await self._database.read(job)

    async def count(self, query: RootQuery) -> Mapping[str, int]:
        """Return how many roots have each status, as `kind/stored status`."""
        params = query.params()
        parts = [(kind, self._compile("count", kind, query=query, params=params)) for kind in query.kinds]

        def job(connection: DatabaseConnection) -> Mapping[str, int]:
            return {
                f"{kind}/{status}": int(count)
                for kind, sql in parts
                for status, count in connection.fetch_all(sql, params)
            }

        return await self._database.read(job)

    async def get(self, id: str) -> RootRow | None:
        """Return the run, call or model call of this id, with its sums, whether it is a root or not."""
        sql = self._database.statements(RootStatements)

        def job(connection: DatabaseConnection) -> RootRow | None:
            for kind in KINDS:
                row = connection.fetch_one(sql.get[kind], {"id": id})
                if row is not None:
                    return self._completed([to_root(kind, row)], connection)[0]
            return None

        return await self._database.read(job)

    def _completed(self, roots: Sequence[RootRow], connection: DatabaseConnection) -> Sequence[RootRow]:
        """Return roots with what is below them, and what they wait for."""
        waiting = [root.id for root in roots if root.kind == "run" and root.status == WAITING]
        waits = WaitReader(self._database, connection).of_runs(waiting) if waiting else {}
        summed = with_sums(roots, SumReader(self._database, connection))
        return [replace(root, waits=waits[root.id]) if root.id in waits else root for root in summed]

    def _compile(
        self, what: Literal["list", "count"], kind: RootKind, *, query: RootQuery, params: Params
    ) -> str:
        key = (what, kind, query.statuses, query.has_error, *sorted(params))
        if key not in self._compiled:
            if len(self._compiled) >= MAX_COMPILED:
                self._compiled.clear()
            source = SOURCES[kind]
            statement = source.select(query, params) if what == "list" else source.count(query, params)
            self._compiled[key] = self._database.compile(statement)
        return self._compiled[key]


MAX_COMPILED = 500


def is_one_of(column: Column[Any], values: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition that a column has one of these values, which are words of the hub's own."""
    return column.in_([literal_column(f"'{value}'") for value in values or ("-",)])


def among_waiting(allowed: ColumnElement[bool], statuses: Sequence[CallStatus]) -> ColumnElement[bool]:
    """Return the condition of stored statuses, corrected for runs that are stored as finished but wait."""
    if "pending" in statuses and "done" in statuses:
        return allowed
    if "pending" in statuses:
        return or_(allowed, is_waiting())
    return and_(allowed, ~is_waiting()) if "done" in statuses else allowed


def with_sums(roots: Sequence[RootRow], reader: SumReader) -> Sequence[RootRow]:
    sums = reader.read({kind: [root.id for root in roots if root.kind == kind] for kind in KINDS})
    return [replace(root, sums=sums[root.id]) for root in roots]


def to_root(kind: RootKind, row: Row) -> RootRow:
    fields = dict(zip(ROW_COLUMNS, row, strict=True))
    if kind == "call" and fields["error"] is not None:
        fields["error"] = decode_json(fields["error"]).get("code", "failed")
    return RootRow(kind=kind, **fields)


def escape_like(text: str) -> str:
    """Escape text for LIKE with the escape character `/`."""
    for sign in "/%_":
        text = text.replace(sign, f"/{sign}")
    return text
