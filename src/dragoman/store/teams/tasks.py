"""A2A tasks in the database: the first runs of answers, which name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, bindparam, exists, func, literal_column, select, tuple_

from dragoman.store.connection import select_fields
from dragoman.store.database import Database
from dragoman.store.runs import RunRecord, to_run
from dragoman.store.tables.core import runs


class TaskRepository:
    """The first runs of the answers of an agent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_first_runs(
        self,
        *,
        owner: str | None = None,
        agent: str,
        session_id: str | None = None,
        before: RunRecord | None = None,
        limit: int = 50,
    ) -> Sequence[RunRecord]:
        """Return the first runs of answers by an agent, of everybody or an owner, newest first; `before` is a
        run."""
        params: dict[str, Any] = {"agent": agent, "limit": limit}
        if owner is not None:
            params["owner"] = owner
        if session_id is not None:
            params["session_id"] = session_id
        if before is not None:
            params |= {"before_at": before.started_at, "before_id": before.id}
        sql = self._database.query_sql(select_first_runs, frozenset(params))
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_run(row) for row in rows]

    async def count(self, *, owner: str | None = None, agent: str, session_id: str | None = None) -> int:
        """Return how many answers of an agent there are, of everybody or of an owner."""
        params = {"agent": agent}
        if owner is not None:
            params["owner"] = owner
        if session_id is not None:
            params["session_id"] = session_id
        sql = self._database.query_sql(count_answers, frozenset(params))
        row = await self._database.read(lambda connection: connection.fetch_one(sql, params))
        return int(row[0]) if row else 0


def count_answers(names: frozenset[str]) -> Select[Any]:
    """Return the query for the number of answers with these parameters."""
    counted = select(func.count(func.distinct(runs.c.message_id)))
    return counted.where(*(runs.c[name] == bindparam(name) for name in sorted(names)))


def select_first_runs(names: frozenset[str]) -> Select[Any]:
    """Return the query for a page of first runs with these parameters."""
    place, earlier = (runs.c.started_at, runs.c.id), runs.alias("earlier")
    found = select_fields(RunRecord, runs)
    for name in sorted(names & {"owner", "agent", "session_id"}):
        found = found.where(runs.c[name] == bindparam(name))
    if "before_at" in names:
        found = found.where(tuple_(*place) < tuple_(bindparam("before_at"), bindparam("before_id")))
    same = earlier.c.session_id == runs.c.session_id, earlier.c.message_id == runs.c.message_id
    is_later = exists().where(*same, tuple_(earlier.c.started_at, earlier.c.id) < tuple_(*place))
    newest = found.where(~is_later).order_by(*(column.desc() for column in place))
    return newest.limit(bindparam("limit")).offset(literal_column("0"))
