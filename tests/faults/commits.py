"""A copy of a hub's database after each commit: what a `kill -9` at that moment leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.store.writer import DatabaseWriter
from tests.databases import copy_database, query


class Copies:
    """Copies of the database in `data`, each in a folder of its own; `beside` is copied with it.

    None is made before the statement `once` finds a row.
    """

    def __init__(self, data: Path, folder: Path, *, once: str, beside: Path | None = None) -> None:
        self.taken: list[Path] = []
        self._data = data
        self._folder = folder
        self._once = once
        self._beside = beside
        self._lock = threading.Lock()  # on Postgres two writers commit at the same time

    def take(self) -> None:
        with self._lock:
            self._take()

    def _take(self) -> None:
        data = self._folder / f"copy{len(self.taken)}"
        if not query(self._data, self._once):
            return
        data.mkdir(parents=True, mode=0o700)
        copy_database(self._data, data)
        if self._beside is not None and self._beside.exists():
            (data / self._beside.name).write_bytes(self._beside.read_bytes())
        self.taken.append(data)

    @contextmanager
    def after_each_commit(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Take a copy after each commit, before anybody hears of it. Raises what a copy does, at the end."""
        notify: Callable[[DatabaseWriter, Any], bool] = DatabaseWriter._notify
        problems: list[Exception] = []

        def copying(writer: DatabaseWriter, settled: Any) -> bool:
            try:
                self.take()
            except Exception as error:  # noqa: BLE001 - raised below; here it would end the writer's thread
                problems.append(error)
            return notify(writer, settled)

        with monkeypatch.context() as patched:
            patched.setattr(DatabaseWriter, "_notify", copying)
            yield
        for problem in problems:
            raise problem
