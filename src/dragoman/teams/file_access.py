"""The folders that a team's file operations and commands reach: workspace, listed folders, rules, skills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dragoman.errors import CallError, ConfigError, DragomanError
from dragoman.operations.context import Context
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import TeamSpec
from dragoman.tools.files.protected_files import ProtectedFiles
from dragoman.tools.files.roots import Roots
from dragoman.tools.files.scope import FileScope, WriteGuard
from dragoman.tools.shell.sandbox import Mount, Sandbox, SandboxLimits
from dragoman.tools.shell.workplace import Workplace

WORKSPACE = "workspace"
READ_ONLY = ("rules", "skills")  # folders of a team that it sees and never writes
READ_ONLY_MARK = ":ro"
CONFIGURATION_NAMES = ("dragoman.yaml", "dragoman.yml", "team.yaml")


class TeamFolder(msgspec.Struct, frozen=True):
    """A folder that a team sees under a name."""

    name: str
    path: Path
    writable: bool


def team_folders(team: TeamSpec, teams_root: Path | None) -> Sequence[TeamFolder]:
    """Return the folders that a team sees, its workspace first, which is created.

    Raises ConfigError for a listed folder that is missing, takes another's name, or is a team's own.
    """
    team.workspace.mkdir(exist_ok=True)
    folders = [TeamFolder(WORKSPACE, team.workspace, writable=True)]
    present = [name for name in READ_ONLY if (team.folder / name).is_dir()]
    folders += [TeamFolder(name, team.folder / name, writable=False) for name in present]
    for name, text in team.folders.items():
        path = (team.folder / Path(text.removesuffix(READ_ONLY_MARK)).expanduser()).resolve()
        field = f"{team.folder}/team.yaml: folders.{name}"
        if name in (WORKSPACE, *READ_ONLY):
            raise ConfigError(f"{field}: the team has a folder of this name already")
        if teams_root is not None and path.is_relative_to(teams_root):
            raise ConfigError(
                f"{field}: {path} belongs to a team", hint="teams share through artifacts and results"
            )
        folders.append(TeamFolder(name, path, writable=not text.endswith(READ_ONLY_MARK)))
    return folders


class TeamFiles:
    """The files of each team. Callers without a team get the configured shared folders, if there are any."""

    def __init__(
        self,
        teams: TeamRegistry,
        *,
        shared: FileScope | None,
        private: Sequence[Path] = (),
        write_guards: Sequence[WriteGuard] = (),
    ) -> None:
        self._teams = teams
        self._shared = shared
        root = () if teams.root is None else (teams.root,)
        self._protected = ProtectedFiles([*root, *private], names=CONFIGURATION_NAMES)
        self._write_guards = write_guards
        self._scopes: dict[str, tuple[TeamSpec, FileScope]] = {}

    def scope(self, context: Context) -> FileScope:
        """Return the files of the caller. Raises CallError."""
        team = self._teams.team_of(context)
        if team is None:
            if self._shared is None:
                raise CallError(
                    "No folder is shared with callers that belong to no team.",
                    hint="Name one with `files` in dragoman.yaml.",
                )
            return self._shared
        cached = self._scopes.get(team.name)
        if cached is None or cached[0] is not team:
            cached = self._scopes[team.name] = (team, self._build(team))
        return cached[1]

    def _build(self, team: TeamSpec) -> FileScope:
        try:
            folders = team_folders(team, self._teams.root)
            return FileScope(
                Roots(folders={folder.name: folder.path for folder in folders}),
                writable=[folder.name for folder in folders if folder.writable],
                protected=self._protected,
                write_guard=self._check_text,
            )
        except (DragomanError, OSError) as error:
            raise folder_error(team, error) from None

    async def _check_text(self, text: str, context: Context) -> None:
        for check in self._write_guards:
            await check(text, context)


class TeamWorkplaces:
    """Where the commands of each team run. Without a sandbox they run with the rights of the hub itself."""

    def __init__(self, teams: TeamRegistry, sandbox: Sandbox | None) -> None:
        self._teams = teams
        self._sandbox = sandbox

    async def workplace(self, context: Context) -> Workplace:
        """Return where the caller's commands run. Raises CallError."""
        team = self._teams.calling_team(context)
        if self._sandbox is not None:
            await self._sandbox.check()
        try:
            folders = team_folders(team, self._teams.root)
        except (DragomanError, OSError) as error:
            raise folder_error(team, error) from None
        return Workplace(
            mounts=[
                Mount(folder.name, folder.path, writable=folder.name == WORKSPACE, git=team.shell.git)
                for folder in folders
            ],
            limits=SandboxLimits(memory=team.shell.memory, network=team.shell.network),
            seconds=team.shell.timeout,
            sandbox=self._sandbox,
        )


def folder_error(team: TeamSpec, error: Exception) -> CallError:
    """Return the error of a call of a team whose folders cannot be used."""
    reason = error.message if isinstance(error, DragomanError) else type(error).__name__
    return CallError(
        f"The folders of the team {team.name!r} cannot be used: {reason}.",
        hint=error.hint if isinstance(error, DragomanError) else None,
    )
