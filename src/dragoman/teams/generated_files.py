"""Files that the hub writes for agents, after an approval: `generated/` of a team, and of all teams.

People own every other file in the folder of a team; the hub owns these. The caller must have the approval.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from dragoman.errors import BadRequest, ConfigError, Conflict, TooLarge
from dragoman.ids import new_id
from dragoman.teams.folder import RULES
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import GENERATED, TEAM_FILE, check_team_name

MAX_GENERATED = 256_000  # bytes of one file
MAX_PARTS = 4  # folders and the file


class GeneratedFiles:
    """Writes and removes files below `generated/`. The teams are read again after each change."""

    def __init__(self, teams: TeamRegistry) -> None:
        self._teams = teams

    def path(self, team: str, path: str) -> Path:
        """Return the path of a file in `generated/` of a team. Raises NotFound, BadRequest."""
        folder = self._teams.get(team).folder / GENERATED
        parts = PurePosixPath(path).parts
        if not parts or len(parts) > MAX_PARTS or not all(map(is_plain_name, parts)):
            raise BadRequest(
                f"{path[:200]!r} is not a path below {GENERATED}/: use plain names", field="path"
            )
        found = folder.joinpath(*parts)
        if not found.resolve().is_relative_to(folder.parent.resolve() / GENERATED):
            raise BadRequest(f"{path[:200]!r} leads out of {GENERATED}/ through a link", field="path")
        return found

    def write(self, team: str, path: str, *, content: str) -> Path:
        """Write a file in `generated/` of a team, whole. Raises NotFound, BadRequest, TooLarge."""
        found = self.path(team, path)
        write_whole(found, content)
        self._teams.reload()
        return found

    def remove(self, team: str, path: str) -> None:
        """Remove a file or folder in `generated/` of a team, if it is there."""
        remove_all(self.path(team, path))
        self._teams.reload()

    def has_team(self, name: str, *, content: str) -> bool:
        """Return whether a team was generated from just this `team.yaml`."""
        found = self._teams.find(name)
        if found is None or found.folder.parent.name != GENERATED:
            return False
        return (found.folder / TEAM_FILE).read_text(encoding="utf-8") == content

    def check_team(self, name: str, *, content: str) -> Path:
        """Return the folder of a team that could be created. Raises ConfigError, Conflict, BadRequest."""
        check_team_name(name)
        if self._teams.root is None:
            raise Conflict("this hub has no folder of teams", hint="set `teams: FOLDER` in dragoman.yaml")
        self._teams.reload()
        if self._teams.find(name) is not None:
            raise Conflict(f"there is a team {name!r} already")
        with TemporaryDirectory() as folder:
            file = Path(folder, TEAM_FILE)
            write_whole(file, content)
            try:
                self._teams.check_entry(name, file)
            except ConfigError as error:
                problem = error.message.replace(f"{file}: ", "")
                raise BadRequest(f"the team cannot be created: {problem}") from None
        return self._teams.root / GENERATED / name

    def create_team(self, name: str, *, content: str, files: Mapping[str, str] | None = None) -> Path:
        """Write the `team.yaml` of a new team, and further files by path below its folder, before that.

        Raises ConfigError, Conflict, BadRequest; then nothing is written.
        """
        folder = self.check_team(name, content=content)
        shutil.rmtree(folder / RULES, ignore_errors=True)  # left by a hub that was killed before team.yaml
        for path, text in (files or {}).items():
            write_whole(folder / path, text)
        write_whole(folder / TEAM_FILE, content)
        if not self._teams.reload() and self._teams.find(name) is None:
            problem = self._teams.problems[0]
            shutil.rmtree(folder)
            self._teams.reload()
            raise BadRequest(f"the team cannot be created: {problem}")
        return folder

    def check_generated(self, names: Sequence[str]) -> None:
        """Raise Conflict for a team that people wrote."""
        for spec in map(self._teams.get, names):
            if spec.folder.parent.name != GENERATED:
                raise Conflict(
                    f"the team {spec.name!r} was written by people",
                    hint="a person removes it: dragoman teams remove",
                )

    def remove_team(self, name: str) -> None:
        """Remove a team that was generated, with its workspace. Raises Conflict for one that people wrote."""
        self.check_generated([name])
        with suppress(FileNotFoundError):  # another process with this folder removes it, too
            shutil.rmtree(self._teams.get(name).folder)
        self._teams.reload()


def is_plain_name(part: str) -> bool:
    """Return whether a part of a path is a file's name of ordinary characters, not hidden."""
    return (
        part.isascii()
        and part.replace("-", "").replace("_", "").replace(".", "").isalnum()
        and part[0] != "."
    )


def write_whole(path: Path, content: str) -> None:
    """Write a file atomically: under a temporary name that is then replaced. Raises TooLarge."""
    raw = content.encode()
    if len(raw) > MAX_GENERATED:
        raise TooLarge(f"{len(raw)} bytes are too many for {path.name}; the limit is {MAX_GENERATED}")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}.{new_id('tmp')}")
    with written.open("xb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


def remove_all(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
