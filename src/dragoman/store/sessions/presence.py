"""Who has sessions open, by host, where hosts share a database: each host writes who is connected to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cached_property
from typing import Any

from sqlalchemy import bindparam, delete, func, select

from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.database import Database
from dragoman.store.tables.hosts import hosts, session_people


class PeopleStatements:
    """The SQL of `PeopleRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        columns = session_people.c
        this = (
            columns.session_id == bindparam("of"),
            columns.host == bindparam("at"),
            columns.owner == bindparam("who"),
        )
        put = compiler.insert(session_people)
        self.put = compiler.compile(
            put.on_conflict_do_update(
                index_elements=["session_id", "host", "owner"], set_={"sockets": put.excluded["sockets"]}
            )
        )
        self.delete = compiler.compile(delete(session_people).where(*this))
        members = select(hosts.c.id).where(hosts.c.fenced_at.is_(None))
        elsewhere = columns.session_id == bindparam("of"), columns.host != bindparam("at")
        found = select(columns.owner, func.sum(columns.sockets)).where(*elsewhere, columns.host.in_(members))
        self.list = compiler.compile(found.group_by(columns.owner))
        is_gone = columns.host.not_in(members) | (columns.host == bindparam("at"))
        self.delete_absent = compiler.compile(delete(session_people).where(is_gone))


class PeopleRepository:
    """The people of all sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> PeopleStatements:
        return self._database.statements(PeopleStatements)

    def note(self, session_id: str, owner: str, *, host: str, sockets: int) -> asyncio.Future[Any]:
        """Write how many sockets of an owner a host has; calls are committed in their order.

        NotFound when the session was deleted.
        """
        place = {"of": session_id, "at": host, "who": owner}
        values = {"session_id": session_id, "host": host, "owner": owner, "sockets": sockets}

        def job(connection: DatabaseConnection) -> None:
            if sockets:
                connection.execute(self._sql.put, values)
            else:
                connection.execute(self._sql.delete, place)

        return self._database.submit(job)

    async def list_elsewhere(self, session_id: str, *, host: str) -> Counter[str]:
        """Return the sockets by owner that the other hosts have of a session."""
        params = {"of": session_id, "at": host}
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, params))
        return Counter({str(owner): int(count) for owner, count in rows})

    async def remove_absent(self, host: str) -> bool:
        """Delete the rows of this host and of hosts that are gone; return whether there were any."""
        return await self._database.write(
            lambda connection: connection.execute(self._sql.delete_absent, {"at": host}) > 0
        )
