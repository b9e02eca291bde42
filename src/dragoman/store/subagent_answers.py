"""Answers of sub-agents in the database while they work: after a crash they continue from there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import bindparam, delete, exists, literal_column, select

from dragoman.errors import StoreError, Unavailable
from dragoman.fold import Fold
from dragoman.messages import Part, decode_part, encode_part
from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob
from dragoman.store.database import Database
from dragoman.store.tables.core import calls, subagent_parts

log = logging.getLogger(__name__)


class SubagentAnswerStatements:
    """The SQL of `SubagentAnswerRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        of_call = subagent_parts.c.call_id == bindparam("call_id")
        put = compiler.insert(subagent_parts)
        put = put.on_conflict_do_update(
            index_elements=subagent_parts.primary_key, set_={"body": put.excluded.body}
        )
        found = select(subagent_parts.c.body).where(of_call).order_by(subagent_parts.c.position)
        rest = of_call, subagent_parts.c.position >= bindparam("count")
        self.upsert = compiler.compile(put)
        self.list = compiler.compile(found)
        is_unfinished = calls.c.status.in_(
            [literal_column(f"'{status}'") for status in ("pending", "running", "uncertain")]
        )
        its_call = select(calls.c.id).where(calls.c.id == subagent_parts.c.call_id, is_unfinished)
        self.purge = compiler.compile(delete(subagent_parts).where(~exists(its_call)))
        self.delete_from = compiler.compile(delete(subagent_parts).where(*rest))


class SubagentAnswerRepository:
    """The answers of active sub-agents, by the ids of their calls."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_saved = True  # a crash may have left some

    @cached_property
    def _sql(self) -> SubagentAnswerStatements:
        return self._database.statements(SubagentAnswerStatements)

    def save(self, call_id: str, answer: Fold) -> None:
        """Queue the changed parts of an answer; they are committed before any call that is recorded later."""
        dirty, answer.dirty = answer.dirty, set()
        count = len(answer.builders)
        rows = [
            {"call_id": call_id, "position": at, "body": encode_part(answer.builders[at].part()).decode()}
            for at in sorted(dirty)
            if at < count
        ]
        has_shrunk = any(at >= count for at in dirty)

        def job(connection: DatabaseConnection) -> None:
            if rows:
                connection.execute_many(self._sql.upsert, rows)
            if has_shrunk:
                connection.execute(self._sql.delete_from, {"call_id": call_id, "count": count})

        self._has_saved = True
        self._enqueue(job)

    async def load(self, call_id: str) -> Sequence[Part]:
        """Return the parts of an answer that were saved."""
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list, {"call_id": call_id})
        )
        return [decode_part(body) for (body,) in rows]

    def purge(self) -> None:
        """Queue the deletion of the answers whose calls have ended, if any was saved since the last time."""
        if self._has_saved:
            self._has_saved = False
            self._enqueue(lambda connection: connection.execute(self._sql.purge, {}))

    def _enqueue(self, job: DatabaseJob[Any]) -> None:
        try:
            self._database.enqueue(job, on_failure=log_failure)
        except (StoreError, Unavailable) as error:
            log_failure(error)


def log_failure(error: Exception) -> None:
    log.warning("the answer of a sub-agent could not be saved: %s", error)
