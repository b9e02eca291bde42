"""`dragoman database`."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dragoman.store.connection import Params
from dragoman.store.maintenance.row_batches import TABLES
from dragoman.store.sqlite import SQLiteConnection, lock_folder
from dragoman.store.store import DATABASE_FILE, Store
from tests.cli.conftest import Run
from tests.cli.program import Terminal
from tests.store.filled import fill
from tests.store.older import downgrade
from tests.store.places import empty_place
from tests.store.samples import converse


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with rows in every table, of 1970."""

    async def make() -> None:
        async with await Store.open(tmp_path / "data") as store:
            await fill(store, *range(3))
            await converse(store, "one", "two", session_id="s")

    asyncio.run(make())
    return tmp_path / "data"


@contextmanager
def in_use(data: Path) -> Iterator[None]:
    """A hub uses the folder."""
    with lock_folder(data):
        yield


def test_the_status_has_versions_sizes_rows_and_what_retention_would_delete(run: Run, data: Path) -> None:
    with in_use(data):
        shown = run("database", "status", "--data", data)
        status = run("database", "status", "--data", data, "--json").json
    assert (shown.code, shown.err) == (0, "")
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["database", f"sqlite:{data}/hub.db"] in lines
    assert ["server", "SQLite", sqlite3.sqlite_version] in lines
    assert ["messages", "7", "1970-01-01", "for", "ever"] in lines
    assert ["calls", "3", "1970-01-01", "90", "d", "2"] in lines  # a task waits in the session of the third
    assert "a hub, process" in shown.out
    assert status["revision"] == status["programRevision"]
    assert status["size"] > 100_000
    tables = {table["name"]: table for table in status["tables"]}
    assert tables["usage"]["keptFor"] is None
    assert tables["calls"]["expired"] == 2


