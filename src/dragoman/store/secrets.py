"""Secrets such as providers' keys, encrypted in the database. Only names and dates can be listed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select, update

from dragoman.errors import BadRequest, ConfigError, NotFound
from dragoman.store.connection import Compiler, DatabaseConnection, Row, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.encryption import MASTER_KEY_FILE_VARIABLE, MASTER_KEY_VARIABLE, EncryptedValue, MasterKey
from dragoman.store.mcp_servers import McpServerStatements, reencrypt_servers
from dragoman.store.push_configs import PushConfigStatements, reencrypt_push_configs
from dragoman.store.tables.credentials import secrets
from dragoman.store.teams.trigger_secrets import reencrypt_triggers
from dragoman.store.teams.trigger_statements import TriggerStatements
from dragoman.store.teams.vault import VaultStatements, reencrypt_vaults

SECRETS_LOCK = "secrets"
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value; `key_id` is the fingerprint of the master key that encrypted it."""

    name: str
    key_id: str
    created_at: float
    updated_at: float


class SecretStatements:
    """The SQL of `SecretRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = secrets.c.name == bindparam("name")
        sealed = [secrets.c[name] for name in EncryptedValue.__struct_fields__]
        put = compiler.insert(secrets)
        updates = {name: put.excluded[name] for name in (*EncryptedValue.__struct_fields__, "updated_at")}
        changes: dict[str, Any] = {name: bindparam(name) for name in EncryptedValue.__struct_fields__}
        self.put = compiler.compile(put.on_conflict_do_update(index_elements=["name"], set_=updates))
        self.get = compiler.compile(select(*sealed).where(this))
        self.select_all = compiler.compile(select(secrets.c.name, *sealed).order_by(secrets.c.name))
        self.list = compiler.compile(select_fields(Secret, secrets).order_by(secrets.c.name))
        self.delete = compiler.compile(delete(secrets).where(this))
        self.update_encrypted = compiler.compile(update(secrets).where(this).values(changes))


class SecretRepository:
    """All secrets. Listing and deleting need no master key; other methods raise ConfigError without one."""

    def __init__(
        self, database: Database, *, clock: Callable[[], float], master_key: MasterKey | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self.master_key = master_key

    @cached_property
    def _sql(self) -> SecretStatements:
        return self._database.statements(SecretStatements)

    async def put(self, name: str, value: str) -> None:
        """Set a secret. Raises BadRequest for an invalid name."""
        if not NAME_PATTERN.fullmatch(name):
            raise BadRequest(
                f"{name!r} is not a valid name for a secret",
                hint="use letters and digits and, after the first character, . _ -",
            )
        now = self._clock()
        params = {"name": name, "created_at": now, "updated_at": now}
        params |= to_params(self._require_key().encrypt(name, value))

        def job(connection: DatabaseConnection) -> None:
            connection.lock(SECRETS_LOCK)
            connection.execute(self._sql.put, params)

        await self._database.write(job)

    async def get(self, name: str) -> str:
        """Return the value. Raises NotFound, ConfigError (another master key), StoreError (damaged data)."""
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.get, {"name": name})
        )
        if row is None:
            raise NotFound(f"there is no secret {name!r}", hint=f"set it with `dragoman secrets set {name}`")
        return self._require_key().decrypt(name, EncryptedValue(*row))

    async def list(self) -> Sequence[Secret]:
        """Return all secrets by name, without values."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, {}))
        return [to_struct(Secret, row) for row in rows]

    async def delete(self, name: str) -> bool:
        """Delete a secret; return False when it does not exist."""
        params = {"name": name}
        return await self._database.write(lambda connection: connection.execute(self._sql.delete, params) > 0)

    async def rotate(self, new_key: MasterKey) -> int:
        """Encrypt all secrets with a new master key; return how many. All or none change.

        The vaults of teams are encrypted again too and, if the old key was used for them, the configurations
        of MCP servers and push notifications, and the secrets of triggers.
        """
        old = self._require_key()

        def resealed(row: Row) -> dict[str, object]:
            name, *sealed = row
            return {
                "name": name,
                **to_params(new_key.encrypt(name, old.decrypt(name, EncryptedValue(*sealed)))),
            }

        servers = self._database.statements(McpServerStatements)
        vaults = self._database.statements(VaultStatements)
        pushes = self._database.statements(PushConfigStatements)
        hooks = self._database.statements(TriggerStatements)

        def job(connection: DatabaseConnection) -> int:
            # Without the lock, a secret that is set meanwhile could be overwritten by its old value.
            connection.lock(SECRETS_LOCK)
            rows = [resealed(row) for row in connection.fetch_all(self._sql.select_all, {})]
            connection.execute_many(self._sql.update_encrypted, rows)
            reencrypt_servers(connection, servers, old=old, new=new_key)
            reencrypt_push_configs(connection, pushes, old=old, new=new_key)
            reencrypt_triggers(connection, hooks, old=old, new=new_key)
            return len(rows) + reencrypt_vaults(connection, vaults, old=old, new=new_key)

        count = await self._database.write(job)
        self.master_key = new_key
        return count

    def _require_key(self) -> MasterKey:
        if self.master_key is None:
            raise ConfigError(
                "secrets need a master key, and none is set",
                hint=(
                    f"set {MASTER_KEY_VARIABLE} or {MASTER_KEY_FILE_VARIABLE}; "
                    "`dragoman secrets generate-key` makes one"
                ),
            )
        return self.master_key
