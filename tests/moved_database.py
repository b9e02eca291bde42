"""The file of a database is moved away under a hub, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.store.store import DATABASE_FILE

DIARY = "Dear diary, " * 1_000


@contextmanager
def gone(folder: Path) -> Iterator[None]:
    """There is no file. The journal is moved before the database comes back, and after it has gone.

    A hub that retries at that moment would take a database without its journal.
    """
    away = folder.with_name(f"{folder.name} away")
    away.mkdir()
    database = folder / DATABASE_FILE
    database.rename(away / database.name)
    journals = sorted(folder.glob(DATABASE_FILE + "-*"))
    for file in journals:
        file.rename(away / file.name)
    yield
    for file in journals:
        (away / file.name).rename(file)
    (away / database.name).rename(database)
    away.rmdir()


@contextmanager
def garbage(folder: Path) -> Iterator[None]:
    """The file is something else."""
    folder.mkdir(exist_ok=True)
    (folder / DATABASE_FILE).write_text(DIARY)
    yield
    assert (folder / DATABASE_FILE).read_text() == DIARY
    (folder / DATABASE_FILE).unlink()


@contextmanager
def replaced(folder: Path) -> Iterator[None]:
    """There is another file."""
    with gone(folder), garbage(folder):
        yield


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """Nobody may open the file: it is a folder."""
    with gone(folder):
        (folder / DATABASE_FILE).mkdir()
        yield
        (folder / DATABASE_FILE).rmdir()
