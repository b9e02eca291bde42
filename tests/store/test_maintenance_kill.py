"""`kill -9` of `dragoman database backup`, `restore` and `copy` before each of their steps."""

from __future__ import annotations

import random
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman.errors import Conflict
from dragoman.store.maintenance.backup import back_up, restore
from dragoman.store.maintenance.data_folder_copy import transfer
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.progress import Progress
from dragoman.store.maintenance.row_batches import TABLES, RowFormat, row_statements
from dragoman.store.maintenance.transactions import snapshot
from dragoman.store.schema import UnfinishedCopy
from dragoman.store.store import Store
from tests.databases import BackendName
from tests.effort import PROFILE
from tests.store.filled import fill
from tests.store.killed import is_killed
from tests.store.places import Place, empty_place
from tests.store.samples import session

pytestmark = pytest.mark.usefixtures("patient_locks")
Contents = Mapping[str, list[Any]]
KEY, FORMER_KEY = b"the key of the source", b"the former key"
SPOOLS = {"usage.spool": b"waits\n", "answers.spool/r1.json": b"{}"}
FORMER_SPOOLS = {
    "usage.spool": b"waited\n",
    "usage.spool.replayed": b"half\n",
    "answers.spool/r0.json": b"{}",
    "hosts/2/usage.spool": b"of another host\n",
}
OF_A_HUB = {"hub.db", "hub.db-wal", "hub.db-shm", "hub.key", "hub.lock", "answers.spool", "hosts", *SPOOLS}


class Case(NamedTuple):
    """A command with the kinds of its databases; `on_former`: the target holds those of another hub."""

    command: str
    source: BackendName
    target: BackendName
    on_former: bool
    steps: int
    """How many steps it has, about."""

    def __str__(self) -> str:
        kind = "-former" if self.on_former else ""
        return f"{self.command}-{self.source}-{self.target}{kind}"

    def kills(self) -> Iterable[int]:
        """The steps before which it is killed: in `make test` some, of which one is among the last."""
        chance = random.Random(str(self))
        last = self.steps - 1 - chance.randrange(min(self.steps, 14))
        some = [last, chance.randrange(self.steps)]
        if {self.source, self.target} != {"sqlite"}:
            some = some[:1]
        return count() if PROFILE == "thorough" else some


CASES = [
    Case("backup", "sqlite", "sqlite", on_former=False, steps=7),
    Case("backup", "postgres", "sqlite", on_former=False, steps=143),
    Case("restore", "sqlite", "sqlite", on_former=False, steps=25),
    Case("restore", "sqlite", "sqlite", on_former=True, steps=34),
    Case("restore", "sqlite", "postgres", on_former=False, steps=277),
    Case("restore", "sqlite", "postgres", on_former=True, steps=368),
    Case("copy", "sqlite", "sqlite", on_former=True, steps=195),
    Case("copy", "sqlite", "postgres", on_former=True, steps=342),
    Case("copy", "postgres", "sqlite", on_former=False, steps=139),
]


class Scene:
    """The source of a case, and the target as it was before the command."""

    def __init__(self, case: Case, folder: Path, source: Place) -> None:
        self.case = case
        self.folder = folder
        self.source = source
        self.file = folder / "hub.backup"
        self.former: Contents = {}
        self.former_key = (KEY if case.command == "copy" else FORMER_KEY) if case.on_former else None

    async def make(self) -> None:
        async with await self.source.open() as store:
            await fill(store, 0)
        write_files(self.source.folder, {"hub.key": KEY, **SPOOLS})
        if self.case.command == "restore":
            back_up(location(self.source), self.file, progress=Progress())
        if self.case.on_former:
            async with await Store.open(self.folder / "former") as store:
                await store.sessions.create(session("former"))
            self.former = contents(Place(self.folder / "former"))

    @contextmanager
    def target(self, name: str) -> Iterator[Place]:
        """The target, as it was."""
        with empty_place(self.case.target, self.folder / name, new=True) as place:
            if self.former and place.url is None:
                shutil.copytree(self.folder / "former", place.folder)
            elif self.former:
                transfer(
                    DatabaseLocation.of_folder(self.folder / "former"), location(place), progress=Progress()
                )
            if self.former_key is not None:
                write_files(place.folder, {"hub.key": self.former_key, **FORMER_SPOOLS})
            yield place

    def command(self, target: Place) -> Callable[[], object]:
        """What is killed."""
        replace = self.case.on_former
        match self.case.command:
            case "backup":
                return partial(back_up, location(self.source), target.folder / "b.db", progress=Progress())
            case "restore":
                return partial(restore, self.file, location(target), progress=Progress(), replace=replace)
            case _:
                places = location(self.source), location(target)
                return partial(transfer, *places, progress=Progress(), replace=replace)


