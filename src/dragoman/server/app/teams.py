"""Wires the teams of a hub: their folder, their agents, what they may call, their sub-agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.agent.spec import AgentSpec
from dragoman.config import Config, read_section
from dragoman.errors import ConfigError
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.runs.agent_operations import AgentOperations
from dragoman.server.app.agents import context_size_lookup
from dragoman.store.store import Store
from dragoman.teams.allowed_tools import AllowedTools
from dragoman.teams.folder import SubagentFile
from dragoman.teams.generated_files_sync import SharedFiles
from dragoman.teams.plugins.store import PluginStore
from dragoman.teams.prompt import build_prompt
from dragoman.teams.registry import SUBAGENT_SEPARATOR, TeamRegistry
from dragoman.teams.skills.active import ActiveSkills
from dragoman.teams.spec import TeamFile, TeamSpec
from dragoman.teams.tool_patterns import exact_ids, is_allowed
from dragoman.tools.files.scope import WriteGuard

TeamBriefing: TypeAlias = Callable[[TeamSpec, Context], Awaitable[str]]
DEFAULT_FOLDER = Path("teams")


class TeamServices(msgspec.Struct, frozen=True, kw_only=True):
    """What the operations of teams share in one hub."""

    registry: TeamRegistry
    briefings: list[TeamBriefing] = msgspec.field(default_factory=list)
    """Texts before the user's message in a run of a team: each function returns one, or "" for nothing."""
    write_guards: list[WriteGuard] = msgspec.field(default_factory=list)
    """Checks before a text is written to a file; each may raise Forbidden."""
    active_skills: ActiveSkills
    """The skills that each run has loaded: they declare the plugins that it may call."""
    plugin_store: PluginStore
    files: SharedFiles
    """The files that are written for agents of the teams."""

    @classmethod
    def open(
        cls, config: Config, store: Store, *, environ: Mapping[str, str], access: AccessControl
    ) -> TeamServices:
        """Read the teams of a configuration, and restrict them to what they may call. ConfigError."""
        registry = TeamRegistry(teams_folder(config), lambda path: read_team_file(path, environ))
        skills = ActiveSkills(registry, store.calls)
        allowed_tools = AllowedTools(registry)
        access.restrictions += [allowed_tools, skills.restrict]
        if registry.root is not None:
            access.refreshers.append(allowed_tools.refresh)
        registry.load()
        check_names(config, registry)
        return cls(
            registry=registry,
            active_skills=skills,
            plugin_store=PluginStore(store.definition_pins),
            files=SharedFiles(registry, None if store.host_id is None else store.generated_files),
        )

    async def brief(self, context: Context) -> str:
        """Return the text before the user's message in a run of a team's agent."""
        team = self.registry.team_of(context)
        texts = [] if team is None else [await briefing(team, context) for briefing in self.briefings]
        return "\n\n".join(text for text in texts if text)


def check_names(config: Config, teams: TeamRegistry) -> None:
    """Raise ConfigError for an agent of the configuration that is named like a team."""
    for name in teams.names():
        if name in config.agents:
            raise ConfigError(
                f"agents.{name}: there is a team of this name in {teams.root}", hint="rename one of them"
            )


def subagent_operations(teams: TeamRegistry, agents: AgentOperations) -> Sequence[Operation]:
    """Return the sub-agents of all teams as operations, `TEAM.SUBAGENT`."""
    return [
        replace(
            agents.operation(subagent_name(name, file), description=file.description),
            namespace=name,
            name=file.name,
        )
        for name in teams.names()
        for file in teams.sources(name).subagents
    ]


def subagent_name(team: str, file: SubagentFile) -> str:
    """Return the name of a sub-agent among the agents of the hub."""
    return f"{team}{SUBAGENT_SEPARATOR}{file.name}"


def teams_folder(config: Config) -> Path | None:
    """Return the folder of the teams: as configured, else `./teams` if it is there."""
    if config.teams is not None:
        return Path(config.teams).expanduser()
    return DEFAULT_FOLDER if DEFAULT_FOLDER.is_dir() else None


def read_team_file(path: Path, environ: Mapping[str, str]) -> TeamFile:
    """Read a `team.yaml`. Raises ConfigError with the line of every problem."""
    return read_section(path, TeamFile, environ=environ)


class HubAgents(Mapping[str, AgentSpec]):
    """The agents of a configuration, and those of the teams as their files are now."""

    def __init__(self, agents: Mapping[str, AgentSpec], teams: TeamServices, *, config: Config) -> None:
        self._agents = agents
        self._services = teams
        self._teams = teams.registry
        self._config = config
        self._built: dict[str, AgentSpec] = {}
        self._version = self._teams.version

    def __getitem__(self, name: str) -> AgentSpec:
        if name in self._agents:
            return self._agents[name]
        self._teams.reload(name.partition(SUBAGENT_SEPARATOR)[0])
        if self._version != self._teams.version:
            self._built.clear()
            self._version = self._teams.version
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._agents
        yield from (name for name in self._teams.names() if name not in self._agents)

    def __len__(self) -> int:
        return len({*self._agents, *self._teams.names()})

    def _build(self, name: str) -> AgentSpec:
        """Return the agent of a team or sub-agent. Raises KeyError."""
        team = self._teams.team_of_agent(name)
        if team is None:
            raise KeyError(name)
        _, separator, below = name.partition(SUBAGENT_SEPARATOR)
        if not separator:
            return team_agent(self._services, team, config=self._config)
        files = {file.name: file for file in self._teams.sources(team.name).subagents}
        return team_agent(self._services, team, config=self._config, subagent=files[below])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None


def describe_team(team: TeamSpec) -> str:
    """Return the description of a team that other agents see."""
    return team.description or f"The team {team.name}."


def is_shown(team: TeamSpec, id: str) -> bool:
    """Return whether an operation that is allowed by its id is a tool from the beginning of each run.

    Plugins, and what needs a skill, are callable after a skill is loaded only: the tools do not change then.
    """
    return id.partition(".")[0] != team.name and not is_allowed(team.needs_skill, id)


def shown_operations(teams: TeamRegistry, team: TeamSpec) -> tuple[str, ...]:
    """Return the operations that a team's model is shown as tools, sorted by id; it can search the others.

    They are those that `allowed_tools` names in full, and the team's own sub-agents as far as it allows them.
    """
    subagents = [f"{team.name}.{file.name}" for file in teams.sources(team.name).subagents]
    allowed = [id for id in subagents if is_allowed(team.allowed_tools, id)]
    exact = [id for id in exact_ids(team.allowed_tools) if is_shown(team, id)]
    return tuple(sorted({*exact, *allowed}))


def team_agent(
    services: TeamServices, team: TeamSpec, *, config: Config, subagent: SubagentFile | None = None
) -> AgentSpec:
    """Return the agent that answers for a team, or for one of its sub-agents."""
    prompt = build_prompt(services.registry, team, subagent=None if subagent is None else subagent.name)
    model, steps = team.model or config.model or "", team.max_steps
    name, description = team.name, describe_team(team)
    if subagent is not None:
        model, steps = subagent.model or model, subagent.max_steps or steps
        name, description = subagent_name(team.name, subagent), subagent.description
    return AgentSpec(
        name=name,
        model=model,
        instructions=prompt.text,
        operations=shown_operations(services.registry, team),
        max_steps=steps,
        timeout=team.budget.seconds,
        max_calls=team.budget.calls,
        max_usd=team.budget.usd,
        context_sizes=context_size_lookup(config),
        description=description,
        when_busy=team.when_busy,
        metadata={"team": team.name, "prompt": prompt.hashes},
        briefing=services.brief,
    )