def test_retention_of_the_configuration_counts(run: Run, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text("retention: {calls: off, sessions: 10d}\n")
    arguments = ("database", "status", "--data", data, "--config", config, "--json")
    tables = {table["name"]: table for table in run(*arguments).json["tables"]}
    assert (tables["calls"]["expired"], tables["sessions"]["expired"]) == (0, 3)  # of 4


def test_an_older_database_is_migrated_on_request_but_not_under_a_hub(run: Run, data: Path) -> None:
    downgrade(data / DATABASE_FILE, "0006")
    shown = run("database", "status", "--data", data)
    assert "0006 (this program has" in shown.out
    assert "database migrate" in shown.err
    with in_use(data):
        refused = run("database", "migrate", "--data", data)
    assert (refused.code, refused.out) == (1, "")
    assert "is in use by process" in refused.err
    assert "from revision 0006 to" in run("database", "migrate", "--data", data).out
    assert "nothing to do" in run("database", "migrate", "--data", data).out


def test_of_a_newer_database_the_status_says_that_the_program_is_too_old(run: Run, data: Path) -> None:
    with closing(sqlite3.connect(data / DATABASE_FILE)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    shown = run("database", "status", "--data", data)
    assert (shown.code, "9999 (this program has" in shown.out) == (0, True)
    assert ("upgrade this one" in shown.err, "database migrate" in shown.err) == (True, False)


def test_a_backup_is_restored_into_another_folder_and_replaces_on_request(
    run: Run, data: Path, tmp_path: Path
) -> None:
    with in_use(data):
        made = run("database", "backup", tmp_path / "b.db", "--data", data)
    assert made.code == 0
    assert made.out.startswith(f"{tmp_path}/b.db: ")
    assert "7 messages" in made.out
    assert "its secrets need the master key" in made.err
    new = ("--data", tmp_path / "new")
    assert run("database", "restore", tmp_path / "b.db", *new).code == 0
    refused = run("database", "restore", tmp_path / "b.db", *new)
    assert (refused.code, refused.out) == (1, "")
    assert "--replace" in refused.err
    with in_use(tmp_path / "new"):
        assert run("database", "restore", tmp_path / "b.db", *new, "--replace").code == 1
    assert run("database", "restore", tmp_path / "b.db", *new, "--replace").code == 0
    status = [
        run("database", "status", "--data", folder, "--json").json for folder in (data, tmp_path / "new")
    ]
    assert status[0]["tables"] == status[1]["tables"]


def test_an_address_decides_which_folder_is_locked_and_has_the_key(
    run: Run, data: Path, tmp_path: Path
) -> None:
    (data / "hub.key").write_bytes(b"its key")
    file, new = tmp_path / "b.db", tmp_path / "new"
    made = run("database", "backup", file, "--database", f"sqlite:{data}")
    assert (made.code, "hub.key" in made.err) == (0, False)
    address = ("--database", f"sqlite:{new}")
    assert run("database", "restore", file, *address).code == 0
    assert (new / "hub.key").read_bytes() == b"its key"
    with in_use(new):
        refused = run("database", "restore", file, *address, "--replace")
    assert (refused.code, "is in use by process" in refused.err) == (1, True)
    assert not (tmp_path / ".dragoman").exists()


@pytest.mark.parametrize(("name", "mode"), [("copy.db", 0o755), ("hub.db", 0o1777)])
def test_a_folder_of_others_keeps_its_permissions(
    name: str, mode: int, run: Run, data: Path, tmp_path: Path
) -> None:
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(mode)
    address = f"sqlite:{shared / name}"
    shown = [run("database", "copy", "--from", f"sqlite:{data}", "--to", address)]
    file = tmp_path / "b.db"
    shown += [
        run("database", *words, "--database", address)
        for words in (("migrate",), ("compact",), ("backup", file), ("restore", file, "--replace"))
    ]
    assert [(each.code, "permissions" in each.err) for each in shown] == [(0, False)] * 5
    assert stat.S_IMODE(shared.stat().st_mode) == mode
    assert stat.S_IMODE((shared / name).stat().st_mode) == 0o600


def test_a_copy_tells_its_rows_and_a_second_one_writes_nothing(run: Run, data: Path, tmp_path: Path) -> None:
    arguments = ("database", "copy", "--from", f"sqlite:{data}", "--to", f"sqlite:{tmp_path}/new")
    first, second = run(*arguments), run(*arguments)
    assert (first.code, first.err) == (0, "")
    assert "7 messages" in first.out
    assert "(0 written, 0 deleted)" in second.out
    with in_use(tmp_path / "new"):
        assert "is in use by process" in run(*arguments).err
    same = run("database", "copy", "--from", f"sqlite:{data}", "--to", f"sqlite:{data}/hub.db")
    assert (same.code, same.out) == (1, "")
    assert "the same database" in same.err


def test_compacting_frees_the_space_of_deleted_rows_but_not_under_a_hub(run: Run, data: Path) -> None:
    with closing(sqlite3.connect(data / DATABASE_FILE)) as raw:
        raw.execute("UPDATE artifacts SET body = zeroblob(2000000)")
        raw.execute("DELETE FROM artifacts")
        raw.commit()
    with in_use(data):
        refused = run("database", "compact", "--data", data)
    assert (refused.code, refused.out) == (1, "")
    assert "is in use by process" in refused.err
    done = run("database", "compact", "--data", data)
    assert done.code == 0
    assert "freed 6." in done.out
    assert (data / DATABASE_FILE).stat().st_size < 1_000_000


def test_compacting_needs_no_room_in_the_folder_for_temporary_files(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, folders = SQLiteConnection.execute, []

    def note_folder(connection: SQLiteConnection, sql: str, params: Params) -> int:
        if sql == "VACUUM":
            folders.append(os.environ.get("SQLITE_TMPDIR"))
        return execute(connection, sql, params)

    monkeypatch.setattr(SQLiteConnection, "execute", note_folder)
    assert run("database", "compact", "--data", data).code == 0
    assert (folders, "SQLITE_TMPDIR" in os.environ) == ([str(data)], False)


def test_a_database_of_postgres_goes_through_all_commands_and_no_password_is_shown(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with empty_place("postgres", tmp_path / "moved", new=True) as place:
        url = f"{place.url}&password=hunter2"
        empty = run("database", "status", "--database", url)
        assert (empty.code, "hold the tables of a hub" in empty.err) == (1, True), empty.err
        assert "`dragoman database migrate`" in empty.err
        shown = [run("database", "migrate", "--database", url) for _ in range(2)]
        assert [each.code for each in shown] == [0, 0]
        assert "was empty: its tables, of revision" in shown[0].out
        assert "nothing to do" in shown[1].out
        shown = [run("database", "copy", "--from", f"sqlite:{data}", "--to", url)]
        assert "start the hub with the data folder" in shown[0].err
        (tmp_path / "dragoman.yaml").write_text(f"database: {url}\n")
        shown += [run("database", "status"), run("database", "status", "--json")]
        assert "PostgreSQL" in shown[1].out
        tables = {table["name"]: table["rows"] for table in shown[2].json["tables"]}
        assert (tables["messages"], tables["usage"]) == (7, 3)
        monkeypatch.setenv("DRAGOMAN_DATABASE", url)
        shown += [run("database", *words) for words in (("migrate",), ("backup", "b.db"), ("compact",))]
        assert [each.err for each in shown if each.code] == []
        refused = run("database", "restore", "b.db")
        assert (refused.code, refused.out) == (1, "")
        assert "--replace" in refused.err
        shown += [run("database", "restore", "b.db", "--replace"), run("database", "compact", "--full")]
        monkeypatch.delenv("DRAGOMAN_DATABASE")
        back = ("--database", f"sqlite:{tmp_path}/back")
        shown.append(run("database", "restore", "b.db", "--data", tmp_path / "back", *back))
        shown.append(run("database", "copy", "--from", url, "--to", f"sqlite:{tmp_path}/copy"))
    assert [each.err for each in shown if each.code] == []
    assert not any("hunter2" in each.out + each.err for each in (*shown, empty, refused))
    for folder in ("back", "copy"):
        assert all_rows(tmp_path / folder) == all_rows(data)


def all_rows(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the tables that a copy has."""
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as raw:
        return {
            str(table.name): sorted(raw.execute(f"SELECT * FROM {table.name}").fetchall(), key=repr)
            for table in TABLES
        }


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("migrate",),
        ("backup", "b.db"),
        ("compact",),
        ("copy", "--from", "sqlite:nothing", "--to", "sqlite:other"),
        ("restore", "nothing.db", "--data", "other"),
        ("status", "--database", "mysql://root:hunter2@host/x"),
        ("copy", "--from", "hunter2", "--to", "sqlite:other"),
    ],
    ids=" ".join,
)
def test_a_database_that_is_not_there_is_an_error_and_nothing_is_made(
    arguments: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    result = run("database", *arguments)
    assert (result.code, result.out) == (1, "")
    assert "hunter2" not in result.err
    assert not any(tmp_path.rglob("*.db"))


def test_a_terminal_sees_the_progress(data: Path, tmp_path: Path) -> None:
    places = ("--from", f"sqlite:{data}", "--to", f"sqlite:{tmp_path}/new")
    terminal = Terminal("database", "copy", *places, env={})
    terminal.see("checking")
    terminal.see("equal to")
    assert terminal.wait() == 0
