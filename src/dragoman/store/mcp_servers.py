"""MCP servers added at run time, and the approved definitions of MCP tools and spokes, in the database."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Protocol

import msgspec
from sqlalchemy import bindparam, delete, update

from dragoman.errors import ConfigError, DragomanError, StoreError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.store.connection import Compiler, DatabaseConnection, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.encryption import EncryptedValue, FolderKey, MasterKey
from dragoman.store.tables.core import definitions, mcp_servers

log = logging.getLogger(__name__)
ENCRYPTED_PREFIX = "encrypted:"


class McpServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An added server: its name, and its configuration as JSON, whose headers and variables may be secret."""

    name: str
    body: str
    created_at: float


class McpServerStatements:
    """The SQL of `McpServerRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        put = compiler.insert(mcp_servers)
        updates = {"body": put.excluded.body}
        self.put = compiler.compile(put.on_conflict_do_update(index_elements=["name"], set_=updates))
        self.list = compiler.compile(select_fields(McpServerRecord, mcp_servers).order_by(mcp_servers.c.name))
        this = mcp_servers.c.name == bindparam("of")
        is_plain = mcp_servers.c.body == bindparam("plain")
        self.encrypt = compiler.compile(
            update(mcp_servers).where(this, is_plain).values(body=bindparam("body"))
        )
        self.delete = compiler.compile(delete(mcp_servers).where(this))


class McpServerRepository:
    """All servers added at run time. Their configurations are encrypted.

    The key is that of the data folder; where hosts with folders of their own share a database, it is the
    master key, if there is one.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float],
        folder_key: FolderKey,
        master_key: MasterKey | None = None,
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`master_key` is that of hosts that share the database; `on_changed` tells them of a change."""
        self._database = database
        self._clock = clock
        self._folder_key = folder_key
        self._master_key = master_key
        self._on_changed = on_changed

    @cached_property
    def _sql(self) -> McpServerStatements:
        return self._database.statements(McpServerStatements)

    async def put(self, name: str, body: str) -> None:
        """Insert a server, or replace the one of this name."""
        sealed = await asyncio.to_thread(self._encrypt, name, body)
        params = to_params(McpServerRecord(name=name, body=sealed, created_at=self._clock()))
        await self._database.write(lambda connection: connection.execute(self._sql.put, params))
        self._on_changed()

    async def list(self) -> Sequence[McpServerRecord]:
        """Return all servers, by name. One that cannot be decrypted is logged and left out.

        Those that an earlier version stored in plain text are encrypted now.
        """
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, {}))
        found = []
        for record in (to_struct(McpServerRecord, row) for row in rows):
            if not record.body.startswith(ENCRYPTED_PREFIX):
                await self._encrypt_stored(record)
                found.append(record)
                continue
            try:
                body = await asyncio.to_thread(self._decrypt, record)
            except DragomanError as error:
                log.warning("the MCP server %s is left out: %s", record.name, error.message)
            else:
                found.append(msgspec.structs.replace(record, body=body))
        return found

    async def read_versions(self) -> Mapping[str, str]:
        """Return a hash of each stored configuration by name, which changes whenever it is stored again."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, {}))
        records = (to_struct(McpServerRecord, row) for row in rows)
        return {each.name: hashlib.sha256(each.body.encode()).hexdigest() for each in records}

    async def _encrypt_stored(self, record: McpServerRecord) -> None:
        """Encrypt a configuration, unless it was replaced in the meantime."""
        params = {"of": record.name, "plain": record.body}
        params["body"] = await asyncio.to_thread(self._encrypt, record.name, record.body)
        await self._database.write(lambda connection: connection.execute(self._sql.encrypt, params))

    def _encrypt(self, name: str, body: str) -> str:
        key = self._master_key or self._folder_key.read_or_create()
        return encrypted_body(name, body, key=key)

    def _decrypt(self, record: McpServerRecord) -> str:
        encrypted = parse_encrypted(record.body)
        master = self._master_key
        if master is not None and master.fingerprint == encrypted.key_id:
            return master.decrypt(secret_name(record.name), encrypted)
        key = None
        with suppress(ConfigError):
            key = self._folder_key.read()
        if key is None or key.fingerprint != encrypted.key_id:
            raise StoreError(
                "it was encrypted with the key of another data folder (hub.key), or another master key;"
                " add it again: hosts with folders of their own need the same DRAGOMAN_MASTER_KEY"
            )
        return key.decrypt(secret_name(record.name), encrypted)

    async def delete(self, name: str) -> bool:
        """Delete a server; return False when there is none of this name."""
        is_deleted = await self._database.write(
            lambda connection: connection.execute(self._sql.delete, {"of": name}) > 0
        )
        self._on_changed()
        return is_deleted


