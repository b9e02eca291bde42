"""Pinned definitions in the store: what each MCP server's tools were when somebody approved of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
from sqlalchemy import bindparam, delete

from dragoman.store.connection import Compiler, Connection
from dragoman.store.database import Database
from dragoman.store.rows import select_all, to_params, to_struct
from dragoman.store.tables import definitions


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A definition as it was approved: its JSON `body`, the body's hash, when and by whom."""

    server: str
    name: str
    hash: str
    body: str
    approved_at: float
    approved_by: str | None = None


class DefinitionStatements:
    """The SQL of `Definitions`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        of = definitions.c.server == bindparam("of")
        put = compiler.insert(definitions)
        kept = {name: put.excluded[name] for name in ("hash", "body", "approved_at", "approved_by")}
        self.put = compiler.compile(put.on_conflict_do_update(index_elements=["server", "name"], set_=kept))
        self.list = compiler.compile(select_all(Pin, definitions).where(of).order_by(definitions.c.name))
        self.forget = compiler.compile(delete(definitions).where(of))


class Definitions:
    """All pinned definitions, by server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> DefinitionStatements:
        return self._database.statements(DefinitionStatements)

    async def list(self, server: str) -> Sequence[Pin]:
        """The pins of a server, by name."""
        rows = await self._database.read(lambda connection: connection.all(self._sql.list, {"of": server}))
        return [to_struct(Pin, row) for row in rows]

    async def put(self, pins: Sequence[Pin]) -> None:
        """Keep these instead of what was pinned under the same names; all or none."""

        def job(connection: Connection) -> None:
            connection.run_many(self._sql.put, [to_params(pin) for pin in pins])

        await self._database.write(job)

    async def forget(self, server: str) -> int:
        """Drop all pins of a server; how many there were."""
        return await self._database.write(lambda connection: connection.run(self._sql.forget, {"of": server}))
