"""The nodes below a run or a call without their inputs and results, in pages that a reader encodes.

A tree may have 100,000 nodes: rows become JSON in the thread that read them, so that the event loop only
sends bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, or_, select, tuple_

from dragoman.store.calls import descendant_ids
from dragoman.store.connection import Compiler, DatabaseConnection, Row
from dragoman.store.database import Database
from dragoman.store.tables.core import calls, usage

RootOf: TypeAlias = Literal["run", "call"]
NodePlace: TypeAlias = tuple[float, str]
"""`started_at` and `id` of the last node of a page."""
START: NodePlace = (0.0, "")
MAX_DETAIL = 60  # characters of the input that a node shows
MAX_MODEL_CALLS = 20_000
NODE_FIELDS = (
    *("id", "parentId", "kind", "name", "status", "startedAt", "duration", "step", "detail"),
    *("error", "effect", "attempts", "cost", "inputTokens", "outputTokens", "firstByte"),
)
MODEL_COLUMNS = (
    *("id", "call_id", "provider", "model_served", "model_asked", "status", "started_at", "duration", "step"),
    *("error", "cost", "input_tokens", "output_tokens", "first_byte", "owner"),
)


def to_camel_case(name: str) -> str:
    """Return a column's name as JSON spells it."""
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


encode_rows = msgspec.json.Encoder().encode


class NodePage(msgspec.Struct, frozen=True):
    """Nodes as JSON text of a list of rows, each in the order of `NODE_FIELDS`; `last` is where they end.

    A row may end before the last fields: those are null.
    """

    text: bytes
    count: int
    last: NodePlace | None


class ChildPage(msgspec.Struct, frozen=True):
    """Nodes as `NodePage` has them, with their ids; `last` is the id after which the next page begins."""

    text: bytes
    ids: Sequence[str]
    last: str | None


PARENTS = 100  # calls whose children one query finds


class NodeStatements:
    """The SQL of `CallNodeRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        branch = select(descendant_ids().c.id)
        call_belongs: dict[RootOf, ColumnElement[bool]] = {
            "run": calls.c.run_id == bindparam("id"),
            "call": calls.c.id.in_(branch),
        }
        model_belongs: dict[RootOf, ColumnElement[bool]] = {
            "run": usage.c.run_id == bindparam("id"),
            "call": usage.c.call_id.in_(branch),
        }
        changed = or_(calls.c.started_at >= bindparam("since"), calls.c.ended_at >= bindparam("since"))
        ended = usage.c.started_at + func.coalesce(usage.c.duration, literal_column("0"))
        self.calls = {
            (of, is_change): compiler.compile(call_page().where(belongs, *([changed] if is_change else [])))
            for of, belongs in call_belongs.items()
            for is_change in (False, True)
        }
        parents = calls.c.parent_id.in_([bindparam(f"parent_{place}") for place in range(PARENTS)])
        children = select_nodes().where(parents, calls.c.id > bindparam("after_id")).order_by(calls.c.id)
        self.children = compiler.compile(children.limit(bindparam("limit")).offset(literal_column("0")))
        self.one = compiler.compile(select_nodes().where(calls.c.id == bindparam("id")))
        self.model_calls = {
            (of, is_change): compiler.compile(
                model_page().where(belongs, *([ended >= bindparam("since")] if is_change else []))
            )
            for of, belongs in model_belongs.items()
            for is_change in (False, True)
        }


EXPORTED = (
    *("id", "operation", "status", "effect", "owner", "agent", "parent_id", "run_id", "session_id"),
    *("tool_call_id", "step", "idempotency_key", "input_hash", "attempts", "cost", "door"),
    *("started_at", "ended_at", "input", "result", "error", "notes", "policy"),
)
EXPORTED_JSON = frozenset({"input", "result", "error", "notes", "policy"})
EXPORTED_NAMES = tuple(to_camel_case(name) for name in EXPORTED)
CHUNK = 20  # calls of one query of an export: each may have megabytes


class ExportStatements:
    """The SQL of `CallNodeRepository` for exports; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        belongs: dict[RootOf, ColumnElement[bool]] = {
            "run": calls.c.run_id == bindparam("id"),
            "call": calls.c.id.in_(select(descendant_ids().c.id)),
        }
        order = (calls.c.started_at, calls.c.id)
        self.ids = {
            of: compiler.compile(
                select(calls.c.id)
                .where(condition)
                .order_by(*order)
                .limit(bindparam("limit"))
                .offset(literal_column("0"))
            )
            for of, condition in belongs.items()
        }
        chosen = calls.c.id.in_([bindparam(f"id_{place}") for place in range(CHUNK)])
        rows = select(*(calls.c[name] for name in EXPORTED)).where(chosen)
        self.rows = compiler.compile(rows.order_by(*order))


