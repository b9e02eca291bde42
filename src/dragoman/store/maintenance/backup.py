"""Backups: an SQLite file with all rows, and the files of the data folder that the rows need.

A backup of SQLite copies pages, one of Postgres copies rows. Either result is a database that a hub could
use, and that `copy` takes as a source.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.errors import BadRequest, Conflict, NotFound, StoreError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.store.connection import Backend
from dragoman.store.maintenance.copy import DatabaseCopy
from dragoman.store.maintenance.drafts import draft_folder, publish_new, sync_folder, unwritable
from dragoman.store.maintenance.folder_files import FileDrafts, ReplacedFiles, check_names, read_files
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress
from dragoman.store.private_files import FILE_MODE, make_database_folder, make_private_folder
from dragoman.store.schema import COPYING, HEAD, UnfinishedCopy, current_revision, upgrade_schema
from dragoman.store.sqlite import DIALECT, SQLiteBackend, error_kind, lock_folder
from dragoman.store.store import DATABASE_FILE, FOLDER_KEY_FILE

PAGES = 2_000  # pages of one step
MANIFEST = "backup.json"
CREATE_FILES = "CREATE TABLE backup_files (name TEXT PRIMARY KEY, body BLOB NOT NULL)"
CREATE_PROGRESS = "CREATE TABLE copy_progress (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
GET_SOURCE = "SELECT value FROM copy_progress WHERE name = 'source'"
OWN_TABLES = ("backup_files", "copy_progress", "alembic_version")


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds. `rows` has the count of each table, `master_keys` fingerprints (`MasterKey`)."""

    created_at: float
    revision: str
    rows: dict[str, int]
    files: list[str]
    master_keys: list[str]

    @property
    def has_key(self) -> bool:
        """Whether the backup has the key of the data folder."""
        return FOLDER_KEY_FILE in self.files


def back_up(
    location: DatabaseLocation, file: Path, *, progress: Progress, with_key: bool = True
) -> BackupManifest:
    """Write a backup to a new file. Raises Conflict when it exists, NotFound, StoreError.

    A hub may keep writing. Files of the database's data folder are read before the database: what moves
    from a spool into the database in between is in both, and is stored once when it is replayed.
    """
    location.require()
    with draft_folder(file) as draft:
        if file.exists():
            raise Conflict(f"{str(file)!r} exists", hint="name a new file; a backup replaces none")
        bodies = read_files(location.folder, with_key=with_key)
        if location.path is not None:
            with raising_sqlite_errors(location.path):
                rows = copy_pages(location.path, draft / DATABASE_FILE, progress=progress)
        else:
            rows = copy_rows(location, draft / DATABASE_FILE, progress=progress)
        with raising_sqlite_errors(draft), closing(open_file(draft / DATABASE_FILE)) as raw:
            manifest = write_manifest(raw, bodies, rows=rows)
        publish_new(draft / DATABASE_FILE, file)
    return manifest


def copy_pages(source: Path, target: Path, *, progress: Progress) -> Mapping[str, int]:
    """Copy a database of SQLite in one snapshot, page by page; return its rows, counted on both sides."""
    target.touch(mode=FILE_MODE)
    with closing(open_file(source)) as raw, closing(open_file(target)) as copy:
        raw.execute("PRAGMA query_only = ON")
        raw.execute("BEGIN")
        revision = current_revision(raw)  # begins the snapshot, and refuses another program's tables
        if revision is not None and revision.startswith(COPYING):
            raise UnfinishedCopy(str(source), revision)
        (pages,) = raw.execute("PRAGMA page_count").fetchone()
        progress.start("copying", pages)
        with naming_full_disk(target):
            raw.backup(copy, pages=PAGES, progress=lambda *_: progress.advance(PAGES))
            copy.execute("PRAGMA journal_mode = DELETE")
        progress.start("checking", 0)
        compare_counts(count_tables(raw), count_tables(copy))
        check_pages(copy)
        return count_tables(raw)


def copy_rows(location: DatabaseLocation, target: Path, *, progress: Progress) -> Mapping[str, int]:
    """Copy the rows of any database into a new file of SQLite; return how many each table has."""
    backend = SQLiteBackend(target, synchronous="full", exclusive=False)  # the draft is locked
    try:
        report = DatabaseCopy(
            location.backend(exclusive=False), backend, source_name=location.identity, progress=progress
        ).run()
    finally:
        backend.release()
    with closing(open_file(target)) as raw:
        raw.execute("DROP TABLE copy_progress")
        raw.execute("PRAGMA journal_mode = DELETE")
    return report.rows


class RestoreReport(NamedTuple):
    """What was restored: the manifest, and where the files are that the data folder had before."""

    manifest: BackupManifest
    replaced: ReplacedFiles


