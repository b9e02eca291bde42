"""Where the states of A2A tasks are posted to, in the database.

The headers of a receiver may be secret, so the whole configuration is encrypted, with the key of the data
folder or, where hosts share a database, with the master key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, func, literal_column, select, update

from dragoman.errors import A2aError, StoreError
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Row,
    is_due,
    select_fields,
    to_params,
    to_struct,
)
from dragoman.store.database import Database
from dragoman.store.encryption import EncryptedValue, FolderKey, MasterKey
from dragoman.store.tables.core import push_configs, runs

log = logging.getLogger(__name__)
MAX_PLANNED = 3_600.0  # seconds until the next attempt: none is planned later
LEASE = 60.0  # seconds for which one host has a delivery


class PushConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One receiver of a task's states. `body` is its address and headers as JSON, encrypted in the database.

    The end of each run of the task is posted; `delivered` is when the last run began whose end was posted or
    given up. `error` is the last failure, `attempts` counts failures in a row, `next_at` is the next attempt.
    """

    task_id: str
    id: str
    session_id: str
    message_id: str
    owner: str
    agent: str
    body: str
    created_at: float
    delivered: float = 0.0
    attempts: int = 0
    next_at: float = 0.0
    error: str | None = None

    def __repr__(self) -> str:
        return f"PushConfig({self.task_id!r}, {self.id!r})"


class DueDelivery(msgspec.Struct, frozen=True):
    """A state to post: its receiver, and the run that has ended with the time when it began."""

    config: PushConfig
    run_id: str
    started_at: float


