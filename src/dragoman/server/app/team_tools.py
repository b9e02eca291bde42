"""Wires the tools of teams: their files, and commands in a sandbox."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from dragoman.agent.hooks.events import RunEnd
from dragoman.agent.hooks.guards.destructive_commands import confirm_destructive
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.run_end import WAITING
from dragoman.config import Config
from dragoman.errors import StoreError, Unavailable
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.registry import Registry
from dragoman.server.app.background_jobs import run_in_background
from dragoman.server.app.operation_setup import file_folders, web_settings
from dragoman.server.app.teams import TeamServices, teams_folder
from dragoman.store.hosts.signals import Wakeup
from dragoman.store.store import Store
from dragoman.teams.browser.browsers import TeamBrowsers
from dragoman.teams.browser.operations import BrowserOperations
from dragoman.teams.browser.playwright_server import BrowserSettings
from dragoman.teams.file_access import TeamFiles, TeamWorkplaces
from dragoman.teams.openhive_aliases import ALIASES
from dragoman.teams.plugins.operations import plugin_operations
from dragoman.teams.plugins.service import Plugins
from dragoman.teams.skills.additions import SkillAdditions
from dragoman.teams.skills.operations import SkillServices
from dragoman.teams.skills.sources import SkillRepositories, SkillSources
from dragoman.tools.files.operations import reading_operations
from dragoman.tools.files.roots import Roots
from dragoman.tools.files.scope import FileScope
from dragoman.tools.files.scoped_operations import finding_operations, writing_operations
from dragoman.tools.shell.background import BackgroundCommands
from dragoman.tools.shell.operations import shell_operations
from dragoman.tools.shell.sandbox import Sandbox
from dragoman.tools.web import operations as web_operations
from dragoman.tools.web.host_policy import WebSettings

log = logging.getLogger(__name__)
HIDDEN_FILES = ("dragoman.yaml", "dragoman.yml", ".env")
"""Files with secrets beside the teams and in the hub's working folder."""


class ToolServices(msgspec.Struct, frozen=True):
    """The services that the tools of teams are built from."""

    teams: TeamServices
    store: Store
    registry: Registry