def restore(
    file: Path, location: DatabaseLocation, *, progress: Progress, replace: bool = False
) -> RestoreReport:
    """Restore a backup into a database that is empty, or that it may `replace`, and into its data folder.

    Raises BadRequest without a data folder, Conflict, NotFound; StoreError when a hub uses the database, or
    when the file is damaged. A crash leaves either the former database with its files, or one that hubs
    refuse until the same restore is run again.
    """
    if not file.is_file():
        raise NotFound(f"there is no file {str(file)!r}")
    if (folder := location.folder) is None:
        raise BadRequest("a restored database needs a data folder", hint="name it with --data")
    source = f"backup:{file.name}"
    with using_folder(location), draft_folder(folder / "restore") as draft:
        if location.path is not None and not replace:
            require_empty(location.path, source=source)
        manifest, bodies = stage(file, database := draft / DATABASE_FILE, progress=progress)
        files = FileDrafts(folder, bodies, place=draft / "files")
        if location.path is not None:
            mark_unfinished(database, source)
            replace_file(database, location.path)
            files.publish()
            mark_finished(location.path)
        else:
            copy = partial(DatabaseCopy, source_name=source, progress=progress, replace=replace)
            restore_rows(copy, location, draft=database, before_done=files.publish)
        return RestoreReport(manifest, files.replaced)


@contextmanager
def using_folder(location: DatabaseLocation) -> Iterator[None]:
    """Create the data folder of a database, and lock that of SQLite: the backend of Postgres locks by itself.

    Raises StoreError when a hub uses it, or when it cannot be written.
    """
    folder = location.folder or Path()
    with ExitStack() as stack:
        try:
            if location.path is None:
                make_private_folder(folder)
            else:
                make_database_folder(location.path)
                stack.enter_context(lock_folder(folder))
        except OSError as error:
            raise unwritable(folder, error) from None
        yield


def stage(file: Path, draft: Path, *, progress: Progress) -> tuple[BackupManifest, Mapping[str, bytes]]:
    """Copy a backup to a draft of this program's revision; return its manifest and its files."""
    with raising_sqlite_errors(file):
        rows = copy_pages(file, draft, progress=progress)
        with closing(open_file(draft)) as raw:
            bodies = dict(read_bodies(raw))
            manifest = read_manifest(raw, bodies.pop(MANIFEST, None), rows=rows)
            check_names(bodies)
            compare_counts(manifest.rows, {name: rows.get(name, 0) for name in manifest.rows})
            for table in ("backup_files", "copy_progress"):
                raw.execute(f"DROP TABLE IF EXISTS {table}")
            upgrade_schema(raw, DIALECT)
    return manifest, bodies


def restore_rows(
    copy: Callable[[Backend, Backend], DatabaseCopy],
    location: DatabaseLocation,
    *,
    draft: Path,
    before_done: Callable[[], object],
) -> None:
    """Copy the rows of a draft into a database of another kind."""
    target = location.backend(exclusive=True)
    try:
        copy(SQLiteBackend(draft, exclusive=False), target).run(before_done=before_done)
    finally:
        target.release()


