"""Reading connections: shared when the database takes no more, replaced when they are lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from dragoman.errors import StoreError
from dragoman.store.database import ReaderConnections
from dragoman.store.sqlite import SQLiteBackend, SQLiteConnection
from dragoman.store.store import DATABASE_FILE


class Limited(SQLiteBackend):
    """A database that takes a number of connections, and reopens none that it has lost."""

    room = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / DATABASE_FILE)
        self.made: list[Losable] = []
        self.refused = Event()

    def connect(self, *, writing: bool) -> SQLiteConnection:
        assert not writing
        if self.room == 0:
            self.refused.set()
            raise StoreError("sorry, too many clients already")
        self.room -= 1
        connection = Losable(self._open(), self._path, begin="BEGIN")
        self.made.append(connection)
        return connection

    def readers(self) -> ReaderConnections:
        self.prepare()
        return ReaderConnections(lambda: self.connect(writing=False))


class Losable(SQLiteConnection):
    """A connection that is lost when the test says so."""

    is_lost = False
    is_closed = False

    def begin(self, *, is_group: bool = False) -> None:
        if self.is_lost:
            raise StoreError("the connection is lost")
        super().begin(is_group=is_group)

    def close(self) -> None:
        self.is_closed = True
        super().close()


def read(readers: ReaderConnections) -> int:
    with readers.transaction() as connection:
        row = connection.fetch_one("SELECT 7", {})
    assert row is not None
    return int(row[0])


@pytest.fixture
def backend(tmp_path: Path) -> Limited:
    return Limited(tmp_path)


def test_threads_share_the_connections_there_are_when_no_more_are_taken(backend: Limited) -> None:
    readers = backend.readers()
    with ThreadPoolExecutor(4) as threads:
        with readers.transaction():
            results = [threads.submit(read, readers) for _ in range(8)]
            assert backend.refused.wait(60)
            assert not any(result.done() for result in results)
        assert [result.result(60) for result in results] == [7] * 8
    assert len(backend.made) == 1


def test_a_lost_connection_is_closed_and_another_one_used(backend: Limited) -> None:
    backend.room = 2
    readers = backend.readers()
    with readers.transaction(), readers.transaction():
        pass
    backend.made[0].is_lost = True
    assert [read(readers), read(readers)] == [7, 7]
    backend.made[1].is_lost = True
    with pytest.raises(StoreError, match="the connection is lost"):
        read(readers)
    with pytest.raises(StoreError, match="too many clients"):
        read(readers)
    assert [each.is_closed for each in backend.made] == [True, True]
    backend.room = 1
    assert read(readers) == 7


def test_those_that_wait_for_a_connection_hear_why_it_was_lost(backend: Limited) -> None:
    readers = backend.readers()
    with ThreadPoolExecutor(2) as threads:
        with readers.transaction():
            waiting = [threads.submit(read, readers) for _ in range(2)]
            assert backend.refused.wait(60)
            backend.made[0].is_lost = True
        errors = [result.exception(60) for result in waiting]
    assert sorted(str(error) for error in errors) == [
        "sorry, too many clients already",
        "the connection is lost",
    ]


def test_a_reset_replaces_the_connections_also_those_that_are_in_use(backend: Limited) -> None:
    backend.room = 3
    readers = backend.readers()
    with readers.transaction():
        with readers.transaction():
            pass
        readers.reset()
        assert [each.is_closed for each in backend.made] == [False, True]
        assert read(readers) == 7
    assert [each.is_closed for each in backend.made] == [True, True, False]
    assert read(readers) == 7
    assert len(backend.made) == 3