class CallNodeRepository:
    """Reads the nodes below a run or a call. Who may see it is the caller's concern."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def model_calls(
        self, id: str, of: RootOf, *, owner: str | None = None, since: float | None = None
    ) -> NodePage:
        """Return the model calls of a run, or of the sub-agents below a call, oldest first.

        `owner` is the only one whose nodes are shown; `since` leaves out those that ended before.
        """
        sql = self._database.statements(NodeStatements).model_calls[of, since is not None]
        params = {"id": id, "limit": MAX_MODEL_CALLS} | ({} if since is None else {"since": since})

        def job(connection: DatabaseConnection) -> NodePage:
            rows = connection.fetch_all(sql, params)
            shown = [model_node(row) for row in rows if owner in (None, row[-1])]
            return NodePage(encode_rows(shown), len(shown), None)

        return await self._database.read(job)

    async def page(
        self,
        id: str,
        of: RootOf,
        *,
        after: NodePlace = START,
        limit: int,
        owner: str | None = None,
        since: float | None = None,
    ) -> NodePage:
        """Return the next calls by their start; `last` is None where there are no more."""
        sql = self._database.statements(NodeStatements).calls[of, since is not None]
        params = {"id": id, "after_at": after[0], "after_id": after[1], "limit": limit, "owner": owner}
        if since is not None:
            params["since"] = since

        def job(connection: DatabaseConnection) -> NodePage:
            rows = connection.fetch_all(sql, params)
            last = (rows[-1][STARTED], rows[-1][0]) if len(rows) == limit else None
            return NodePage(encode_nodes(rows), len(rows), last)

        return await self._database.read(job)

    async def one(self, id: str) -> NodePage:
        """Return the node of one call."""
        sql = self._database.statements(NodeStatements).one
        params = {"id": id, "owner": None}
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return NodePage(encode_nodes(rows), len(rows), None)

    async def children(
        self, parents: Sequence[str], *, after: str, limit: int, owner: str | None
    ) -> ChildPage:
        """Return the calls directly below these, at most PARENTS, by their id."""
        sql = self._database.statements(NodeStatements).children
        params: dict[str, Any] = {
            f"parent_{place}": parents[place] if place < len(parents) else "" for place in range(PARENTS)
        }
        params |= {"after_id": after, "limit": limit, "owner": owner}

        def job(connection: DatabaseConnection) -> ChildPage:
            rows = connection.fetch_all(sql, params)
            last = rows[-1][0] if len(rows) == limit else None
            return ChildPage(encode_nodes(rows), [row[0] for row in rows], last)

        return await self._database.read(job)

    async def list_ids(self, id: str, of: RootOf, *, limit: int) -> Sequence[str]:
        """Return the ids of the calls below, by their start."""
        sql = self._database.statements(ExportStatements).ids[of]
        params = {"id": id, "limit": limit}
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [row[0] for row in rows]

    async def export(
        self, ids: Sequence[str], *, owner: str | None, session_id: Callable[[str | None], str | None]
    ) -> bytes:
        """Return these calls, at most CHUNK, as JSON lines with their inputs and results.

        `session_id` returns the caller's id of a session.
        """
        sql = self._database.statements(ExportStatements).rows
        params = {f"id_{place}": ids[place] if place < len(ids) else "" for place in range(CHUNK)}

        def job(connection: DatabaseConnection) -> bytes:
            lines = []
            for row in connection.fetch_all(sql, params):
                fields = dict(zip(EXPORTED, row, strict=True))
                if owner not in (None, fields["owner"]):
                    continue
                fields["session_id"] = session_id(fields["session_id"])
                shown = {
                    name: msgspec.Raw(fields[key].encode())
                    if key in EXPORTED_JSON and fields[key]
                    else fields[key]
                    for key, name in zip(EXPORTED, EXPORTED_NAMES, strict=True)
                }
                lines.append(encode_rows({"kind": "call", **shown}))
            return b"".join(line + b"\n" for line in lines)

        return await self._database.read(job)


STARTED, ERROR = NODE_FIELDS.index("startedAt"), NODE_FIELDS.index("error")


def select_nodes() -> Select[Any]:
    """Select rows in the order of `NODE_FIELDS`, without the fields of model calls at its end.

    The database computes each field as it is sent, as a tree may have 100,000 rows for Python to convert.
    """
    took = calls.c.ended_at - calls.c.started_at
    microseconds = func.round(took * literal_column("1e6")) / literal_column("1e6")
    duration = case((took < literal_column("0"), literal_column("0.0")), else_=microseconds)
    detail = func.substr(calls.c.input, literal_column("1"), literal_column(str(MAX_DETAIL)))
    kind: ColumnElement[str] = literal_column("'call'")
    identity = (calls.c.id, calls.c.parent_id, kind, calls.c.operation, calls.c.status)
    times = (calls.c.started_at, duration, calls.c.step, detail)
    of_owner = calls.c.owner == func.coalesce(bindparam("owner"), calls.c.owner)
    outcome = (calls.c.error, calls.c.effect, calls.c.attempts, calls.c.cost)
    return select(*identity, *times, *outcome).where(of_owner)


def call_page() -> Select[Any]:
    place = (calls.c.started_at, calls.c.id)
    found = select_nodes().where(tuple_(*place) > tuple_(bindparam("after_at"), bindparam("after_id")))
    return found.order_by(*place).limit(bindparam("limit")).offset(literal_column("0"))


def model_page() -> Select[Any]:
    found = select(*(usage.c[name] for name in MODEL_COLUMNS))
    in_order = found.order_by(usage.c.started_at, usage.c.id)
    return in_order.limit(bindparam("limit")).offset(literal_column("0"))


def encode_nodes(rows: Sequence[Row]) -> bytes:
    """Return rows of `select_nodes` as JSON, with the code of an error in the place of the error."""
    return encode_rows([row if row[ERROR] is None else with_code(row) for row in rows])


def with_code(row: Row) -> tuple[Any, ...]:
    code = msgspec.json.decode(row[ERROR], type=ErrorCode).code
    return (*row[:ERROR], code, *row[ERROR + 1 :])


class ErrorCode(msgspec.Struct, frozen=True):
    """What a node shows of a failure."""

    code: str = "failed"


MODEL_STATUS = {"finished": "done", "aborted": "aborted"}


def model_node(row: Row) -> tuple[Any, ...]:
    """Return the node of a model call, in the order of `NODE_FIELDS`."""
    id, parent, provider, model_served, model_asked, status, started_at, duration, step, *others = row
    error, cost, input_tokens, output_tokens, first_byte, _ = others
    model = model_served or model_asked or "a model"
    name = f"{provider}/{model}" if provider else model
    shown = MODEL_STATUS.get(status, "failed")
    code = (error or status) if shown == "failed" else None
    described = (id, parent, "model", name, shown, started_at, duration, step, None)
    return (*described, code, None, None, cost, input_tokens, output_tokens, first_byte)