def mark_unfinished(path: Path, source: str) -> None:
    """Make hubs refuse a database until `mark_finished`, as the files that belong to it are not there yet."""
    with raising_sqlite_errors(path), closing(open_file(path)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute(CREATE_PROGRESS)
        raw.execute("INSERT INTO copy_progress VALUES ('source', ?)", (source,))
        raw.execute("UPDATE alembic_version SET version_num = ?", (f"{COPYING}{HEAD}",))
        raw.execute("COMMIT")


def mark_finished(path: Path) -> None:
    """Let hubs use a restored database."""
    with raising_sqlite_errors(path), closing(open_file(path)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("DROP TABLE copy_progress")
        raw.execute("UPDATE alembic_version SET version_num = ?", (HEAD,))
        raw.execute("COMMIT")


def require_empty(path: Path, *, source: str) -> None:
    """Raise Conflict when the database holds rows, or cannot be read. An empty file holds none.

    What an interrupted restore of the same backup has left counts as empty.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        with closing(open_file(path)) as raw:
            rows = 0 if is_unfinished(raw, source) else sum(count_tables(raw).values())
    except sqlite3.Error as error:
        raise Conflict(
            f"{str(path)!r} cannot be read ({error})", hint="move it away, or add --replace"
        ) from error
    if rows:
        raise Conflict(
            f"{str(path)!r} holds {rows} rows",
            hint="name another folder with --data, or add --replace to delete what this one holds",
        )


def is_unfinished(raw: sqlite3.Connection, source: str) -> bool:
    """Return whether the database is what an interrupted restore of this source has left."""
    if not raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'copy_progress'").fetchone():
        return False
    is_copying = str(current_revision(raw)).startswith(COPYING)
    return is_copying and raw.execute(GET_SOURCE).fetchone() == (source,)


def replace_file(draft: Path, path: Path) -> None:
    """Put a database in the place of another, whose journals must not be applied to it.

    A crash leaves either the former one or the new one, whole. Raises Conflict when another process reads
    the former one: what is in its journal cannot be moved into it then.
    """
    if path.exists():
        empty_journal(path)
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    draft.chmod(FILE_MODE)
    draft.replace(path)
    sync_folder(path.parent)


def empty_journal(path: Path) -> None:
    """Move what is in the journals of a database into it; nothing for a damaged one. Raises Conflict."""
    try:
        with closing(open_file(path)) as raw:
            raw.execute("SELECT 1 FROM sqlite_master").fetchone()
            (is_busy, *_) = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        is_busy = error_kind(error) == "SQLITE_BUSY"
    if is_busy:
        raise Conflict(f"another process reads {str(path)!r}", hint="wait until it has ended")


def write_manifest(
    raw: sqlite3.Connection, bodies: Mapping[str, bytes], *, rows: Mapping[str, int]
) -> BackupManifest:
    """Write the files and the manifest into a backup; return the manifest."""
    manifest = BackupManifest(
        created_at=time.time(),
        revision=str(current_revision(raw)),
        rows=dict(rows),
        files=list(bodies),
        master_keys=list_master_keys(raw),
    )
    raw.execute("BEGIN")
    raw.execute("DROP TABLE IF EXISTS backup_files")  # of a hub whose database is a backup that was put there
    raw.execute(CREATE_FILES)
    stored = {**bodies, MANIFEST: msgspec.json.encode(manifest)}
    raw.executemany("INSERT INTO backup_files VALUES (?, ?)", stored.items())
    raw.execute("COMMIT")
    return manifest


def read_manifest(raw: sqlite3.Connection, body: bytes | None, *, rows: Mapping[str, int]) -> BackupManifest:
    """Return a backup's manifest; for a database without one, a manifest of what can be read. StoreError."""
    if body is not None:
        try:
            return msgspec.json.decode(body, type=BackupManifest)
        except DECODE_ERRORS as error:
            raise StoreError(f"the manifest of the backup is damaged: {error}") from None
    return BackupManifest(
        created_at=0.0,
        revision=str(current_revision(raw)),
        rows=dict(rows),
        files=[],
        master_keys=list_master_keys(raw),
    )


def read_bodies(raw: sqlite3.Connection) -> Sequence[tuple[str, bytes]]:
    """Return the files in a backup; none of a database that is not one. StoreError for values of others."""
    if not raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'backup_files'").fetchone():
        return []
    rows = raw.execute("SELECT name, body FROM backup_files").fetchall()
    for name, body in rows:
        if not isinstance(name, str) or not isinstance(body, bytes):
            raise StoreError(f"the file {name!r} in the backup is damaged")
    return rows


def list_master_keys(raw: sqlite3.Connection) -> list[str]:
    """Return the fingerprints of the master keys with which the stored secrets are encrypted."""
    found: set[str] = set()
    for table in ("secrets", "vault_entries"):
        if raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            found.update(key for (key,) in raw.execute(f"SELECT DISTINCT key_id FROM {table}"))  # noqa: S608
    return sorted(found)


# Files of SQLite.


def open_file(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def count_tables(raw: sqlite3.Connection) -> Mapping[str, int]:
    """Return the number of rows of each table of a hub, whatever its revision."""
    names = [
        name
        for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        if not name.startswith(("passage_index", "sqlite_")) and name not in OWN_TABLES
    ]
    counts: dict[str, int] = {}
    for name in names:
        quoted = name.replace('"', '""')
        (counts[name],) = raw.execute(f'SELECT count(*) FROM "{quoted}"').fetchone()  # noqa: S608 - quoted
    return counts


def compare_counts(wanted: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Raise StoreError when a table has another number of rows in a copy."""
    for name, count in wanted.items():
        if found.get(name) != count:
            raise StoreError(f"the copy of {name!r} has {found.get(name)} rows instead of {count}")


def check_pages(raw: sqlite3.Connection) -> None:
    """Raise StoreError for a damaged file."""
    (found,) = raw.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreError(
            f"the database is damaged: {found}", hint="`sqlite3 FILE .recover` may save what is left of it"
        )


@contextmanager
def raising_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the system as StoreError with the path."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise SQLiteBackend(path, exclusive=False).translate_error(error) from error


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Raise the error of a full disk as a StoreError with the path of the file that was written."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error_kind(error) != "SQLITE_FULL":
            raise
        raise SQLiteBackend(path, exclusive=False).translate_error(error) from error
