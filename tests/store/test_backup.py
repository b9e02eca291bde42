"""`dragoman database backup` and `restore`: what is restored is a hub that works."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import Conflict, NotFound, StoreError
from dragoman.store.maintenance import backup
from dragoman.store.maintenance.backup import BackupManifest, RestoreReport, back_up, restore
from dragoman.store.maintenance.data_folder_copy import transfer
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress
from dragoman.store.store import DATABASE_FILE, Store
from tests.store.filled import fill
from tests.store.older import downgrade
from tests.store.samples import converse, session

SERVER = '{"command": ["server"], "secrets": {"TOKEN": "hunter2"}}'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hub.backup"


def make(data: Path, file: Path, *, progress: Progress | None = None, **options: Any) -> BackupManifest:
    return back_up(DatabaseLocation.of_folder(data), file, progress=progress or Progress(), **options)


def bring_back(file: Path, folder: Path, **options: Any) -> RestoreReport:
    return restore(file, DatabaseLocation.of_folder(folder), progress=Progress(), **options)


async def histories(folder: Path) -> bytes:
    async with await Store.open(folder) as store:
        sessions = await store.sessions.list("ann")
        return msgspec.json.encode([(each, await store.messages.list(each.id)) for each in sessions])


async def test_a_backup_of_a_hub_that_writes_is_one_moment_and_is_restored_whole(
    data: Path, file: Path, tmp_path: Path
) -> None:
    class WritingProgress(Progress):
        """Writes to the hub at each step."""

        def advance(self, count: int) -> None:
            converse_now = converse(store, "later", session_id=f"later{len(steps)}")
            steps.append(count)
            asyncio.run_coroutine_threadsafe(converse_now, loop).result()

    steps: list[int] = []
    loop = asyncio.get_running_loop()
    async with await Store.open(data) as store:
        await fill(store, *range(3))
        await converse(store, *map(str, range(20)), session_id="old")
        await store.history.search("19", owner="ann")
        manifest = await asyncio.to_thread(make, data, file, progress=WritingProgress())
        assert steps
    assert manifest.rows["messages"] == 43
    assert mode_of(file) == 0o600
    assert names_in(tmp_path) == ["data", "hub.backup"]
    report = bring_back(file, tmp_path / "new")
    assert report.manifest == manifest
    async with await Store.open(tmp_path / "new") as store:
        assert [each.id for each in await store.sessions.list("ann")] == ["old"]
        assert len(await store.messages.list("old")) == 40
        assert len((await store.history.search("19", owner="ann")).passages) == 1


async def test_a_restored_hub_has_the_key_and_the_spools_of_its_folder(
    data: Path, file: Path, tmp_path: Path
) -> None:
    async with await Store.open(data) as store:
        await store.mcp_servers.put("mail", SERVER)
    (data / "usage.spool").write_bytes(b"{}\n")
    (data / "answers.spool").mkdir()
    (data / "answers.spool" / "r1.json").write_bytes(b"{}")
    (data / "keys.cache").write_bytes(b"cached")
    manifest = make(data, file)
    assert manifest.files == ["answers.spool/r1.json", "hub.key", "usage.spool"]
    new = tmp_path / "new"
    new.mkdir()
    (new / "keys.cache").write_bytes(b"of a former hub")
    assert bring_back(file, new).replaced == (None, None)
    for name in manifest.files:
        assert (new / name).read_bytes() == (data / name).read_bytes()
        assert mode_of(new / name) == 0o600
    assert not (new / "keys.cache").exists()
    async with await Store.open(new) as store:
        (stored,) = await store.mcp_servers.list()
        assert (stored.name, stored.body) == ("mail", SERVER)


async def test_a_backup_has_the_spools_of_all_hosts_of_the_folder(
    data: Path, file: Path, tmp_path: Path
) -> None:
    async with await Store.open(data):
        pass
    (data / "usage.spool").write_bytes(b"1\n")
    for name in ("2", "3"):
        (host := data / "hosts" / name / "answers.spool").mkdir(parents=True)
        (host / "r.json").write_bytes(name.encode())
        (host.parent / "usage.spool.replay").write_bytes(f"{name}\n".encode())
    make(data, file)
    bring_back(file, new := tmp_path / "new")
    assert body_of(new / "usage.spool").split() == [b"1", b"2", b"3"]
    answers = {path.name: body_of(path) for path in (new / "answers.spool").iterdir()}
    assert answers == {"2-r.json": b"2", "3-r.json": b"3"}


async def test_files_that_find_no_room_change_nothing_in_the_folder(
    data: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Store.open(data) as store:
        await store.mcp_servers.put("mail", SERVER)
    (data / "usage.spool").write_bytes(b"{}\n")
    make(data, file)
    new = tmp_path / "new"
    async with await Store.open(new):
        (new / "hub.key").write_bytes(b"another")
    before = {path.name: body_of(path) for path in new.iterdir()}

    def find_full_disk(_: int) -> None:
        full.append(1)
        if len(full) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    full: list[int] = []
    with monkeypatch.context() as small:
        small.setattr("dragoman.store.maintenance.drafts.os.fsync", find_full_disk)
        with pytest.raises(StoreError, match=r"new': No space left on device") as refused:
            bring_back(file, new, replace=True)
    assert refused.value.hint == "free some space on its disk"
    assert {path.name: body_of(path) for path in new.iterdir()} == before


async def test_a_backup_without_the_key_does_not_have_it(data: Path, file: Path) -> None:
    async with await Store.open(data) as store:
        await store.mcp_servers.put("mail", SERVER)
    key = (data / "hub.key").read_bytes().strip()
    assert not make(data, file, with_key=False).has_key
    stored = body_of(file)
    assert key not in stored
    assert b"hunter2" not in stored


async def test_another_key_of_the_folder_is_moved_aside(data: Path, file: Path, tmp_path: Path) -> None:
    async with await Store.open(data) as store:
        await store.mcp_servers.put("mail", SERVER)
    make(data, file)
    new = tmp_path / "new"
    new.mkdir()
    (new / "hub.key").write_bytes(b"another")
    replaced = bring_back(file, new).replaced.key
    assert replaced is not None
    assert replaced.read_bytes() == b"another"
    assert (new / "hub.key").read_bytes() == (data / "hub.key").read_bytes()


async def test_a_backup_replaces_no_file_and_leaves_none_when_it_fails(
    data: Path, file: Path, tmp_path: Path
) -> None:
    async with await Store.open(data):
        pass
    write(file, b"precious")
    with pytest.raises(Conflict, match="exists"):
        make(data, file)
    assert body_of(file) == b"precious"
    with pytest.raises(NotFound, match="there is no database"):
        make(tmp_path / "nothing", tmp_path / "b")
    with pytest.raises(StoreError, match="cannot write"):
        make(data, tmp_path / "no" / "folder" / "b")
    (tmp_path / "b.partial").mkdir()
    (tmp_path / "b.partial" / DATABASE_FILE).write_bytes(b"of a backup that was killed")
    make(data, tmp_path / "b")
    assert names_in(tmp_path) == ["b", "data", "hub.backup"]


async def test_a_database_with_rows_is_replaced_only_on_request_and_one_in_use_never(
    data: Path, file: Path, tmp_path: Path
) -> None:
    async with await Store.open(data) as store:
        await store.sessions.create(session("backed up"))
    make(data, file)
    async with await Store.open(data) as store:
        await store.sessions.create(session("later"))
        with pytest.raises(StoreError, match="is in use by process"):
            bring_back(file, data, replace=True)
    later = await histories(data)
    with pytest.raises(Conflict, match="holds 4 rows"):
        bring_back(file, data)
    assert await histories(data) == later
    bring_back(file, data, replace=True)
    assert b"later" not in await histories(data)
    for state in (None, b""):
        empty = tmp_path / f"empty {state!r}"
        empty.mkdir()
        if state is not None:
            (empty / DATABASE_FILE).write_bytes(state)
        bring_back(file, empty)
        assert await histories(empty) == await histories(data)


async def test_the_journal_of_the_replaced_database_is_not_applied_to_the_restored_one(
    data: Path, file: Path
) -> None:
    async with await Store.open(data) as store:
        await store.sessions.create(session("backed up"))
    make(data, file)
    with closing(sqlite3.connect(data / DATABASE_FILE)) as crashed:
        crashed.execute("UPDATE sessions SET owner = 'lost'")
        crashed.commit()
        journal = (data / "hub.db-wal").read_bytes()
        shared = (data / "hub.db-shm").read_bytes()
    (data / DATABASE_FILE).write_bytes(b"damaged" * 1_000)
    (data / "hub.db-wal").write_bytes(journal)
    (data / "hub.db-shm").write_bytes(shared)
    with pytest.raises(Conflict, match="cannot be read"):
        bring_back(file, data)
    bring_back(file, data, replace=True)
    assert b"backed up" in await histories(data)


async def test_a_backup_of_an_older_version_is_migrated(data: Path, file: Path, tmp_path: Path) -> None:
    async with await Store.open(data) as store:
        await store.sessions.create(session("old"))
    downgrade(data / DATABASE_FILE, "0006")
    assert make(data, file).revision == "0006"
    bring_back(file, tmp_path / "new")
    assert b"old" in await histories(tmp_path / "new")


async def test_a_restore_that_ends_before_its_last_step_left_nothing_and_is_run_again(
    data: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Store.open(data) as store:
        await converse(store, "hello")
        await store.mcp_servers.put("files", SERVER)
    make(data, file)
    new = tmp_path / "new"
    with monkeypatch.context() as killed:
        killed.setattr(backup, "replace_file", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bring_back(file, new)
    assert names_in(new) == ["hub.lock"]
    assert bring_back(file, new).replaced == (None, None)
    assert await histories(new) == await histories(data)


async def test_a_folder_with_another_key_gets_no_row_of_a_copy(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for folder in (data, other):
        async with await Store.open(folder) as store:
            await store.mcp_servers.put("files", SERVER)
    (other / DATABASE_FILE).unlink()
    with pytest.raises(Conflict, match="is another key"):
        transfer(DatabaseLocation.of_folder(data), DatabaseLocation.of_folder(other), progress=Progress())
    assert DATABASE_FILE not in names_in(other)


async def test_no_hub_starts_on_a_copy_before_the_key_and_the_spools_are_there(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ReplayingProgress(Progress):
        """The hub of the source stores what is in its spool meanwhile."""

        def start(self, stage: str, total: int) -> None:
            (data / "usage.spool").unlink(missing_ok=True)

    async with await Store.open(data) as store:
        await store.mcp_servers.put("files", SERVER)
    (data / "usage.spool").write_bytes(b"{}\n")
    places = DatabaseLocation.of_folder(data), DatabaseLocation.of_folder(new := tmp_path / "new")
    with monkeypatch.context() as killed:
        killed.setattr("dragoman.store.maintenance.data_folder_copy.write_files", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            transfer(*places, progress=Progress())
    with pytest.raises(StoreError, match="is not finished"):
        await Store.open(new)
    transfer(*places, progress=ReplayingProgress())
    assert (body_of(new / "hub.key"), body_of(new / "usage.spool")) == (body_of(data / "hub.key"), b"{}\n")
    await histories(new)


async def test_a_copy_whose_target_fails_names_the_target(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Store.open(data) as store:
        await converse(store, "hello")

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("dragoman.store.maintenance.copy.TableCopy.params", fail)
    full = DatabaseLocation.of_folder(tmp_path / "full")
    with pytest.raises(StoreError, match=r"full/hub\.db': database or disk is full"):
        transfer(DatabaseLocation.of_folder(data), full, progress=Progress())


@pytest.mark.parametrize(
    "spoiled",
    [
        "text",
        "cut",
        "rows",
        "newer",
        "foreign",
        "files",
        "missing",
        "manifest",
        "shape",
        "body",
        "name",
        "folder",
    ],
)
async def test_a_file_that_is_not_a_whole_backup_is_refused_and_changes_nothing(
    data: Path, file: Path, tmp_path: Path, spoiled: str
) -> None:
    async with await Store.open(data) as store:
        await converse(store, *map(str, range(40)))
    make(data, file)
    spoil(file, spoiled)
    new = tmp_path / "new"
    with pytest.raises((StoreError, NotFound)):
        bring_back(file, new)
    assert not new.exists() or names_in(new) == ["hub.lock"]
    assert not (tmp_path / "evil").exists()


def spoil(file: Path, how: str) -> None:
    statements = {
        "rows": "DELETE FROM messages WHERE position = 3",
        "newer": "UPDATE alembic_version SET version_num = '9999'",
        "foreign": "DROP TABLE alembic_version",
        "files": "INSERT INTO backup_files VALUES ('../evil', x'00')",
        "manifest": "UPDATE backup_files SET body = x'7bff' WHERE name = 'backup.json'",
        "shape": "UPDATE backup_files SET body = CAST('{\"rows\": 5}' AS BLOB) WHERE name = 'backup.json'",
        "body": "INSERT OR REPLACE INTO backup_files VALUES ('hub.key', 17)",
        "name": "INSERT INTO backup_files VALUES (x'00ff', x'00')",
        "folder": "INSERT INTO backup_files VALUES ('answers.spool/a/b.json', x'00')",
    }
    match how:
        case "text":
            file.write_bytes(b"just some text" * 100)
        case "cut":
            file.write_bytes(file.read_bytes()[:-20_000])
        case "missing":
            file.unlink()
        case _:
            with closing(sqlite3.connect(file)) as raw:
                raw.execute(statements[how])
                raw.commit()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def body_of(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, body: bytes) -> None:
    path.write_bytes(body)
