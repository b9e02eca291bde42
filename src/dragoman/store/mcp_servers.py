"""MCP servers in the store: those that were added while the hub ran, as the JSON that describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
from sqlalchemy import bindparam, delete

from dragoman.store.connection import Compiler, DatabaseConnection, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.tables import definitions, mcp_servers


class McpServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A server that was added: its name, and its JSON `body`, which names secrets but holds none."""

    name: str
    body: str
    created_at: float


class McpServerStatements:
    """The SQL of `McpServerRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        put = compiler.insert(mcp_servers)
        kept = {"body": put.excluded.body}
        self.put = compiler.compile(put.on_conflict_do_update(index_elements=["name"], set_=kept))
        self.list = compiler.compile(select_fields(McpServerRecord, mcp_servers).order_by(mcp_servers.c.name))
        self.delete = compiler.compile(delete(mcp_servers).where(mcp_servers.c.name == bindparam("of")))


class McpServerRepository:
    """All servers that were added."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> McpServerStatements:
        return self._database.statements(McpServerStatements)

    async def put(self, name: str, body: str) -> None:
        """Keep a server, instead of the one of this name if there is one."""
        params = to_params(McpServerRecord(name=name, body=body, created_at=self._clock()))
        await self._database.write(lambda connection: connection.execute(self._sql.put, params))

    async def list(self) -> Sequence[McpServerRecord]:
        """All of them, by name."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, {}))
        return [to_struct(McpServerRecord, row) for row in rows]

    async def delete(self, name: str) -> bool:
        """False when there was none."""
        return await self._database.write(
            lambda connection: connection.execute(self._sql.delete, {"of": name}) > 0
        )


# ---- Pinned definitions in the store: what each MCP server's tools were when somebody approved of them.


class DefinitionPin(msgspec.Struct, frozen=True, kw_only=True):
    """A definition as it was approved: its JSON `body`, the body's hash, when and by whom."""

    server: str
    name: str
    hash: str
    body: str
    approved_at: float
    approved_by: str | None = None


class DefinitionStatements:
    """The SQL of `DefinitionPinRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        of = definitions.c.server == bindparam("of")
        put = compiler.insert(definitions)
        kept = {name: put.excluded[name] for name in ("hash", "body", "approved_at", "approved_by")}
        self.put = compiler.compile(put.on_conflict_do_update(index_elements=["server", "name"], set_=kept))
        self.list = compiler.compile(
            select_fields(DefinitionPin, definitions).where(of).order_by(definitions.c.name)
        )
        self.delete = compiler.compile(delete(definitions).where(of))


class DefinitionPinRepository:
    """All pinned definitions, by server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> DefinitionStatements:
        return self._database.statements(DefinitionStatements)

    async def list(self, server: str) -> Sequence[DefinitionPin]:
        """The pins of a server, by name."""
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list, {"of": server})
        )
        return [to_struct(DefinitionPin, row) for row in rows]

    async def put(self, pins: Sequence[DefinitionPin]) -> None:
        """Keep these instead of what was pinned under the same names; all or none."""

        def job(connection: DatabaseConnection) -> None:
            connection.execute_many(self._sql.put, [to_params(pin) for pin in pins])

        await self._database.write(job)

    async def delete(self, server: str) -> int:
        """Drop all pins of a server; how many there were."""
        return await self._database.write(
            lambda connection: connection.execute(self._sql.delete, {"of": server})
        )