def location(place: Place) -> DatabaseLocation:
    if place.url is None:
        return DatabaseLocation.of_folder(place.folder)
    return DatabaseLocation.parse(place.url, folder=place.folder)


def write_files(folder: Path, bodies: Mapping[str, bytes]) -> None:
    for name, body in bodies.items():
        path = folder / name
        for parent in reversed(path.relative_to(folder).parents):
            (folder / parent).mkdir(exist_ok=True, mode=0o700)
        path.write_bytes(body)
        path.chmod(0o600)


def read_files(folder: Path) -> Mapping[str, bytes]:
    """The key and the spools of a data folder."""
    names = {"hub.key", *SPOOLS, *FORMER_SPOOLS}
    return {name: path.read_bytes() for name in names if (path := folder / name).exists()}


def contents(place: Place) -> Contents:
    """All rows of a database."""
    backend, found = location(place).backend(exclusive=False), {}
    with snapshot(backend) as connection:
        for table in TABLES:
            batches = row_statements(table, backend).batches(connection)
            found[str(table.name)] = [RowFormat(table).apply(row) for batch in batches for row in batch]
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_command_that_is_killed_before_any_step_is_run_again(case: Case, tmp_path: Path) -> None:
    with empty_place(case.source, tmp_path / "source") as source:
        scene = Scene(case, tmp_path, source)
        await scene.make()
        wanted = contents(source)
        was_killed = False
        for at in case.kills():
            with scene.target(f"target{at}") as target:
                target.folder.mkdir(exist_ok=True)
                killed = is_killed(scene.command(target), at=at, below=target.folder)
                assert contents(source) == wanted
                check = check_backup if case.command == "backup" else check_database
                check(scene, target, wanted=wanted, killed=killed)
            if not killed:
                break
            was_killed = True
        assert was_killed


def check_database(scene: Scene, target: Place, *, wanted: Contents, killed: bool) -> None:
    """The database is as it was, or refused, or as it shall be; and so it is after the same command."""
    found = contents(target) if is_accepted(target) else None
    assert killed or found == wanted
    if found is not None and found != wanted:
        assert found == scene.former or not any([*found.values(), *scene.former.values()])
        key = read_files(target.folder).get("hub.key")
        assert key == scene.former_key
    try:
        scene.command(target)()
    except Conflict:
        assert found == wanted
        assert not scene.case.on_former
    assert is_accepted(target)
    assert contents(target) == wanted
    if target.url is None:
        assert {path.name for path in target.folder.iterdir() if ".replaced-" not in path.name} <= OF_A_HUB
    if scene.case.command == "restore" or scene.case.source == scene.case.target == "sqlite":
        check_folder(scene, target)


def is_accepted(target: Place) -> bool:
    """Whether a hub starts on the database; if not, it says what to do. One that is not there is made."""
    backend = location(target).backend(exclusive=True)
    try:
        backend.prepare()
    except UnfinishedCopy:
        return False
    finally:
        backend.release()
    return True


def check_folder(scene: Scene, target: Place) -> None:
    """The folder has the files of the source, and the former ones beside them, for its user only."""
    folder = target.folder
    assert read_files(folder) == {"hub.key": KEY, **SPOOLS}
    if scene.case.on_former:
        check_former(scene, folder)
    names = {path.name for path in folder.iterdir() if ".replaced-" not in path.name}
    assert names <= OF_A_HUB
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert modes <= {0o700, 0o600}


def check_former(scene: Scene, folder: Path) -> None:
    """What the folder had before is beside what it has now."""
    moved = {
        path.relative_to(place).as_posix(): path.read_bytes()
        for place in folder.glob("spools.replaced-*")
        for path in place.rglob("*")
        if path.is_file()
    }
    same = {name for name, body in SPOOLS.items() if FORMER_SPOOLS.get(name) == body}
    assert moved == {name: body for name, body in FORMER_SPOOLS.items() if name not in same}
    keys = {path.read_bytes() for path in folder.glob("hub.key.replaced-*")}
    assert keys == ({FORMER_KEY} if scene.case.command == "restore" else set())


def check_backup(scene: Scene, target: Place, *, wanted: Contents, killed: bool) -> None:
    """The backup is not there, or is complete; and so it is after the same command."""
    file = target.folder / "b.db"
    was_there = file.exists()
    assert was_there or killed
    try:
        scene.command(target)()
    except Conflict:
        assert was_there
    assert {path.name for path in target.folder.iterdir()} == {"b.db"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    restored = Place(target.folder / "restored")
    restore(file, location(restored), progress=Progress())
    assert contents(restored) == wanted
    assert read_files(restored.folder) == {"hub.key": KEY, **SPOOLS}
