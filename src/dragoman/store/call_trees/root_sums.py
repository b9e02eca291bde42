"""Sums over what is below a root: calls, failures, tokens and cost, one query for all roots of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Select,
    bindparam,
    func,
    literal_column,
    select,
)

from dragoman.store.connection import DatabaseConnection, Row
from dragoman.store.database import Database
from dragoman.store.tables.core import HAS_FAILED, calls, usage

SIZES = (1, 10, 50, 200)  # roots in one statement
MAX_BELOW = 5_000  # calls that are counted below the calls of a page
COLUMNS = ("cost", "input_tokens", "output_tokens")


class RootSums(msgspec.Struct, frozen=True, kw_only=True):
    """What is below a root, with itself. A sum of unknown values is None; `priced` of `model_calls` have a
    cost, and `is_complete` is False where there was too much to count.
    """

    calls: int = 0
    failed: int = 0
    model_calls: int = 0
    priced: int = 0
    cost: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    first_byte: float | None = None
    is_complete: bool = True


class SumReader:
    """Reads sums in a job."""

    def __init__(self, database: Database, connection: DatabaseConnection) -> None:
        self._database = database
        self._connection = connection

    def read(self, ids: Mapping[str, Sequence[str]]) -> Mapping[str, RootSums]:
        """Return the sums of these roots, whose ids are given by kind."""
        found: dict[str, dict[str, Any]] = {id: {} for of_kind in ids.values() for id in of_kind}
        runs, calls, models = ids["run"], ids["call"], ids["model"]
        self._add(found, runs, make=select_run_calls, names=("calls",))
        self._add(found, runs, make=select_failed_run_calls, names=("failed",))
        self._add(found, runs, make=select_run_usage, names=USAGE_NAMES)
        self._add_below(found, calls)
        self._add(found, models, make=select_own_usage, names=USAGE_NAMES)
        return {id: RootSums(**sums) for id, sums in found.items()}

    def _add_below(self, found: Mapping[str, dict[str, Any]], roots: Sequence[str]) -> None:
        """Add what is below calls, level by level, as far as MAX_BELOW calls."""
        root_of = {id: id for id in roots}
        level, remaining = list(roots), MAX_BELOW
        statuses = self._in_chunks(select_statuses, roots, limit=MAX_BELOW)
        for id, status in statuses:
            found[id] |= {"calls": 1, "failed": int(status == "failed")}
        while level and remaining > 0:
            children = self._in_chunks(select_children, level, limit=remaining)
            remaining -= len(children)
            level = []
            for id, parent, status in children:
                root_of[id] = root_of[parent]
                sums = found[root_of[id]]
                sums["calls"] += 1
                sums["failed"] += status == "failed"
                level.append(id)
        if remaining <= 0:
            for id in roots:
                found[id]["is_complete"] = False
        for id, *values in self._in_chunks(select_call_usage, list(root_of), limit=MAX_BELOW):
            add_usage(found[root_of[id]], dict(zip(USAGE_NAMES, values, strict=True)))

    def _in_chunks(self, make: Any, ids: Sequence[str], *, limit: int) -> Sequence[Row]:
        """Return the rows of a query for ids, which is run for some of them at a time."""
        rows: list[Row] = []
        for start in range(0, len(ids), SIZES[-1]):
            chunk = ids[start : start + SIZES[-1]]
            size = next(size for size in SIZES if size >= len(chunk))
            params: dict[str, Any] = id_params(chunk, size) | {"limit": limit - len(rows)}
            sql = self._database.statements(STATEMENTS[make, size])
            rows += self._connection.fetch_all(sql, params)
            if len(rows) >= limit:
                break
        return rows

    def _add(
        self, found: Mapping[str, dict[str, Any]], ids: Sequence[str], *, make: Any, names: Sequence[str]
    ) -> None:
        if not ids:
            return
        size = next(size for size in SIZES if size >= len(ids))
        sql = self._database.statements(STATEMENTS[make, size])
        for id, *values in self._connection.fetch_all(sql, id_params(ids, size)):
            found[id].update(zip(names, values, strict=True))


USAGE_NAMES = ("model_calls", "priced", *COLUMNS, "first_byte")


def one_of(column: ColumnElement[Any], size: int) -> ColumnElement[bool]:
    return column.in_([bindparam(f"id_{place}") for place in range(size)])


def usage_sums() -> Iterable[ColumnElement[Any]]:
    yield func.count()
    yield func.count(usage.c.cost)
    yield from (func.sum(usage.c[name]) for name in COLUMNS)
    yield func.min(usage.c.first_byte)


def select_run_calls(size: int) -> Select[Any]:
    found = select(calls.c.run_id, func.count()).where(one_of(calls.c.run_id, size))
    return found.group_by(calls.c.run_id)


def select_failed_run_calls(size: int) -> Select[Any]:
    return select_run_calls(size).where(HAS_FAILED)


def select_run_usage(size: int) -> Select[Any]:
    found = select(usage.c.run_id, *usage_sums()).where(one_of(usage.c.run_id, size))
    return found.group_by(usage.c.run_id)


def select_own_usage(size: int) -> Select[Any]:
    return select(usage.c.id, *usage_sums()).where(one_of(usage.c.id, size)).group_by(usage.c.id)


def some(query: Select[Any]) -> Select[Any]:
    return query.limit(bindparam("limit")).offset(literal_column("0"))


def select_statuses(size: int) -> Select[Any]:
    return some(select(calls.c.id, calls.c.status).where(one_of(calls.c.id, size)))


def select_children(size: int) -> Select[Any]:
    found = select(calls.c.id, calls.c.parent_id, calls.c.status)
    return some(found.where(one_of(calls.c.parent_id, size)))


def select_call_usage(size: int) -> Select[Any]:
    found = select(usage.c.call_id, *usage_sums()).where(one_of(usage.c.call_id, size))
    return some(found.group_by(usage.c.call_id))


def add_usage(sums: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the usage of one call to the sums of its root."""
    for name, value in more.items():
        if value is not None and name != "first_byte":
            sums[name] = (sums.get(name) or 0) + value


def id_params(ids: Sequence[str], size: int) -> dict[str, Any]:
    return {f"id_{place}": ids[place] if place < len(ids) else "" for place in range(size)}


MAKERS = (
    select_run_calls,
    select_failed_run_calls,
    select_run_usage,
    select_own_usage,
    select_statuses,
    select_children,
    select_call_usage,
)


def compiled(make: Any, size: int) -> Any:
    return lambda compiler: compiler.compile(make(size))


STATEMENTS: Mapping[tuple[Any, int], Any] = {
    (make, size): compiled(make, size) for make in MAKERS for size in SIZES
}
