"""Where the store of a test is: a data folder, with SQLite in it or a schema of Postgres beside it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dragoman.store.sessions.postgres_words import split_words
from dragoman.store.store import DATABASE_FILE, DatabaseSettings, Store
from tests.databases import BackendName


class Place:
    """A data folder, and the URL of its database if that is Postgres. Nothing is there yet."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url

    @property
    def backend(self) -> BackendName:
        """Which database it is."""
        return "sqlite" if self.url is None else "postgres"

    async def open(self, **options: Any) -> Store:
        """Open the store."""
        return await Store.open(self.folder, database=DatabaseSettings(self.url), **options)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL beside the store, without parameters; return its rows."""
        if self.url is None:
            with closing(sqlite3.connect(self.folder / DATABASE_FILE, isolation_level=None)) as raw:
                return raw.execute(sql).fetchall()
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as raw:
            cursor = raw.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def check_index(self) -> None:
        """Check that the search index holds the words of the passages, no more and no less."""
        if self.url is None:
            self.query("INSERT INTO passage_index (passage_index, rank) VALUES ('integrity-check', 1)")
            return
        entries = "SELECT scope, text, words::text FROM passages FULL JOIN passage_index USING (id)"
        for scope, text, vector in self.query(entries):
            expected = {*(f"#{name}" for name in scope.split()), *(span.word for span in split_words(text))}
            assert set(re.findall("'([^']+)'", vector)) == expected


@contextmanager
def empty_place(backend: BackendName, folder: Path, *, new: bool = False) -> Iterator[Place]:
    """A place without data on a backend; `new`: without tables, and it may be changed at will."""
    if backend == "sqlite":
        yield Place(folder)
        return
    from tests.postgres_server import shared_server

    with shared_server().schema(new=new) as schema:
        yield Place(folder, shared_server().url(schema))
