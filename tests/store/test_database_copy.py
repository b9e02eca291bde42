"""`dragoman database copy`: exact, of a database in use, and after any interruption."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import BadRequest, Conflict, NotFound, StoreError
from dragoman.operations.results.artifact import Artifact
from dragoman.store.connection import Backend, BackendConnection, Params
from dragoman.store.maintenance.copy import CopyReport, DatabaseCopy
from dragoman.store.maintenance.data_folder_copy import transfer
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress
from dragoman.store.maintenance.row_batches import TABLES, RowFormat, read_digest, row_statements
from dragoman.store.maintenance.transactions import snapshot
from tests.databases import BackendName
from tests.effort import rounds, rows
from tests.serving import serving
from tests.store.filled import fill
from tests.store.places import Place, empty_place
from tests.store.samples import FINISHED, assistant, converse, run, session

QUIET = Progress()
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("patient_locks")


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


class KillingBackend:
    """A database whose copy is killed at a commit."""

    def __init__(self, inner: Backend, commits: int, *, after: bool) -> None:
        self._inner = inner
        self._commits = commits
        self._after = after

    def connect(self, *, writing: bool) -> Any:
        connection = self._inner.connect(writing=writing)
        return KillingConnection(connection, self._commits, after=self._after) if writing else connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


SQLITE: tuple[BackendName, BackendName] = ("sqlite", "sqlite")
PAIRS: Sequence[tuple[BackendName, BackendName]] = (
    SQLITE,
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
)
# Of which every other one has each pair, and both moments: just before the commit, and just after it.
KILLED = [(pair, (pair == SQLITE) != later) for pair in PAIRS for later in (False, True)]
between_all_kinds = pytest.mark.parametrize("pair", PAIRS, ids="-".join, indirect=True)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    """Two empty places; of SQLite, unless a test asks for others."""
    first, second = getattr(request, "param", SQLITE)
    with (
        empty_place(first, tmp_path / "source") as source,
        empty_place(second, tmp_path / "target", new=True) as target,
    ):
        yield source, target


@pytest.fixture
def source(pair: tuple[Place, Place]) -> Place:
    return pair[0]


@pytest.fixture
def target(pair: tuple[Place, Place]) -> Place:
    return pair[1]


def location(place: Place) -> DatabaseLocation:
    """Return where the place's database is."""
    if place.url is None:
        return DatabaseLocation.of_folder(place.folder)
    return DatabaseLocation.parse(place.url, folder=place.folder)


def backend(place: Place, *, exclusive: bool = False) -> Backend:
    return location(place).backend(exclusive=exclusive)


def copy(source: Place, target: Place, *, to: Any = None, **options: Any) -> CopyReport:
    """Copy one place's database to another's."""
    destination = to or backend(target, exclusive=True)
    try:
        return DatabaseCopy(
            backend(source), destination, source_name=location(source).identity, progress=QUIET, **options
        ).run()
    finally:
        destination.release()


def contents(where: Place) -> Mapping[str, list[Any]]:
    """All rows of a database, in the order of their keys."""
    place, found = backend(where), {}
    with snapshot(place) as connection:
        for table in TABLES:
            batches = row_statements(table, place).batches(connection)
            found[str(table.name)] = [RowFormat(table).apply(row) for batch in batches for row in batch]
    return found


async def history(place: Place, session_id: str) -> bytes:
    """A session's messages, as a hub that starts here has them."""
    async with await place.open() as store:
        return msgspec.json.encode(await store.messages.list(session_id))


@between_all_kinds
async def test_every_row_of_every_table_arrives_as_it_was(source: Place, target: Place) -> None:
    async with await source.open() as store:
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


