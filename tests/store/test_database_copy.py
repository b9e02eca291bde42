"""`dragoman database copy`: exact, of a database in use, and after any interruption."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import BadRequest, Conflict, NotFound, StoreError
from dragoman.operations.artifact import Artifact
from dragoman.store.connection import Backend, BackendConnection, Params
from dragoman.store.maintenance.copy import CopyReport, DatabaseCopy
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress
from dragoman.store.maintenance.rows import TABLES, RowFormat, RowStatements, read_digest
from dragoman.store.maintenance.transactions import snapshot
from dragoman.store.sqlite import SQLiteBackend
from dragoman.store.store import DATABASE_FILE, Store
from tests.effort import rounds
from tests.store.filled import fill
from tests.store.samples import FINISHED, assistant, converse, run, session

QUIET = Progress()


class Killed(BaseException):
    """The process was killed."""


class KillingConnection:
    """A connection whose process is killed at a commit: before it or just after it."""

    def __init__(self, inner: BackendConnection, commits: int, *, after: bool) -> None:
        self._inner = inner
        self._commits = commits
        self._after = after

    def commit(self) -> None:
        self._commits -= 1
        if self._commits >= 0 or self._after:
            self._inner.commit()
        if self._commits < 0:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class KillingBackend(SQLiteBackend):
    """A database whose copy is killed at a commit."""

    commits = 0
    after = False

    def connect(self, *, writing: bool) -> Any:
        inner = super().connect(writing=writing)
        return KillingConnection(inner, self.commits, after=self.after) if writing else inner


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def backend(folder: Path, *, exclusive: bool = False) -> SQLiteBackend:
    return SQLiteBackend(folder / DATABASE_FILE, exclusive=exclusive)


def copy(source: Path, target: Path, *, to: Backend | None = None, **options: Any) -> CopyReport:
    """Copy one folder's database to another's."""
    destination = to or backend(target, exclusive=True)
    try:
        return DatabaseCopy(
            backend(source), destination, source_name=str(source), progress=QUIET, **options
        ).run()
    finally:
        destination.release()


def contents(folder: Path) -> Mapping[str, list[Any]]:
    """All rows of a database, in the order of their keys."""
    place, found = backend(folder), {}
    with snapshot(place) as connection:
        for table in TABLES:
            batches = RowStatements(table, place).batches(connection)
            found[str(table.name)] = [RowFormat(table).apply(row) for batch in batches for row in batch]
    return found


async def history(folder: Path, session_id: str) -> bytes:
    """A session's messages, as a hub that starts on this folder has them."""
    async with await Store.open(folder) as store:
        return msgspec.json.encode(await store.messages.list(session_id))


async def test_every_row_of_every_table_arrives_as_it_was(source: Path, target: Path) -> None:
    async with await Store.open(source) as store:
        await fill(store, *range(9))
    report = copy(source, target)
    assert contents(target) == contents(source)
    assert report.rows == {str(table.name): 9 for table in TABLES}
    assert (report.written, report.deleted, report.continued, report.changed) == (
        9 * len(TABLES),
        0,
        False,
        False,
    )


