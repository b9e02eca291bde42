"""Generated files of teams, where several hosts with folders of their own share the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update

from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.database import Database
from dragoman.store.tables.teams import generated_files

REMOVED = ""
"""The hash of a file that was removed."""


class FileVersion(NamedTuple):
    """A file by its path below the folder of teams, and the SHA-256 of its content, or `REMOVED`."""

    path: str
    hash: str


class GeneratedFileStatements:
    """The SQL of `GeneratedFileRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table = generated_files.c
        insert = compiler.insert(generated_files)
        columns = ("content", "hash", "changed_at")
        changes = {name: insert.excluded[name] for name in columns}
        self.put = compiler.compile(insert.on_conflict_do_update(index_elements=["path"], set_=changes))
        self.add = compiler.compile(insert.on_conflict_do_nothing(index_elements=["path"]))
        self.list = compiler.compile(select(table.path, table.hash).order_by(table.changed_at, table.path))
        self.read = compiler.compile(select(table.content).where(table.path == bindparam("of")))
        below = (table.path >= bindparam("first")) & (table.path < bindparam("end"))
        removed: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
        self.remove = compiler.compile(update(generated_files).where(below).values(removed))


class GeneratedFileRepository:
    """The files of `generated/` of all teams. What was removed stays as a row without content."""

    def __init__(
        self, database: Database, *, clock: Callable[[], float], on_changed: Callable[[], None]
    ) -> None:
        """`on_changed` tells the other hosts of a change."""
        self._database = database
        self._clock = clock
        self._on_changed = on_changed

    @cached_property
    def _sql(self) -> GeneratedFileStatements:
        return self._database.statements(GeneratedFileStatements)

    async def put(self, files: Mapping[str, str]) -> None:
        """Insert or replace files, in one transaction."""
        rows = self._rows(files)
        await self._database.write(lambda connection: connection.execute_many(self._sql.put, rows))
        self._on_changed()

    async def add(self, files: Mapping[str, str]) -> bool:
        """Insert files without a row, not even one of a removed file; return whether any was inserted."""
        rows = self._rows(files)

        def job(connection: DatabaseConnection) -> int:
            return sum([connection.execute(self._sql.add, row) for row in rows])

        is_changed = await self._database.write(job) > 0
        if is_changed:
            self._on_changed()
        return is_changed

    async def remove_below(self, folder: str) -> None:
        """Note that all files below a folder are removed."""
        params = {
            "first": f"{folder}/",
            "end": folder + chr(ord("/") + 1),
            "new_content": None,
            "new_hash": REMOVED,
            "new_changed_at": self._clock(),
        }
        await self._database.write(lambda connection: connection.execute(self._sql.remove, params))
        self._on_changed()

    async def list(self) -> Sequence[FileVersion]:
        """Return all files, those that were changed last at the end."""
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, {}))
        return [FileVersion(path, hash) for path, hash in rows]

    async def read(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Return the contents of files; None for one that was removed."""

        def query(connection: DatabaseConnection) -> dict[str, str | None]:
            found = {path: connection.fetch_one(self._sql.read, {"of": path}) for path in paths}
            return {path: row[0] for path, row in found.items() if row is not None}

        return await self._database.read(query)

    def _rows(self, files: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        """Return the rows of files, in the order in which all hosts lock them."""
        now = self._clock()
        return [
            {"path": path, "content": content, "hash": hash_content(content), "changed_at": now}
            for path, content in sorted(files.items())
        ]


def hash_content(content: str) -> str:
    """Return the SHA-256 of a file's content."""
    return sha256(content.encode()).hexdigest()
