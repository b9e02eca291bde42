"""Namespaces of spokes and their owners, in the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from sqlalchemy import bindparam, delete, select

from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.database import Database
from dragoman.store.tables.core import spoke_namespaces


class SpokeNamespaceStatements:
    """The SQL of `SpokeNamespaceRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        namespace, owner = spoke_namespaces.c.namespace, spoke_namespaces.c.owner
        self.list = compiler.compile(select(namespace, owner).order_by(namespace))
        self.get = compiler.compile(select(namespace, owner).where(namespace == bindparam("of")))
        put = compiler.insert(spoke_namespaces)
        self.claim = compiler.compile(put.on_conflict_do_nothing(index_elements=["namespace"]))
        self.release = compiler.compile(delete(spoke_namespaces).where(namespace == bindparam("of")))


class SpokeNamespaceRepository:
    """The owners of all namespaces that spokes have registered in."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> SpokeNamespaceStatements:
        return self._database.statements(SpokeNamespaceStatements)

    async def list(self) -> Mapping[str, str]:
        """Return the owners by namespace."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, {}))
        return {str(namespace): str(owner) for namespace, owner in rows}

    async def claim(self, owners: Mapping[str, str]) -> Mapping[str, str]:
        """Store the owners of namespaces; one that has an owner keeps it. Return their owners."""
        now = self._clock()
        rows = [
            {"namespace": namespace, "owner": owner, "created_at": now}
            for namespace, owner in sorted(owners.items())
        ]

        def job(connection: DatabaseConnection) -> Mapping[str, str]:
            connection.execute_many(self._sql.claim, rows)
            found = (connection.fetch_one(self._sql.get, {"of": namespace}) for namespace in owners)
            return {str(row[0]): str(row[1]) for row in found if row}

        return await self._database.write(job)

    async def release(self, namespace: str) -> None:
        """Delete the owner of a namespace, so that another one can claim it."""
        await self._database.write(
            lambda connection: connection.execute(self._sql.release, {"of": namespace})
        )