async def test_a_hub_on_the_copy_answers_the_same_histories(source: Path, target: Path) -> None:
    sessions, turns = rounds(quick=3, thorough=1_000), rounds(quick=4, thorough=50)
    async with await Store.open(source) as store:
        for number in range(sessions):
            await converse(store, *map(str, range(turns)), session_id=f"s{number}")
    report = copy(source, target)
    assert report.rows["messages"] == 2 * sessions * turns
    for number in range(0, sessions, max(1, sessions // 20)):
        assert await history(target, f"s{number}") == await history(source, f"s{number}")


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
async def test_a_copy_that_is_killed_at_any_commit_continues_and_no_hub_starts_before(
    source: Path, tmp_path: Path, *, after: bool
) -> None:
    async with await Store.open(source) as store:
        await fill(store, *range(4))
    wanted = contents(source)
    kills = 0
    for commits in range(0, 60, rounds(quick=15, thorough=1)):
        folder = tmp_path / f"target{commits}"
        place = KillingBackend(folder / DATABASE_FILE)
        place.commits, place.after = commits, after
        try:
            copy(source, folder, to=place)
        except Killed:
            kills += 1
            if commits > 5:
                with pytest.raises(StoreError, match="is not finished") as refusal:
                    await Store.open(folder)
                assert refusal.value.hint == "run `dragoman database copy` again: it continues"
        copy(source, folder)
        assert contents(folder) == wanted
        async with await Store.open(folder):
            pass
    assert kills > 2


async def test_a_database_in_use_is_copied_at_one_moment_and_then_what_came_since(
    source: Path, target: Path
) -> None:
    class WritingProgress(Progress):
        """Writes to the source while it is copied."""

        wrote = False

        def advance(self, count: int) -> None:
            if not self.wrote:
                self.wrote = True
                asyncio.run_coroutine_threadsafe(converse(store, "more", session_id="new"), loop).result()

    loop = asyncio.get_running_loop()
    async with await Store.open(source) as store:
        await converse(store, "one", "two", session_id="old")
        place = backend(target, exclusive=True)
        copying = DatabaseCopy(backend(source), place, source_name="s", progress=WritingProgress())
        report = await asyncio.to_thread(copying.run)
        place.release()
        assert report.rows["messages"] == 4
        assert (report.changed, report.new_rows) == (
            True,
            {"sessions": 1, "messages": 2, "runs": 1, "parts": 2},
        )
        place = backend(target, exclusive=True)
        again = DatabaseCopy(backend(source), place, source_name="s", progress=QUIET)
        report = await asyncio.to_thread(again.run)
        place.release()
    assert (report.written, report.continued, report.changed, report.new_rows) == (6, True, False, {})
    assert contents(target) == contents(source)


async def test_a_second_copy_writes_what_changed_and_deletes_what_is_gone(source: Path, target: Path) -> None:
    async with await Store.open(source) as store:
        await fill(store, *range(4))
        await converse(store, "one", "two", session_id="s")
        await store.runs.create(run("active", session_id="sessions-1"), assistant=assistant())
        copy(source, target)
        await store.sessions.update("s", title="changed")
        await store.sessions.delete("sessions-2")
        await store.runs.finish("active", FINISHED)
        await store.runs.create(  # in the place of a message that goes, and of the active run of its session
            run("a-newer", session_id="sessions-1", message_id="other"),
            assistant=assistant("other"),
            drop_from="a",
        )
    report = copy(source, target)
    assert contents(target) == contents(source)
    assert 0 < report.written < 20
    assert 0 < report.deleted < 20


async def test_a_target_with_other_data_is_refused_unless_it_may_be_replaced(
    source: Path, target: Path
) -> None:
    for folder, name in ((source, "mine"), (target, "other")):
        async with await Store.open(folder) as store:
            await store.sessions.create(session(name))
    with pytest.raises(Conflict, match="holds other data"):
        copy(source, target)
    assert [row[0] for row in contents(target)["sessions"]] == ["other"]
    copy(source, target, replace=True)
    assert contents(target) == contents(source)


async def test_a_copy_that_a_hub_has_used_since_is_not_overwritten(source: Path, target: Path) -> None:
    async with await Store.open(source) as store:
        await store.sessions.create(session("mine"))
    copy(source, target)
    async with await Store.open(target) as store:
        await store.sessions.create(session("later"))
    with pytest.raises(Conflict, match="was written to since the copy"):
        copy(source, target)
    assert len(contents(target)["sessions"]) == 2


async def test_a_target_in_use_or_a_source_of_another_revision_is_refused(source: Path, target: Path) -> None:
    async with await Store.open(source):
        pass
    async with await Store.open(target):
        with pytest.raises(StoreError, match="is in use by process"):
            copy(source, target)
    place = backend(source)
    connection = place.connect(writing=True)
    connection.execute("UPDATE alembic_version SET version_num = '0003'", {})
    connection.close()
    with pytest.raises(StoreError, match="the source is of revision 0003") as refusal:
        copy(source, target)
    assert "database migrate" in str(refusal.value.hint)


async def test_a_copy_that_differs_fails(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Store.open(source) as store:
        await fill(store, 0, 1)
    params = DatabaseCopy.__init__.__globals__["TableCopy"].params

    def falsified(table: Any, row: Any) -> Params:
        values = dict(params(table, row))
        return values | {"v3": "falsified"} if table.name == "parts" else values

    monkeypatch.setattr("dragoman.store.maintenance.copy.TableCopy.params", falsified)
    with pytest.raises(
        StoreError, match="the copy of 'parts' differs: 2 rows in the source, 2 in the target"
    ):
        copy(source, target)
    with pytest.raises(StoreError, match="is not finished"):
        await Store.open(target)


async def test_memory_holds_a_batch_however_large_the_rows_are(source: Path, target: Path) -> None:
    async with await Store.open(source) as store:
        for number in range(16):
            artifact = Artifact(
                id=f"a{number}", owner="ann", media_type="text/plain", size=3_000_000, created_at=1.0
            )
            await store.artifacts.save(artifact, bytes(3_000_000))
    tracemalloc.start()
    try:
        copy(source, target)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000  # of 48 MB
    finally:
        tracemalloc.stop()


async def test_a_digest_does_not_depend_on_the_order_and_tells_any_change(source: Path) -> None:
    async with await Store.open(source) as store:
        await fill(store, *range(5))
    place = backend(source)
    changes: list[Callable[[BackendConnection], Any]] = [
        lambda connection: connection.execute("UPDATE parts SET body = body || ' ' WHERE position = 3", {}),
        lambda connection: connection.execute("UPDATE usage SET cost = 0.5 WHERE step = 1", {}),
        lambda connection: connection.execute("UPDATE usage SET estimated = 1 - estimated", {}),
        lambda connection: connection.execute(
            "UPDATE approvals SET state = NULL WHERE id = 'approvals-1'", {}
        ),
        lambda connection: connection.execute("DELETE FROM budgets WHERE spent = 1", {}),
    ]
    seen = {digests(place)}
    for change in changes:
        connection = place.connect(writing=True)
        change(connection)
        connection.close()
        seen.add(digests(place))
    assert len(seen) == 1 + len(changes)


def digests(place: Backend) -> tuple[str, ...]:
    with snapshot(place) as connection:
        return tuple(
            str(read_digest(connection, RowStatements(table, place), form=RowFormat(table)))
            for table in TABLES
        )


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:data/hub.db", "data/hub.db"),
        ("sqlite:data", "data/hub.db"),
        ("sqlite:///data", "data/hub.db"),
        ("sqlite:////var/lib/new", "/var/lib/new/hub.db"),
        ("sqlite:///var/lib/new", "/var/lib/new/hub.db"),
        ("sqlite:/var/lib/other.db", "/var/lib/other.db"),
        ("sqlite:with%20space", "with space/hub.db"),
    ],
)
def test_an_address_of_sqlite_is_a_folder_or_a_file(
    text: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert DatabaseLocation.parse(text).path == (tmp_path / path)


@pytest.mark.parametrize("text", ["mysql://root:hunter2@host/x", "hunter2", "", "/var/lib/hub.db"])
def test_another_address_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        DatabaseLocation.parse(text)
    assert "hunter2" not in f"{refusal.value} {refusal.value.hint}"


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        DatabaseLocation.parse(f"sqlite:{tmp_path}/none").require()
    assert list(tmp_path.iterdir()) == []
