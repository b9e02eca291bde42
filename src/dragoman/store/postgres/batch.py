"""Statements that wait for the next round trip, collected by their SQL.

One statement with 100 sets of parameters costs a fraction of 100 statements. Statements are reordered for
that, but those that share an id (of a session, a run, a call, …) keep their order, and one without any id
keeps its place among all others. A query is sent before waiting statements with other ids. The rows of a
statement are sorted by their first id, so that processes which write to the same rows lock them in the same
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dragoman.store.connection import Params

# Parameters that are ids. Two statements that do not commute must share a value of one of these.
ID_NAMES = (
    "session_id",
    "id",
    "scope",
    "of",
    "run_id",
    "call_id",
    "parent_id",
    "key_id",
    "name",
    "namespace",
    "server",
    "hash",
)


class BatchedStatement(NamedTuple):
    """A statement, and its sets of parameters."""

    sql: str
    rows: list[Params]


class StatementBatch:
    """The statements of a transaction that are not sent yet."""

    def __init__(self) -> None:
        self._statements: list[BatchedStatement] = []
        self._last_by_sql: dict[str, int] = {}
        self._last_by_id: dict[object, int] = {}
        self._first_allowed = 0
        self._row_count = 0

    def add(self, sql: str, params: Params) -> int:
        """Add a statement after all that it depends on; return how many rows wait."""
        ids = [params[name] for name in ID_NAMES if params.get(name) is not None]
        at = self._last_by_sql.get(sql, -1)
        least = max((self._last_by_id.get(id, 0) for id in ids), default=len(self._statements))
        if at < max(least, self._first_allowed):
            at = len(self._statements)
            self._statements.append(BatchedStatement(sql, []))
            self._last_by_sql[sql] = at
        self._statements[at].rows.append(params)
        for id in ids:
            self._last_by_id[id] = at
        if not ids:
            self._first_allowed = len(self._statements)
        self._row_count += 1
        return self._row_count

    def concerns(self, params: Params) -> bool:
        """Whether a statement with these parameters may see or change what a waiting one does."""
        ids = [params[name] for name in ID_NAMES if params.get(name) is not None]
        return bool(self._first_allowed or not ids or not self._last_by_id.keys().isdisjoint(ids))

    def take(self) -> Sequence[BatchedStatement]:
        """Return all statements in an order in which they can be sent, and remove them."""
        statements = self._statements
        for statement in statements:
            if len(statement.rows) > 1:
                statement.rows.sort(key=first_id)
        self.clear()
        return statements

    def clear(self) -> None:
        """Remove all statements."""
        if self._row_count:
            self._statements = []
            self._last_by_sql = {}
            self._last_by_id = {}
            self._first_allowed = 0
            self._row_count = 0


def first_id(params: Params) -> tuple[str, ...]:
    """Return the ids by which the rows of one statement are sorted; equal ones stay in order."""
    return tuple(str(params[name]) for name in ID_NAMES[:4] if params.get(name) is not None)