def reencrypt_servers(
    connection: DatabaseConnection, sql: McpServerStatements, *, old: MasterKey, new: MasterKey
) -> None:
    """In a job: encrypt with a new master key the configurations that the old one has encrypted."""
    for record in (to_struct(McpServerRecord, row) for row in connection.fetch_all(sql.list, {})):
        if not record.body.startswith(ENCRYPTED_PREFIX):
            continue
        encrypted = parse_encrypted(record.body)
        if encrypted.key_id == old.fingerprint:
            plain = old.decrypt(secret_name(record.name), encrypted)
            body = encrypted_body(record.name, plain, key=new)
            connection.execute(sql.encrypt, {"of": record.name, "plain": record.body, "body": body})


def encrypted_body(name: str, body: str, *, key: MasterKey) -> str:
    encrypted = key.encrypt(secret_name(name), body)
    return ENCRYPTED_PREFIX + msgspec.json.encode(encrypted).decode()


def parse_encrypted(body: str) -> EncryptedValue:
    """Parse a stored configuration. Raises StoreError."""
    try:
        return msgspec.json.decode(body.removeprefix(ENCRYPTED_PREFIX), type=EncryptedValue)
    except DECODE_ERRORS:
        raise StoreError("its stored configuration is damaged") from None


def secret_name(server: str) -> str:
    """Return the name that a configuration's encryption is bound to."""
    return f"mcp server {server}"


# Pinned definitions: the tools of each MCP server, and the operations of each owner's spokes, as they were
# when somebody approved them.


class DefinitionPin(msgspec.Struct, frozen=True, kw_only=True):
    """An approved definition: its JSON, the hash of that, when and by whom it was approved.

    `server` is the name of an MCP server, or `spoke:` and the owner of the spokes that offer the operation.
    """

    server: str
    name: str
    hash: str
    body: str
    approved_at: float
    approved_by: str | None = None


class PinStore(Protocol):
    """Storage of pinned definitions."""

    async def list(self, server: str) -> Sequence[DefinitionPin]: ...

    async def list_prefix(self, prefix: str) -> Sequence[DefinitionPin]: ...

    async def put(self, pins: Sequence[DefinitionPin]) -> None: ...

    async def put_first(self, server: str, pins: Sequence[DefinitionPin]) -> None: ...

    async def delete(self, server: str) -> int: ...

    async def delete_names(self, pins: Sequence[tuple[str, str]]) -> None: ...


class MemoryPinStore:
    """Pins in memory."""

    def __init__(self) -> None:
        self._pins: dict[tuple[str, str], DefinitionPin] = {}

    async def list(self, server: str) -> Sequence[DefinitionPin]:
        return sorted((pin for pin in self._pins.values() if pin.server == server), key=lambda pin: pin.name)

    async def list_prefix(self, prefix: str) -> Sequence[DefinitionPin]:
        return [pin for key, pin in sorted(self._pins.items()) if pin.server.startswith(prefix)]

    async def put(self, pins: Sequence[DefinitionPin]) -> None:
        self._pins.update({(pin.server, pin.name): pin for pin in pins})

    async def put_first(self, server: str, pins: Sequence[DefinitionPin]) -> None:
        if not await self.list(server):
            await self.put(pins)

    async def delete(self, server: str) -> int:
        names = [key for key in self._pins if key[0] == server]
        await self.delete_names(names)
        return len(names)

    async def delete_names(self, pins: Sequence[tuple[str, str]]) -> None:
        for key in pins:
            self._pins.pop(key, None)


