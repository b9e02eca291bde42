"""Generated files of teams at all hosts: what one host writes for an agent, the others write too.

Where hosts with folders of their own share a database, the database is authoritative for generated files: a
change is stored there first, and each host, soon after a signal, updates its own folder. Plugins have their
own rows (`plugins/store.py`). Where one process has the database to itself, only its folder counts.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from dragoman.errors import DragomanError, StoreError, Unavailable
from dragoman.store.hosts.signals import Wakeup
from dragoman.store.teams.generated_files import (
    REMOVED,
    GeneratedFileRepository,
    hash_content,
)
from dragoman.teams.folder import ACCEPTS_FILE, RULES
from dragoman.teams.generated_files import GeneratedFiles, is_plain_name, write_whole
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.skill_files import SKILLS
from dragoman.teams.spec import GENERATED, TEAM_FILE

log = logging.getLogger(__name__)
FOLLOW_INTERVAL = 30.0  # seconds between two refreshes, in case a signal was lost
MAX_PARTS = 8  # folders and the file


class SharedFiles:
    """Writes generated files, here and, through the database, at the other hosts.

    `local` are the files of this host; `store` is None where no others share the database.
    """

    def __init__(self, teams: TeamRegistry, store: GeneratedFileRepository | None) -> None:
        self.local = GeneratedFiles(teams)
        self._teams = teams
        self._root = teams.root or Path()
        self._store = None if teams.root is None else store
        self._current: dict[str, str] = {}
        """The hashes of the files as this host has written or found them."""
        self._has_stored_own = False
        self._refused: dict[str, str] = {}
        """Why teams of other hosts are left out here, by folder."""

    async def write(self, team: str, files: Mapping[str, str]) -> None:
        """Write files in `generated/` of a team, in this order. Raises NotFound, BadRequest, TooLarge."""
        places = {path: self.local.path(team, path) for path in files}
        await self._put({places[path]: content for path, content in files.items()})
        for path, content in files.items():
            await asyncio.to_thread(self.local.write, team, path, content=content)

    async def create_team(self, name: str, *, content: str, files: Mapping[str, str]) -> None:
        """Write the files of a new team; files that are there already are sent to the other hosts again.

        Raises ConfigError, Conflict, BadRequest; then nothing is written.
        """
        if not self.local.has_team(name, content=content):
            self.local.create_team(name, content=content, files=files)
        folder = self._teams.get(name).folder
        await self._put({folder / path: text for path, text in {**files, TEAM_FILE: content}.items()})

    async def remove_team(self, name: str) -> None:
        """Remove a team that was generated, with its workspace. Raises Conflict for one that people wrote."""
        self.local.check_generated([name])
        if self._store is not None:
            await self._store.remove_below(self._stored_path(self._teams.get(name).folder))
        self.local.remove_team(name)

    async def follow(self, wakeup: Wakeup) -> None:
        """Apply the changes of other hosts after each wake-up, until cancelled."""
        while True:
            await wakeup.wait(FOLLOW_INTERVAL)
            with suppress(StoreError, Unavailable):
                await self.refresh()

    async def refresh(self) -> None:
        """Make the folder agree with the database. Raises StoreError, Unavailable.

        The first time, files are stored that only this host has: it may have had a database of its own.
        """
        store = self._store
        if store is None:
            return
        if not self._has_stored_own:
            await store.add(await asyncio.to_thread(self._read_own))
            self._has_stored_own = True
        versions = await store.list()
        changed = [each for each in versions if self._current.get(each.path) != each.hash]
        folders: dict[str, None] = dict.fromkeys(folder_of(each.path) for each in changed)
        for folder in folders:  # parents before the teams below them
            paths = [each.path for each in changed if folder_of(each.path) == folder]
            await self._refresh_folder(folder, await store.read(paths))

    async def _refresh_folder(self, folder: str, contents: Mapping[str, str | None]) -> None:
        """Write and remove changed files in the folder of one team."""
        problem = self._problem(folder, contents)
        if problem is not None:
            if self._refused.get(folder) != problem:
                log.warning("the generated files of %s are left out at this host: %s", folder, problem)
            self._refused[folder] = problem
            return
        self._refused.pop(folder, None)
        try:
            await asyncio.to_thread(self._apply, folder, contents)
        except OSError as error:
            log.warning("the generated files of %s cannot be written: %s", folder, error)
            return
        self._current.update(hashes_of(contents))
        self._teams.reload()

    def _problem(self, folder: str, contents: Mapping[str, str | None]) -> str | None:
        """Return why this host cannot have these files, such as a team of the same name; None if it can."""
        if not all(map(is_plain_path, contents)):
            return "a path is not valid"
        name = PurePosixPath(folder).name
        team, is_generated = self._teams.find(name), folder.startswith(f"{GENERATED}/")
        if not is_generated:
            return None if team is not None else f"there is no team {name!r}"
        if team is not None:
            is_written = team.folder.parent.name != GENERATED
            return f"people wrote a team {name!r} here" if is_written else None
        content = contents.get(f"{folder}/{TEAM_FILE}")
        if content is None:
            return None
        try:
            self.local.check_team(name, content=content)
        except DragomanError as error:
            return error.message
        return None

    def _apply(self, folder: str, contents: Mapping[str, str | None]) -> None:
        """Write files that differ, the team's file last: it makes a folder a team; remove the others."""
        root = self._root
        team_file = f"{folder}/{TEAM_FILE}"
        if team_file in contents and contents[team_file] is None:
            shutil.rmtree(root / folder, ignore_errors=True)
        for path in sorted(contents, key=lambda each: (each == team_file, each)):
            content, place = contents[path], root / path
            if not place.resolve().is_relative_to(root / folder):
                raise OSError(f"{path} leads out of its folder through a link")
            if content is None:
                place.unlink(missing_ok=True)
            elif read_text(place) != content:
                write_whole(place, content)

    def _stored_path(self, place: Path) -> str:
        return place.relative_to(self._root).as_posix()

    async def _put(self, files: Mapping[Path, str]) -> None:
        if self._store is None:
            return
        stored = {self._stored_path(place): content for place, content in files.items()}
        await self._store.put(stored)
        self._current.update(hashes_of(stored))

    def _read_own(self) -> dict[str, str]:
        """Return the generated files of this host."""
        return {
            self._stored_path(place): content
            for name in self._teams.names()
            for place in generated_places(self._teams.get(name).folder)
            if (content := read_text(place)) is not None and is_plain_path(self._stored_path(place))
        }


def generated_places(folder: Path) -> Iterator[Path]:
    """Yield the files that the hub has written in the folder of a team, except plugins."""
    if folder.parent.name == GENERATED:
        yield folder / TEAM_FILE
        yield from files_below(folder / RULES)
    yield folder / GENERATED / ACCEPTS_FILE
    yield from files_below(folder / GENERATED / SKILLS)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without links."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def folder_of(path: str) -> str:
    """Return the folder of the team that a stored path is in."""
    parts = PurePosixPath(path).parts
    return "/".join(parts[: 2 if parts[0] == GENERATED else 1])


def is_plain_path(path: str) -> bool:
    """Return whether a stored path is one of a generated file."""
    parts = PurePosixPath(path).parts
    return 3 <= len(parts) <= MAX_PARTS and GENERATED in parts[:2] and all(map(is_plain_name, parts))


def read_text(place: Path) -> str | None:
    """Return the text of a file; None when there is none."""
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def hashes_of(contents: Mapping[str, str | None]) -> dict[str, str]:
    """Return the hash of each content as it is stored."""
    return {path: REMOVED if content is None else hash_content(content) for path, content in contents.items()}