@between_all_kinds
async def test_a_hub_on_the_copy_answers_the_same_histories(source: Place, target: Place) -> None:
    sessions, turns = rounds(quick=3, thorough=1_000), rounds(quick=4, thorough=50)
    async with await source.open() as store:
        for number in range(sessions):
            await converse(store, *map(str, range(turns)), session_id=f"s{number}")
    report = copy(source, target)
    assert report.rows["messages"] == 2 * sessions * turns
    for number in range(0, sessions, max(1, sessions // 20)):
        assert await history(target, f"s{number}") == await history(source, f"s{number}")


async def test_a_hub_that_is_served_on_the_copy_answers_byte_for_byte_the_same(tmp_path: Path) -> None:
    places = Place(tmp_path / "a" / "hub"), Place(tmp_path / "b" / "hub")
    async with await places[0].open() as store:
        await converse(store, "one", "two", session_id="s", owner="local", title="é")
    copy(*places)
    answers = []
    for folder in ("a", "b"):
        async with serving(tmp_path / folder) as hub:
            paths = ("/api/sessions", "/api/sessions/s", "/api/sessions/s/messages", "/api/sessions/s/calls")
            responses = [await hub.http.get(path) for path in paths]
            answers.append([(response.status_code, response.content) for response in responses])
    assert answers[0] == answers[1]
    assert [status for status, _ in answers[0]][:3] == [200] * 3


@pytest.mark.parametrize(("pair", "after"), rows(KILLED, quick=2), indirect=["pair"])
async def test_a_copy_that_is_killed_at_any_commit_continues_and_no_hub_starts_before(
    source: Place, target: Place, tmp_path: Path, *, after: bool
) -> None:
    async with await source.open() as store:
        await fill(store, *range(4))
    kills = 0
    for commits in range(rounds(quick=2, thorough=0), 60, rounds(quick=29, thorough=1)):
        with empty_place(target.backend, tmp_path / f"target{commits}", new=True) as place:
            kills += await is_killed(source, place, commits=commits, after=after)
    assert kills


async def is_killed(source: Place, place: Place, *, commits: int, after: bool) -> bool:
    """Kill a copy at a commit, unless it is done before, and copy again; return whether it was killed."""
    try:
        copy(source, place, to=KillingBackend(backend(place, exclusive=True), commits, after=after))
    except Killed:
        if commits > 5:
            with pytest.raises(StoreError, match="is not finished") as refusal:
                await place.open()
            assert (
                refusal.value.hint == "run the same `dragoman database copy` or `restore` again: it continues"
            )
        killed = True
    else:
        killed = False
    copy(source, place)
    assert contents(place) == contents(source)
    async with await place.open():
        return killed


async def test_a_copy_whose_process_is_killed_at_any_row_continues_with_equal_rows(
    tmp_path: Path,
) -> None:
    with empty_place("sqlite", tmp_path / "source") as source:
        async with await source.open() as store:
            await fill(store, *range(6))
        total = sum(map(len, contents(source).values()))
        for number in range(rounds(quick=1, thorough=12)):
            at = random.Random(number).randrange(total)
            with empty_place("postgres", tmp_path / f"target{number}", new=True) as target:
                assert target.url is not None
                command = [sys.executable, "-m", "tests.store.copy_process", f"sqlite:{source.folder}"]
                killed = await asyncio.to_thread(
                    subprocess.run, [*command, target.url, str(at)], cwd=ROOT, check=False
                )
                assert killed.returncode == -signal.SIGKILL
                report = copy(source, target)
                assert report.written == total - at + at % 3
                assert contents(target) == contents(source)
                assert digests(backend(target)) == digests(backend(source))


async def test_a_database_in_use_is_copied_at_one_moment_and_then_what_came_since(
    source: Place, target: Place
) -> None:
    class WritingProgress(Progress):
        """Writes to the source while it is copied."""

        wrote = False

        def advance(self, count: int) -> None:
            if not self.wrote:
                self.wrote = True
                asyncio.run_coroutine_threadsafe(converse(store, "more", session_id="new"), loop).result()

    loop = asyncio.get_running_loop()
    async with await source.open() as store:
        await converse(store, "one", "two", session_id="old")
        place = backend(target, exclusive=True)
        copying = DatabaseCopy(backend(source), place, source_name="s", progress=WritingProgress())
        report = await asyncio.to_thread(copying.run)
        place.release()
        assert report.rows["messages"] == 4
        assert (report.changed, report.new_rows) == (
            True,
            {"sessions": 1, "messages": 2, "runs": 1, "parts": 2, "hub_events": 3},
        )
        place = backend(target, exclusive=True)
        again = DatabaseCopy(backend(source), place, source_name="s", progress=QUIET)
        report = await asyncio.to_thread(again.run)
        place.release()
    assert (report.written, report.continued, report.changed, report.new_rows) == (9, True, False, {})
    assert contents(target) == contents(source)


@between_all_kinds
async def test_a_second_copy_writes_what_changed_and_deletes_what_is_gone(
    source: Place, target: Place
) -> None:
    async with await source.open() as store:
        await fill(store, *range(4))
        await converse(store, "one", "two", session_id="s")
        await store.runs.create(run("active", session_id="sessions-1"), assistant=assistant())
        copy(source, target)
        await store.sessions.update("s", title="changed")
        await store.session_deletion.delete("sessions-2")
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
    source: Place, target: Place
) -> None:
    for folder, name in ((source, "mine"), (target, "other")):
        async with await folder.open() as store:
            await store.sessions.create(session(name))
    with pytest.raises(Conflict, match="holds other data"):
        copy(source, target)
    assert [row[0] for row in contents(target)["sessions"]] == ["other"]
    copy(source, target, replace=True)
    assert contents(target) == contents(source)


async def test_a_copy_that_another_version_has_begun_says_so(source: Place, target: Place) -> None:
    async with await source.open(), await target.open():
        pass
    target.query("UPDATE alembic_version SET version_num = 'copying 0001'")
    with pytest.raises(
        StoreError, match="begun by a program of revision 0001, and this one copies"
    ) as refusal:
        copy(source, target)
    assert "a new, empty database" in str(refusal.value.hint)


@pytest.mark.parametrize("backend_name", ["sqlite", "postgres"])
async def test_a_database_is_not_copied_onto_itself_by_another_address(
    backend_name: BackendName, tmp_path: Path
) -> None:
    with empty_place(backend_name, tmp_path / "source") as place:
        async with await place.open() as store:
            await converse(store, "hello")
        (tmp_path / "same").mkdir()
        if place.url is None:
            (tmp_path / "same" / "hub.db").hardlink_to(place.folder / "hub.db")
            other = DatabaseLocation.of_folder(tmp_path / "same")
        else:
            other = DatabaseLocation.parse(f"{place.url}&keepalives_idle=7")
        before = contents(place)
        with pytest.raises(BadRequest, match="are the same database"):
            transfer(location(place), other, progress=QUIET, replace=True)
        assert contents(place) == before


async def test_a_copy_that_a_hub_has_used_since_is_not_overwritten(source: Place, target: Place) -> None:
    async with await source.open() as store:
        await store.sessions.create(session("mine"))
    copy(source, target)
    async with await target.open() as store:
        await store.sessions.create(session("later"))
    with pytest.raises(Conflict, match="was written to since the copy"):
        copy(source, target)
    assert len(contents(target)["sessions"]) == 2


async def test_a_target_in_use_or_a_source_of_another_revision_is_refused(
    source: Place, target: Place
) -> None:
    async with await source.open():
        pass
    async with await target.open():
        with pytest.raises(StoreError, match="is in use by"):
            copy(source, target)
    source.query("UPDATE alembic_version SET version_num = '0003'")
    with pytest.raises(StoreError, match="the source is of revision 0003") as refusal:
        copy(source, target)
    assert "database migrate" in str(refusal.value.hint)


async def test_a_copy_that_differs_fails(
    source: Place, target: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await source.open() as store:
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
        await target.open()


async def test_memory_holds_a_batch_however_large_the_rows_are(source: Place, target: Place) -> None:
    async with await source.open() as store:
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


async def test_a_digest_does_not_depend_on_the_order_and_tells_any_change(source: Place) -> None:
    async with await source.open() as store:
        await fill(store, *range(5))
    place = backend(source)
    changes = [
        "UPDATE parts SET body = body || ' ' WHERE position = 3",
        "UPDATE usage SET cost = 0.5 WHERE step = 1",
        "UPDATE usage SET estimated = NOT estimated",
        "UPDATE approvals SET state = NULL WHERE created_at < 1",
        "DELETE FROM budgets WHERE spent = 1",
    ]
    seen = {digests(place)}
    for change in changes:
        source.query(change)
        seen.add(digests(place))
    assert len(seen) == 1 + len(changes)


def digests(place: Backend) -> tuple[str, ...]:
    with snapshot(place) as connection:
        return tuple(
            str(read_digest(connection, row_statements(table, place), form=RowFormat(table)))
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
