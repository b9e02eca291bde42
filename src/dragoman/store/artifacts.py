"""Artifacts in the database: results too large for a model's context, read in ranges of bytes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sqlalchemy import bindparam, func, insert, literal_column, select

from dragoman.errors import NotFound
from dragoman.operations.results.artifact import Artifact, validate_range
from dragoman.store.connection import Compiler, Row, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.tables.core import artifacts

MAX_BYTES = 2**31 - 1  # bytes: no row holds more


class ArtifactStatements:
    """The SQL of `ArtifactRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = artifacts.c.id == bindparam("id"), artifacts.c.owner == bindparam("owner")
        byte_range = func.substr(
            artifacts.c.body, bindparam("offset") + literal_column("1"), bindparam("limit")
        )
        self.insert = compiler.compile(insert(artifacts))
        self.get = compiler.compile(select_fields(Artifact, artifacts).where(*this))
        self.read = compiler.compile(select(byte_range).where(*this))


class ArtifactRepository:
    """The artifacts of all owners. Each owner can read only their own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _sql(self) -> ArtifactStatements:
        return self._database.statements(ArtifactStatements)

    async def save(self, artifact: Artifact, body: bytes) -> None:
        """Insert an artifact. Raises Conflict when its id is taken."""
        params = {**to_params(artifact), "body": body}
        await self._database.write(lambda connection: connection.execute(self._sql.insert, params))

    async def get(self, id: str, *, owner: str) -> Artifact:
        """Return an artifact's metadata. Raises NotFound, also for another owner's artifact."""
        return to_struct(Artifact, await self._fetch_one(self._sql.get, {"id": id, "owner": owner}))

    async def read(self, id: str, *, owner: str, offset: int = 0, limit: int | None = None) -> bytes:
        """Return a range of its bytes; empty past the end. Raises NotFound, BadRequest."""
        validate_range(offset, limit)
        bounded = {
            "offset": min(offset, MAX_BYTES - 1),
            "limit": MAX_BYTES if limit is None else min(limit, MAX_BYTES),
        }
        row = await self._fetch_one(self._sql.read, {"id": id, "owner": owner, **bounded})
        return bytes(row[0] or b"")

    async def _fetch_one(self, sql: str, params: dict[str, Any]) -> Row:
        row = await self._database.read(lambda connection: connection.fetch_one(sql, params))
        if row is None:
            raise NotFound(f"no artifact {params['id']!r}")
        return row
