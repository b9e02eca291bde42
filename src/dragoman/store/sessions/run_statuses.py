"""The statuses of the newest runs of sessions, for lists of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, literal_column, select

from dragoman.store.connection import Compiler, DatabaseConnection, Row
from dragoman.store.database import Database
from dragoman.store.tables.core import runs, sessions

CHUNK = 50  # sessions that one query asks for


class RunStatusStatements:
    """The SQL of `read_run_statuses`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        newest = select(runs.c.status).where(runs.c.session_id == sessions.c.id)
        newest = newest.order_by(runs.c.started_at.desc(), runs.c.id.desc())
        newest = newest.limit(literal_column("1")).offset(literal_column("0"))
        listed = sessions.c.id.in_([bindparam(f"id_{place}") for place in range(CHUNK)])
        self.newest = compiler.compile(select(sessions.c.id, newest.scalar_subquery()).where(listed))


async def read_run_statuses(database: Database, session_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the status of the newest run of each of these sessions that has one."""
    sql = database.statements(RunStatusStatements).newest

    def job(connection: DatabaseConnection) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(session_ids), CHUNK):
            chunk = session_ids[start : start + CHUNK]
            params = {f"id_{place}": chunk[place] if place < len(chunk) else "" for place in range(CHUNK)}
            rows += connection.fetch_all(sql, params)
        return rows

    return {id: status for id, status in await database.read(job) if status is not None}
