"""Backups: a file of SQLite with all rows, and the files of the data folder without which they are useless.

A backup of SQLite copies pages, one of Postgres copies rows. Either file is a database that a hub could use,
and that `copy` takes as a source.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.errors import BadRequest, Conflict, NotFound, StoreError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.store.hosts.host_folder import HOSTS_FOLDER
from dragoman.store.maintenance.copy import DatabaseCopy
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress
from dragoman.store.private_files import FILE_MODE, FOLDER_MODE, make_database_folder, make_private_folder
from dragoman.store.schema import current_revision, upgrade_schema
from dragoman.store.sqlite import DIALECT, SQLiteBackend, error_kind, lock_folder
from dragoman.store.store import ANSWERS_FOLDER, DATABASE_FILE, FOLDER_KEY_FILE

USAGE_SPOOL = "usage.spool"
FILE_PATTERNS = (FOLDER_KEY_FILE, f"{USAGE_SPOOL}*", f"{ANSWERS_FOLDER}/*.json")
CACHE_FILE = "keys.cache"
PAGES = 2_000  # pages of one step
MANIFEST = "backup.json"
CREATE_FILES = "CREATE TABLE backup_files (name TEXT PRIMARY KEY, body BLOB NOT NULL)"
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
        """Whether the key of the data folder is in it."""
        return FOLDER_KEY_FILE in self.files


def back_up(
    location: DatabaseLocation, file: Path, *, progress: Progress, with_key: bool = True
) -> BackupManifest:
    """Write a backup to a new file. Raises Conflict when it exists, NotFound, StoreError.

    A hub may go on writing. Files of the database's data folder are read before the database: what moves
    from a spool into the database in between is in both, and is stored once when it is replayed.
    """
    location.require()
    if file.exists():
        raise Conflict(f"{str(file)!r} exists", hint="name a new file; a backup replaces none")
    with draft_folder(file) as draft:
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
        current_revision(raw)  # begins the snapshot, and refuses another program's tables
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
    """What was restored: the manifest, and where the folder's former key is, if it was another."""

    manifest: BackupManifest
    replaced_key: Path | None


def restore(
    file: Path, location: DatabaseLocation, *, progress: Progress, replace: bool = False
) -> RestoreReport:
    """Restore a backup into a database that is empty, or that it may `replace`, and into its data folder.

    Raises BadRequest without a data folder, Conflict, NotFound; StoreError when a hub uses the database, or
    when the file is damaged. Until the restored database is complete, the former one is as it was (SQLite),
    or hubs refuse it (Postgres).
    """
    if not file.is_file():
        raise NotFound(f"there is no file {str(file)!r}")
    if (folder := location.folder) is None:
        raise BadRequest("a restored database needs a data folder", hint="name it with --data")
    with using_folder(location), draft_folder(folder / "restore") as draft:
        if location.path is not None and not replace:
            require_empty(location.path)
        manifest, bodies = stage(file, draft / DATABASE_FILE, progress=progress)
        if location.path is not None:  # who ends here has no database without its key
            replaced_key = write_files(folder, bodies)
            replace_file(draft / DATABASE_FILE, location.path)
        else:
            restore_rows(draft / DATABASE_FILE, location, name=file.name, progress=progress, replace=replace)
            replaced_key = write_files(folder, bodies)
        return RestoreReport(manifest, replaced_key)


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
    draft: Path, location: DatabaseLocation, *, name: str, progress: Progress, replace: bool
) -> None:
    """Copy the rows of a draft into a database of another kind."""
    source, target = SQLiteBackend(draft, exclusive=False), location.backend(exclusive=True)
    try:
        DatabaseCopy(source, target, source_name=f"backup:{name}", progress=progress, replace=replace).run()
    finally:
        target.release()


def require_empty(path: Path) -> None:
    """Raise Conflict when the database holds rows, or cannot be read. An empty file holds none."""
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        with closing(open_file(path)) as raw:
            rows = sum(count_tables(raw).values())
    except sqlite3.Error as error:
        raise Conflict(
            f"{str(path)!r} cannot be read ({error})", hint="move it away, or add --replace"
        ) from error
    if rows:
        raise Conflict(
            f"{str(path)!r} holds {rows} rows",
            hint="name another folder with --data, or add --replace to delete what this one holds",
        )