class PushConfigStatements:
    """The SQL of `PushConfigRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        columns = push_configs.c
        this = columns.task_id == bindparam("of"), columns.id == bindparam("config_id")
        put = compiler.insert(push_configs)
        replaced = {
            name: put.excluded[name] for name in ("body", "created_at", "attempts", "next_at", "error")
        }
        self.put = compiler.compile(
            put.on_conflict_do_update(index_elements=["task_id", "id"], set_=replaced)
        )
        found = select_fields(PushConfig, push_configs)
        by_id = found.where(columns.task_id == bindparam("of")).order_by(columns.created_at, columns.id)
        self.list = compiler.compile(by_id)
        self.delete = compiler.compile(delete(push_configs).where(*this))
        counted = select(func.count()).select_from(push_configs)
        self.count = compiler.compile(counted.where(columns.owner == bindparam("owner")))
        of_task = runs.c.session_id == columns.session_id, runs.c.message_id == columns.message_id
        due = found.add_columns(runs.c.id.label("run_id"), runs.c.started_at).join_from(
            push_configs, runs, of_task[0] & of_task[1]
        )
        due = due.where(
            runs.c.status != literal_column("'running'"),
            runs.c.started_at > columns.delivered,
            is_due(columns.next_at, limit=MAX_PLANNED),
        )
        order = runs.c.started_at.desc(), columns.id
        of_owner = func.row_number().over(partition_by=columns.owner, order_by=order)
        ranked = due.add_columns(of_owner.label("of_owner")).subquery()
        shown = [ranked.c[name] for name in (*PushConfig.__struct_fields__, "run_id", "started_at")]
        fair = select(*shown).where(ranked.c.of_owner <= bindparam("per_owner"))
        newest = fair.order_by(ranked.c.of_owner, ranked.c.started_at.desc())
        self.due = compiler.compile(newest.limit(bindparam("limit")).offset(literal_column("0")))
        taken: dict[str, Any] = {"next_at": bindparam("until")}
        self.take = compiler.compile(
            update(push_configs).where(*this, columns.next_at == bindparam("seen")).values(taken)
        )
        self.list_all = compiler.compile(found)
        self.encrypt = compiler.compile(
            update(push_configs)
            .where(*this, columns.body == bindparam("sealed"))
            .values({"body": bindparam("resealed")})
        )
        names = ("delivered", "attempts", "next_at", "error")
        self.settle = compiler.compile(
            update(push_configs).where(*this).values({name: bindparam(f"new_{name}") for name in names})
        )


class PushConfigRepository:
    """The receivers of the states of all tasks."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float],
        folder_key: FolderKey,
        master_key: MasterKey | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._folder_key = folder_key
        self._master_key = master_key

    @cached_property
    def _sql(self) -> PushConfigStatements:
        return self._database.statements(PushConfigStatements)

    async def put(self, config: PushConfig, *, per_task: int, per_owner: int) -> None:
        """Insert a configuration, or replace the one of its id. Raises A2aError above the limits."""
        sealed = await asyncio.to_thread(self._encrypt, config)
        params = to_params(msgspec.structs.replace(config, body=sealed))

        def job(connection: DatabaseConnection) -> None:
            connection.execute(self._sql.put, params)
            of_task = len(connection.fetch_all(self._sql.list, {"of": config.task_id}))
            row = connection.fetch_one(self._sql.count, {"owner": config.owner})
            if of_task > per_task or int(row[0] if row else 0) > per_owner:
                text = f"a task has at most {per_task} push configurations, and an owner {per_owner}"
                raise A2aError(text, "UNSUPPORTED_OPERATION", hint="delete some")

        await self._database.write(job)

    async def list(self, task_id: str) -> Sequence[PushConfig]:
        """Return the configurations of a task, the oldest first. StoreError when one cannot be decrypted."""
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list, {"of": task_id})
        )
        return [await self._open(to_struct(PushConfig, row)) for row in rows]

    async def delete(self, task_id: str, id: str) -> bool:
        """Delete a configuration; False when there is none."""
        params = {"of": task_id, "config_id": id}
        return await self._database.write(lambda connection: connection.execute(self._sql.delete, params) > 0)

    async def take_due(
        self, *, limit: int = 50, per_owner: int = 50, admits: Callable[[str], bool] = lambda _: True
    ) -> Sequence[DueDelivery]:
        """Return what is to be posted now, of all owners in turn for whom `admits` returns True.

        Each delivery is leased to one host for `LEASE` seconds. What a host cannot decrypt is left to others.
        """
        now = self._clock()
        params = {"now": now, "limit": limit, "per_owner": per_owner}
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.due, params))
        newest: dict[tuple[str, str], DueDelivery] = {}
        for row in rows:
            due = to_delivery(row)
            newest.setdefault((due.config.task_id, due.config.id), due)
        taken = []
        for due in newest.values():
            if not admits(due.config.owner):
                continue
            try:
                config = await self._open(due.config)
            except StoreError as error:
                log.debug("what is to be posted of task %s is left: %s", due.config.task_id, error.message)
                continue
            if await self._take(config, until=now + LEASE):
                taken.append(msgspec.structs.replace(due, config=config))
        return taken

    async def _take(self, config: PushConfig, *, until: float) -> bool:
        params = {"of": config.task_id, "config_id": config.id, "seen": config.next_at, "until": until}
        return await self._database.write(lambda connection: connection.execute(self._sql.take, params) > 0)

    async def settle(self, config: PushConfig) -> None:
        """Write the outcome of a delivery: `delivered`, `attempts`, `next_at` and `error`."""
        params = {
            "of": config.task_id,
            "config_id": config.id,
            "new_delivered": config.delivered,
            "new_attempts": config.attempts,
            "new_next_at": config.next_at,
            "new_error": config.error,
        }
        await self._database.write(lambda connection: connection.execute(self._sql.settle, params))

    def _encrypt(self, config: PushConfig) -> str:
        key = self._master_key or self._folder_key.read_or_create()
        return msgspec.json.encode(key.encrypt(secret_name(config), config.body)).decode()

    async def _open(self, config: PushConfig) -> PushConfig:
        body = await asyncio.to_thread(self._decrypt, config)
        return msgspec.structs.replace(config, body=body)

    def _decrypt(self, config: PushConfig) -> str:
        encrypted = msgspec.json.decode(config.body, type=EncryptedValue)
        for key in (self._master_key, self._folder_key.read_or_create()):
            if key is not None and key.fingerprint == encrypted.key_id:
                return key.decrypt(secret_name(config), encrypted)
        raise StoreError("a push configuration was encrypted with another key; create it again")


def reencrypt_push_configs(
    connection: DatabaseConnection, sql: PushConfigStatements, *, old: MasterKey, new: MasterKey
) -> None:
    """In a job: encrypt with a new master key the configurations that the old one has encrypted."""
    for config in (to_struct(PushConfig, row) for row in connection.fetch_all(sql.list_all, {})):
        encrypted = msgspec.json.decode(config.body, type=EncryptedValue)
        if encrypted.key_id != old.fingerprint:
            continue
        place = secret_name(config)
        body = msgspec.json.encode(new.encrypt(place, old.decrypt(place, encrypted))).decode()
        of = {"of": config.task_id, "config_id": config.id}
        connection.execute(sql.encrypt, {**of, "sealed": config.body, "resealed": body})


def secret_name(config: PushConfig) -> str:
    """Return the name that a configuration's encryption is bound to."""
    return f"push {config.task_id} {config.id}"


def to_delivery(row: Row) -> DueDelivery:
    *fields, run_id, started_at = row
    return DueDelivery(to_struct(PushConfig, tuple(fields)), str(run_id), float(started_at))