class TeamTools:
    """The tools that only teams have: created before the hooks are used, registered once teams are open."""

    def __init__(self, config: Config, hooks: Hooks, *, stack: AsyncExitStack) -> None:
        self._config = config
        self._stack = stack
        self._hooks = hooks
        self._follows_runs = False
        self._background = BackgroundCommands(on_start=self._follow_runs)
        self._browsers: TeamBrowsers | None = None
        self._has_teams = teams_folder(config) is not None
        if self._has_teams and config.shell != "off":
            guard = confirm_destructive()
            hooks.on("pre_tool_use", guard, name="confirm_destructive", match=("shell.run",))
            stack.push_async_callback(self._background.close)
        elif self._has_teams:
            self._follow_runs()

    def _follow_runs(self) -> None:
        """Add the hooks at the ends of runs, once there is something to close at the end of a run."""
        if not self._follows_runs:
            self._follows_runs = True
            self._hooks.on("run_end", self._end_browsers, name="end_browsers")
            self._hooks.on("run_end", self._end_commands, name="end_commands")

    async def open(self, services: ToolServices, *, access: AccessControl) -> None:
        """Register the operations. The file operations of the hub become those of teams, too."""
        if not self._has_teams:
            return
        registry, teams = services.registry, services.teams
        registry.aliases = ALIASES
        for operation in (
            *self._files(services),
            *self._shell(teams, services.store.folder),
            *self._web(teams),
        ):
            if operation.id in {each.id for each in registry.list(operation.namespace)}:
                registry.remove(operation.id)
            registry.add(operation)
        for operation in (*self._skills(teams), *self._browser(teams)):
            registry.add(operation)
        await self._share_files(services)
        await self._open_plugins(services, access)

    async def _share_files(self, services: ToolServices) -> None:
        """Write the generated files of other hosts here, now and after each later change."""
        if services.store.host_id is None:
            return
        files, wakeup = services.teams.files, Wakeup()
        services.store.signals.subscribe("teams", wakeup.wake)
        try:
            await files.refresh()
        except (StoreError, Unavailable) as error:
            log.warning("generated files of other hosts are not available yet: %s", error.message)
        self._stack.enter_context(run_in_background(partial(files.follow, wakeup)))

    async def _open_plugins(self, services: ToolServices, access: AccessControl) -> None:
        """Register the operations over plugins, and the active plugins."""
        teams = services.teams.registry
        plugins = Plugins(
            teams,
            services.teams.plugin_store,
            registry=services.registry,
            sandbox=self._sandbox(services.teams, services.store.folder),
            declared_tools=services.teams.active_skills.declared,
        )
        self._stack.push_async_callback(plugins.close)
        access.restrictions.append(plugins.restrict)
        for operation in plugin_operations(plugins, teams):
            services.registry.add(operation)
        is_shared = services.store.host_id is not None
        if is_shared:
            wakeup = Wakeup()
            services.store.signals.subscribe("definitions", wakeup.wake)
            self._stack.enter_context(run_in_background(partial(plugins.follow, wakeup)))
        try:
            await (plugins.refresh() if is_shared else plugins.load())
        except Unavailable as error:
            log.warning("plugins of teams are not available before the next start: %s", error.message)

    def _browser(self, teams: TeamServices) -> Sequence[Operation]:
        """Return the operations of browsers."""
        config = self._config.browser
        settings = BrowserSettings(
            command=config.command, executable=config.executable, sandbox=config.sandbox
        )
        web = web_settings(self._config) or WebSettings()
        self._browsers = TeamBrowsers(teams.registry, settings, web=web, on_use=self._follow_runs)
        self._stack.push_async_callback(self._browsers.close)
        return BrowserOperations(self._browsers).all()

    def _skills(self, teams: TeamServices) -> Sequence[Operation]:
        """Return the operations of skills."""
        config = self._config.skills
        sources = SkillSources(
            folders={name: Path(folder).expanduser().resolve() for name, folder in config.folders.items()},
            index=config.index,
            content=config.content.rstrip("/"),
        )
        repositories = SkillRepositories(sources, web=web_settings(self._config) or WebSettings())
        additions = SkillAdditions(teams.registry, repositories, files=teams.files)
        return SkillServices(
            teams.registry, teams.active_skills, repositories=repositories, additions=additions
        ).all()

    def _files(self, services: ToolServices) -> Sequence[Operation]:
        teams, data = services.teams, services.store.folder
        root, folders = file_folders(self._config)
        shared = FileScope(Roots(root, folders)) if root or folders else None
        files = TeamFiles(
            teams.registry, shared=shared, private=[data.resolve()], write_guards=teams.write_guards
        )
        reading = reading_operations(files, identity_aware=True)
        return [*reading, *writing_operations(files), *finding_operations(files)]

    def _web(self, teams: TeamServices) -> Sequence[Operation]:
        """Return the operations of the web, with the rates of each team before those of the hub."""
        settings = web_settings(self._config)
        if settings is None:
            return ()

        def rates_of(context: Context) -> tuple[str, Mapping[str, str]]:
            team = teams.registry.team_of(context)
            return ("", settings.rates) if team is None else (team.name, {**settings.rates, **team.rates})

        return web_operations.operations(settings, rates=rates_of)

    def _shell(self, teams: TeamServices, data: Path) -> Sequence[Operation]:
        if self._config.shell == "off":
            return ()
        sandbox = None if self._config.shell == "unsafe" else self._sandbox(teams, data)
        return shell_operations(TeamWorkplaces(teams.registry, sandbox), self._background)

    def _sandbox(self, teams: TeamServices, data: Path) -> Sandbox:
        """Return the sandbox of commands, which see neither the hub's data and settings nor other teams."""
        root = teams.registry.root
        folders = [Path.cwd(), *([] if root is None else [root.parent])]
        files = [folder / name for folder in folders for name in HIDDEN_FILES]
        return Sandbox(hidden=[data, *files, *([] if root is None else [root])])

    async def _end_browsers(self, event: RunEnd) -> None:
        """Close the browsers of a run that has ended; those of one that waits for a person stay."""
        if event.run_id is not None and self._browsers is not None and event.reason != WAITING.reason:
            await self._browsers.end_run(event.run_id, event.agent)

    async def _end_commands(self, event: RunEnd) -> None:
        """End the background commands of a run that has ended."""
        if event.run_id is not None:
            await self._background.end_run(event.run_id)