def replace_file(draft: Path, path: Path) -> None:
    """Put a database in the place of another, whose journal must not be applied to it."""
    with suppress(sqlite3.Error), closing(open_file(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    draft.chmod(FILE_MODE)
    draft.replace(path)
    sync_folder(path.parent)


# Files of the data folder.


def read_files(folder: Path | None, *, with_key: bool) -> Mapping[str, bytes]:
    """Return the files that a restored hub needs: its key, and what its spools hold.

    What the spools of other hosts of the same data folder hold is in the files of the first one.
    """
    if folder is None:
        return {}
    bodies = dict(find_files(folder, FILE_PATTERNS if with_key else FILE_PATTERNS[1:]))
    hosts = folder / HOSTS_FOLDER
    for host in sorted(hosts.iterdir()) if hosts.is_dir() else ():
        for name, body in find_files(host, FILE_PATTERNS[1:]):
            if name.startswith(USAGE_SPOOL):
                bodies[USAGE_SPOOL] = b"\n".join([*filter(None, [bodies.get(USAGE_SPOOL)]), body])
            else:
                bodies[name.replace("/", f"/{host.name}-")] = body
    return bodies


def find_files(folder: Path, patterns: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the contents of the files that match."""
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        with suppress(FileNotFoundError):  # replayed in the meantime, so the database has it
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def write_files(folder: Path, bodies: Mapping[str, bytes]) -> Path | None:
    """Write files into the folder; return where its former key is, if that was another. StoreError.

    Files get their names when all are on the disk, so a full disk changes none.
    """
    drafts: dict[Path, Path] = {}
    try:
        for name, body in bodies.items():
            drafts[write_draft(folder / name, body)] = folder / name
        key, replaced = folder / FOLDER_KEY_FILE, None
        if FOLDER_KEY_FILE in bodies and key.exists() and key.read_bytes() != bodies[FOLDER_KEY_FILE]:
            replaced = folder / f"{FOLDER_KEY_FILE}.replaced-{time.strftime('%Y%m%dT%H%M%S')}"
            key.replace(replaced)
        (folder / CACHE_FILE).unlink(missing_ok=True)
        for draft, path in drafts.items():
            draft.replace(path)
    except OSError as error:
        raise unwritable(folder, error) from error
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    return replaced


def write_draft(path: Path, body: bytes) -> Path:
    """Write a file beside its place, to the disk: half a key is none. Return where it is. OSError."""
    path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    draft = path.with_name(f"{path.name}.partial")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(body)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft


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
    """Return a backup's manifest; of a database that has none, what can be told. StoreError."""
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


def check_names(names: Iterable[str]) -> None:
    """Raise StoreError for a file that no backup has, such as one outside of the data folder."""
    for name in names:
        patterns = [pattern for pattern in FILE_PATTERNS if pattern.count("/") == name.count("/")]
        if ".." in name or not any(fnmatchcase(name, pattern) for pattern in patterns):
            raise StoreError(f"the backup holds a file {name!r}, which no backup of this program has")


def list_master_keys(raw: sqlite3.Connection) -> list[str]:
    """Return the fingerprints of the master keys with which the stored secrets are encrypted."""
    found: set[str] = set()
    for table in ("secrets", "vault_entries"):
        if raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            found.update(key for (key,) in raw.execute(f"SELECT DISTINCT key_id FROM {table}"))  # noqa: S608
    return sorted(found)


def require_key(folder: Path, bodies: Mapping[str, bytes], *, source: Path) -> None:
    """Raise Conflict when a folder has another key than the files of the folder `source`."""
    key = folder / FOLDER_KEY_FILE
    if key.exists() and FOLDER_KEY_FILE in bodies and key.read_bytes() != bodies[FOLDER_KEY_FILE]:
        raise Conflict(
            f"{str(key)!r} is another key than that of {str(source)!r}",
            hint="move it away: it encrypts what is stored in the database beside it",
        )


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
    """Raise that the disk is full as a StoreError with the path of the file that was written."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error_kind(error) != "SQLITE_FULL":
            raise
        raise SQLiteBackend(path, exclusive=False).translate_error(error) from error


@contextmanager
def draft_folder(file: Path) -> Iterator[Path]:
    """A private folder beside a file in which it is made; one that a killed process left is emptied."""
    folder = file.with_name(f"{file.name}.partial")
    try:
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise unwritable(file, error) from None
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(folder))
        except OSError as error:
            raise unwritable(file, error) from None
        except StoreError:
            raise Conflict(
                f"another process is writing {str(folder)!r}", hint="wait until it has ended"
            ) from None
        for path in folder.glob(f"{DATABASE_FILE}*"):
            path.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def unwritable(path: Path, error: OSError) -> StoreError:
    """Return the error of a file or folder that cannot be written."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space on its disk" if is_full else "check that this user may write to its folder"
    return StoreError(f"cannot write {str(path)!r}: {error.strerror}", hint=hint)


def publish_new(draft: Path, file: Path) -> None:
    """Give a finished file its name, which must be new."""
    draft.chmod(FILE_MODE)
    try:
        os.link(draft, file)
    except FileExistsError:
        raise Conflict(f"{str(file)!r} exists", hint="name a new file; a backup replaces none") from None
    except OSError:  # a file system without hard links
        draft.rename(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