class DefinitionStatements:
    """The SQL of `DefinitionPinRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        of = definitions.c.server == bindparam("of")
        put = compiler.insert(definitions)
        updates = {name: put.excluded[name] for name in ("hash", "body", "approved_at", "approved_by")}
        self.put = compiler.compile(
            put.on_conflict_do_update(index_elements=["server", "name"], set_=updates)
        )
        self.list = compiler.compile(
            select_fields(DefinitionPin, definitions).where(of).order_by(definitions.c.name)
        )
        self.list_prefix = compiler.compile(
            select_fields(DefinitionPin, definitions)
            .where(definitions.c.server.startswith(bindparam("prefix"), autoescape=False))
            .order_by(definitions.c.server, definitions.c.name)
        )
        self.delete = compiler.compile(delete(definitions).where(of))
        self.delete_name = compiler.compile(
            delete(definitions).where(of, definitions.c.name == bindparam("named"))
        )


class DefinitionPinRepository:
    """The pinned definitions of all servers and spokes."""

    def __init__(self, database: Database, *, on_changed: Callable[[], None] | None = None) -> None:
        """`on_changed` is called when this process has pinned or deleted some."""
        self._database = database
        self._on_changed = on_changed

    @cached_property
    def _sql(self) -> DefinitionStatements:
        return self._database.statements(DefinitionStatements)

    async def list(self, server: str) -> Sequence[DefinitionPin]:
        """Return a server's pinned definitions, by name."""

        def job(connection: DatabaseConnection) -> Sequence[DefinitionPin]:  # not in the event loop
            rows = connection.fetch_all(self._sql.list, {"of": server})
            return [to_struct(DefinitionPin, row) for row in rows]

        return await self._database.read(job)

    async def list_prefix(self, prefix: str) -> Sequence[DefinitionPin]:
        """Return the pinned definitions of all servers whose names start with a prefix without wildcards."""
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list_prefix, {"prefix": prefix})
        )
        return [to_struct(DefinitionPin, row) for row in rows]

    async def put(self, pins: Sequence[DefinitionPin]) -> None:
        """Pin these definitions, replacing those of the same names, in one transaction."""
        await self._database.write(lambda connection: self._put(connection, pins))
        self._note_change()

    async def put_first(self, server: str, pins: Sequence[DefinitionPin]) -> None:
        """Pin the first definitions of a server. Does nothing when it has pins, such as another host's."""

        def job(connection: DatabaseConnection) -> None:
            connection.lock(f"definitions of {server}")
            if not connection.fetch_all(self._sql.list, {"of": server}):
                self._put(connection, pins)

        await self._database.write(job)
        self._note_change()

    async def delete(self, server: str) -> int:
        """Delete all pinned definitions of a server; return how many there were."""
        count = await self._database.write(
            lambda connection: connection.execute(self._sql.delete, {"of": server})
        )
        self._note_change()
        return count

    async def delete_names(self, pins: Sequence[tuple[str, str]]) -> None:
        """Delete pinned definitions by server and name, in one transaction."""

        def job(connection: DatabaseConnection) -> None:
            connection.execute_many(
                self._sql.delete_name, [{"of": server, "named": name} for server, name in sorted(pins)]
            )

        await self._database.write(job)
        self._note_change()

    def _note_change(self) -> None:
        if self._on_changed is not None:
            self._on_changed()

    def _put(self, connection: DatabaseConnection, pins: Sequence[DefinitionPin]) -> None:
        """Insert or replace pins, in the order in which all hosts lock their rows."""
        ordered = sorted(pins, key=lambda pin: (pin.server, pin.name))
        connection.execute_many(self._sql.put, [to_params(pin) for pin in ordered])
