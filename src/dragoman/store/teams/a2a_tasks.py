"""A2A tasks in the database: a task is an answer, and its id that of the answer's first run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Tuple,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    select,
    tuple_,
)

from dragoman.store.connection import select_fields
from dragoman.store.database import Database
from dragoman.store.runs import RunRecord, RunStatus, to_run
from dragoman.store.tables.core import runs

MAX_PAUSED = 500  # answers that may wait for somebody, of one list


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
        params = scope_params(owner=owner, agent=agent, session_id=session_id) | {"limit": limit}
        if before is not None:
            params |= {"before_at": before.started_at, "before_id": before.id}
        sql = self._database.query_sql(select_first_runs, frozenset(params))
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_run(row) for row in rows]

    async def count(self, *, owner: str | None = None, agent: str, session_id: str | None = None) -> int:
        """Return how many answers of an agent there are, of everybody or of an owner."""
        params = scope_params(owner=owner, agent=agent, session_id=session_id)
        sql = self._database.query_sql(count_answers, frozenset(params))
        row = await self._database.read(lambda connection: connection.fetch_one(sql, params))
        return int(row[0]) if row else 0

    async def count_ends(
        self, *, owner: str | None = None, agent: str, session_id: str | None = None, since: float = 0.0
    ) -> Counter[tuple[RunStatus, bool]]:
        """Return how many answers have a last run that ended (or began) at `since` or later, by its status
        and whether it ended with tool calls: such an answer may wait for somebody."""
        params = scope_params(owner=owner, agent=agent, session_id=session_id) | {"since": since}
        sql = self._database.query_sql(count_last_runs, frozenset(params))
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        found: Counter[tuple[RunStatus, bool]] = Counter()
        for status, reason, number in rows:
            found[status, status == "finished" and reason == "tool-calls"] += int(number)
        return found

    async def list_paused(
        self, *, owner: str | None = None, agent: str, session_id: str | None = None, since: float = 0.0
    ) -> Sequence[RunRecord]:
        """Return the last runs of answers that ended with tool calls, the newest MAX_PAUSED, as `count_ends`
        counts them."""
        params = scope_params(owner=owner, agent=agent, session_id=session_id) | {"since": since}
        sql = self._database.query_sql(select_paused, frozenset(params))
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_run(row) for row in rows]


def scope_params(*, owner: str | None, agent: str, session_id: str | None) -> dict[str, Any]:
    """Return the parameters by which answers are found."""
    params = {"owner": owner, "agent": agent, "session_id": session_id}
    return {name: value for name, value in params.items() if value is not None}


def of_answers(query: Select[Any], last: FromClause, *, names: frozenset[str]) -> Select[Any]:
    """Restrict a query of last runs to answers whose first run these parameters describe."""
    first, other = runs.alias("first"), runs.alias("other")

    def same(one: FromClause, two: FromClause) -> ColumnElement[bool]:
        return and_(one.c.session_id == two.c.session_id, one.c.message_id == two.c.message_id)

    def place(run: FromClause) -> Tuple:
        return tuple_(run.c.started_at, run.c.id)

    scope = [first.c[name] == bindparam(name) for name in sorted(names & {"owner", "agent", "session_id"})]
    return query.join(first, same(first, last)).where(
        *scope,
        ~exists().where(same(other, first), place(other) < place(first)),
        ~exists().where(same(other, last), place(other) > place(last)),
        func.coalesce(last.c.finished_at, last.c.started_at) >= bindparam("since"),
    )


def count_last_runs(names: frozenset[str]) -> Select[Any]:
    """Return the query for the number of last runs by how they ended."""
    last = runs.alias("last")
    counted = select(last.c.status, last.c.finish_reason, func.count()).select_from(last)
    return of_answers(counted, last, names=names).group_by(last.c.status, last.c.finish_reason)


def select_paused(names: frozenset[str]) -> Select[Any]:
    """Return the query for the newest last runs that ended with tool calls."""
    found = of_answers(select_fields(RunRecord, runs), runs, names=names)
    ended = runs.c.status == literal_column("'finished'")
    newest = found.where(ended, runs.c.finish_reason == literal_column("'tool-calls'"))
    newest = newest.order_by(runs.c.started_at.desc(), runs.c.id.desc())
    return newest.limit(literal_column(str(MAX_PAUSED))).offset(literal_column("0"))


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
