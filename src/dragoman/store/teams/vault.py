"""The vaults of teams: secrets, encrypted with the master key, and which operations may receive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import and_, bindparam, delete, func, literal_column, or_, select, update

from dragoman.errors import ConfigError, Conflict, Forbidden, NotFound
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Row,
    decode_json,
    encode_json,
    select_fields,
    to_fields,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.encryption import MASTER_KEY_FILE_VARIABLE, MASTER_KEY_VARIABLE, EncryptedValue, MasterKey
from dragoman.store.tables.teams import vault_entries

OPERATOR = ""
"""The owner of the entries that the operator manages: all owners' runs of the team use them."""
MAX_ENTRIES = 50  # of a team that one caller sees: every result is searched for each


class VaultEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry without its value. `receivers` are patterns of the operations that may receive the value.

    `origins` are those that the value may be sent to where the input of an operation has an address.
    With `plain` the team's model may read the value itself. `key_id` is the fingerprint of the master key.
    """

    team: str
    owner: str
    name: str
    key_id: str = ""
    receivers: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    plain: bool = False
    created_at: float = 0.0
    updated_at: float = 0.0

    @property
    def handle(self) -> str:
        """What stands for the value in inputs."""
        return f"secret:{self.name}"

    @property
    def is_managed(self) -> bool:
        """Whether the operator manages it: then the team can only use it."""
        return self.owner == OPERATOR


class VaultStatements:
    """The SQL of `VaultRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table = vault_entries.c
        sealed = [table[name] for name in EncryptedValue.__struct_fields__]
        found = select_fields(VaultEntry, vault_entries)
        of_team = table.team == bindparam("team")
        this = and_(of_team, table.owner == bindparam("owner"), table.name == bindparam("name"))
        is_managed = table.owner == literal_column("''")
        of_caller = and_(of_team, or_(is_managed, table.owner == bindparam("owner")))
        put = compiler.insert(vault_entries)
        changed = (*EncryptedValue.__struct_fields__, "receivers", "origins", "plain", "updated_at")
        updates = {name: put.excluded[name] for name in changed}
        self.put = compiler.compile(
            put.on_conflict_do_update(index_elements=["team", "owner", "name"], set_=updates)
        )
        self.list = compiler.compile(found.where(of_caller).order_by(table.name, table.owner))
        self.select_values = compiler.compile(found.add_columns(*sealed).where(of_caller))
        self.teams = compiler.compile(select(table.team).distinct())
        counted = select(func.count(literal_column("1"))).select_from(vault_entries).where(of_caller)
        self.count = compiler.compile(counted)
        self.is_managed = compiler.compile(
            select(table.name).where(of_team, is_managed, table.name == bindparam("name"))
        )
        self.bind = compiler.compile(
            update(vault_entries)
            .where(this)
            .values(origins=bindparam("new_origins"), updated_at=bindparam("now"))
        )
        self.delete = compiler.compile(delete(vault_entries).where(this))
        place = (table.team, table.owner, table.name)
        self.select_all = compiler.compile(select(*place, *sealed).order_by(*place))
        changes: dict[str, Any] = {
            name: bindparam(f"new_{name}") for name in EncryptedValue.__struct_fields__
        }
        self.update_encrypted = compiler.compile(update(vault_entries).where(this).values(changes))


class VaultRepository:
    """The entries of all vaults. Listing and deleting need no master key; the rest raises ConfigError."""

    def __init__(
        self, database: Database, *, clock: Callable[[], float], master_key: MasterKey | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self.master_key = master_key

    @cached_property
    def _sql(self) -> VaultStatements:
        return self._database.statements(VaultStatements)

    async def put(self, entry: VaultEntry, value: str) -> VaultEntry:
        """Set an entry, in place of an earlier one, and return it as stored.

        Raises Forbidden for a team's entry where the operator manages one of this name, Conflict when there
        are too many, ConfigError without a master key.
        """
        now = self._clock()
        encrypted = self._require_key().encrypt(sealed_name(entry.team, entry.owner, name=entry.name), value)
        stored = msgspec.structs.replace(entry, key_id=encrypted.key_id, created_at=now, updated_at=now)
        params = {
            **to_params(stored),
            **to_params(encrypted),
            "receivers": encode_json(stored.receivers),
            "origins": encode_json(stored.origins),
        }
        place = {"team": entry.team, "name": entry.name}

        def job(connection: DatabaseConnection) -> None:
            connection.lock(f"vault {entry.team}")
            if not entry.is_managed and connection.fetch_one(self._sql.is_managed, place) is not None:
                raise managed_entry(entry.name)
            connection.execute(self._sql.put, params)
            row = connection.fetch_one(self._sql.count, {"team": entry.team, "owner": entry.owner})
            if row is not None and row[0] > MAX_ENTRIES:
                raise Conflict(
                    f"the vault of {entry.team!r} has {MAX_ENTRIES} entries, the maximum",
                    hint="delete some",
                )

        await self._database.write(job)
        return stored

    async def list(self, team: str, owner: str) -> Sequence[VaultEntry]:
        """Return the entries that a call of this team and owner may use, by name."""
        params = {"team": team, "owner": owner}
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, params))
        return [to_entry(row) for row in rows]

    async def teams(self) -> frozenset[str]:
        """Return the names of the teams whose vaults have entries."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.teams, {}))
        return frozenset(str(team) for (team,) in rows)

    async def read(self, team: str, owner: str) -> Sequence[tuple[VaultEntry, str]]:
        """Return the entries that a call may use with their values. Raises ConfigError, StoreError."""
        params = {"team": team, "owner": owner}
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.select_values, params)
        )
        size = len(EncryptedValue.__struct_fields__)
        entries = [(to_entry(row[:-size]), EncryptedValue(*row[-size:])) for row in rows]
        if not entries:
            return []
        key = self._require_key()
        return [
            (entry, key.decrypt(sealed_name(entry.team, entry.owner, name=entry.name), encrypted))
            for entry, encrypted in entries
        ]

    async def bind(self, team: str, owner: str, *, name: str, origins: Sequence[str]) -> None:
        """Replace the origins that an entry may be sent to; its value stays. Raises NotFound."""
        params = {
            "team": team,
            "owner": owner,
            "name": name,
            "new_origins": encode_json(origins),
            "now": self._clock(),
        }
        if not await self._database.write(lambda connection: connection.execute(self._sql.bind, params)):
            raise NotFound(f"the vault of {team!r} has no entry {name!r}", hint="list its entries")

    async def delete(self, team: str, owner: str, *, name: str) -> None:
        """Delete an entry. Raises NotFound; Forbidden when only the operator has one of this name."""
        place = {"team": team, "name": name}

        def job(connection: DatabaseConnection) -> None:
            if connection.execute(self._sql.delete, {**place, "owner": owner}):
                return
            if connection.fetch_one(self._sql.is_managed, place) is not None:
                raise managed_entry(name)
            raise NotFound(f"the vault of {team!r} has no entry {name!r}", hint="list its entries")

        await self._database.write(job)

    def _require_key(self) -> MasterKey:
        if self.master_key is None:
            raise ConfigError(
                "a vault needs a master key, and none is set",
                hint=f"the operator sets {MASTER_KEY_VARIABLE} or {MASTER_KEY_FILE_VARIABLE}",
            )
        return self.master_key


def reencrypt_vaults(
    connection: DatabaseConnection, sql: VaultStatements, *, old: MasterKey, new: MasterKey
) -> int:
    """In a job: encrypt all vaults with a new master key; return how many entries they have."""
    rows = connection.fetch_all(sql.select_all, {})
    for team, owner, name, *sealed in rows:
        place = sealed_name(team, owner, name=name)
        encrypted = new.encrypt(place, old.decrypt(place, EncryptedValue(*sealed)))
        values = {f"new_{field}": value for field, value in to_params(encrypted).items()}
        connection.execute(sql.update_encrypted, {"team": team, "owner": owner, "name": name, **values})
    return len(rows)


def managed_entry(name: str) -> Forbidden:
    return Forbidden(
        f"the entry {name!r} is managed by the operator", hint="a team can use it, and cannot change it"
    )


def sealed_name(team: str, owner: str, *, name: str) -> str:
    """Return the name that the encryption of an entry is bound to."""
    return f"vault {team} {name} {owner}"


def to_entry(row: Row) -> VaultEntry:
    fields = to_fields(VaultEntry, row)
    fields["plain"] = bool(fields["plain"])
    fields["receivers"] = decode_json(fields["receivers"], tuple[str, ...])
    origins = fields["origins"]  # NULL for an entry of an earlier version
    fields["origins"] = () if origins is None else decode_json(origins, tuple[str, ...])
    return VaultEntry(**fields)
