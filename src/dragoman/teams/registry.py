"""The teams of a hub by name, read from their folders, and read again when their files change."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dragoman.errors import CallError, ConfigError, NotFound
from dragoman.operations.context import Context
from dragoman.suggestions import suggest
from dragoman.teams.folder import (
    AcceptsChange,
    RuleFile,
    RuleLevel,
    Signature,
    TeamSources,
    check_folders,
    common_rules,
    find_folders,
    read_accepts,
    read_sources,
    signature_of,
    stat_entry,
)
from dragoman.teams.skill_files import SKILLS, Skill, SkillFolder, SkillProblem, read_skills
from dragoman.teams.spec import GENERATED, TEAM_FILE, TeamFile, TeamSpec
from dragoman.teams.tool_patterns import check_patterns
from dragoman.teams.tree import build_specs

log = logging.getLogger(__name__)
SUBAGENT_SEPARATOR = "/"
ROOT = ""  # the signature of the folder of all teams
ReadTeamFile = Callable[[Path], TeamFile]
OnChange = Callable[[], None]


class TeamEntry(NamedTuple):
    """What was read from a team's folder when its files had this signature."""

    signature: Signature
    file: TeamFile
    sources: TeamSources
    accepts: AcceptsChange
    skills: Sequence[SkillFolder]

    @property
    def team_file(self) -> TeamFile:
        """What `team.yaml` says, with what agents have changed after an approval."""
        return replace(self.file, accepts=self.accepts.apply(self.file.accepts))


class TeamRegistry:
    """The teams in a folder; None for a hub without teams.

    The files are authoritative. They are checked when a run of a team begins (`reload`), not in between, so
    idle teams cost nothing. Files that cannot be read change nothing: the last good state stays, and
    `problems` says why.
    """

    def __init__(self, root: Path | None, read: ReadTeamFile) -> None:
        self.root = None if root is None else root.resolve()
        self.problems: Sequence[str] = ()
        """What is wrong in the folder now, by file; empty when the teams are as the files say."""
        self.removed: Set[str] = frozenset()
        """The teams that were there before: runs of their agents may still be in progress."""
        self.version = 0
        """Increases each time that the teams change."""
        self.common_rules: Mapping[RuleLevel, Sequence[RuleFile]] = {}
        self.common_skills = SkillFolder()
        """The skills of all teams, and the files among them that cannot be used."""
        self._read = read
        self._specs: Mapping[str, TeamSpec] = {}
        self._entries: Mapping[str, TeamEntry] = {}
        self._folders: Mapping[str, Path] = {}
        self._signatures: Mapping[str, Signature] = {}
        self._listeners: list[OnChange] = []

    def on_change(self, listener: OnChange) -> None:
        """Call a function after each time that the teams have changed."""
        self._listeners.append(listener)

    def load(self) -> None:
        """Read all teams. Raises ConfigError with every problem."""
        if self.root is None:
            return
        folders, root = find_folders(self.root), self.root
        self._folders = folders
        self._signatures = {name: signature_of(folder) for name, folder in {**folders, ROOT: root}.items()}
        check_folders(folders, root)
        common = common_rules(root)
        skills = read_skills(root / SKILLS, root, level="hub")
        entries = {name: self._entry(name, folder) for name, folder in folders.items()}
        specs = build_specs({name: entry.team_file for name, entry in entries.items()}, folders=folders)
        self.removed = (self.removed | self._specs.keys()) - specs.keys()
        self._entries, self._specs, self.common_rules, self.problems = entries, specs, common, ()
        self.common_skills = skills
        self.version += 1
        for listener in self._listeners:
            listener()

    def reload(self, name: str | None = None) -> bool:
        """Read the files again if they have changed. Return whether the teams are as the files say.

        With a `name` only the files of that team, of its ancestors and of all teams are looked at.
        """
        if self.root is None or not self._has_changed(name):
            return not self.problems
        try:
            self.load()
        except ConfigError as error:
            self.problems = error.message.splitlines()
            log.warning("the teams stay as they were: %s", error.message)
        return not self.problems

    def reload_rights(self, name: str) -> None:
        """Read the files again if the `team.yaml` of a team has changed, or is gone."""
        folder = self._folders.get(name)
        entry = () if folder is None else tuple(stat_entry(f"{folder}{os.sep}{TEAM_FILE}"))
        if folder is not None and (
            not entry or not self._signatures.get(name, frozenset()).issuperset(entry)
        ):
            self.reload()

    def get(self, name: str) -> TeamSpec:
        """Return a team. Raises NotFound, with the names of all."""
        spec = self._specs.get(name)
        if spec is None:
            names = ", ".join(self.names()) or "none"
            raise NotFound(
                f"there is no team {name[:100]!r}; the teams are: {names}{suggest(name, self._specs)}"
            )
        return spec

    def find(self, name: str) -> TeamSpec | None:
        """Return a team, or None."""
        return self._specs.get(name)

    def names(self) -> Sequence[str]:
        """Return the names of all teams, sorted."""
        return sorted(self._specs)

    def children(self, name: str) -> Sequence[TeamSpec]:
        """Return the teams directly below one."""
        return [self._specs[each] for each in self.names() if self._specs[each].parent == name]

    def ancestors(self, name: str) -> Sequence[TeamSpec]:
        """Return the teams above one, the root first."""
        return [self._specs[each] for each in self.get(name).ancestors]

    def members(self, name: str) -> Sequence[TeamSpec]:
        """Return the teams that one may delegate to: parent, children and its `members`, by name."""
        return [self._specs[each] for each in sorted(self.get(name).members)]

    def sources(self, name: str) -> TeamSources:
        """Return the rules and sub-agents in a team's folder."""
        self.get(name)
        return self._entries[name].sources

    def written_accepts(self, name: str) -> Sequence[str]:
        """Return `accepts` of a team as `team.yaml` has it, without changes by agents."""
        self.get(name)
        return self._entries[name].file.accepts

    def check_entry(self, name: str, file: Path) -> None:
        """Raise ConfigError if a team of this name could not have this `team.yaml`."""
        read = self._read(file)
        check_patterns(read, file)
        files = {other: entry.file for other, entry in self._entries.items()}
        build_specs({**files, name: read}, folders={**self._folders, name: file.parent})

    def skills(self, name: str) -> Mapping[str, Skill]:
        """Return the skills of a team by name: those of all teams, and its own, which go first."""
        self.get(name)
        folders = (self.common_skills, *self._entries[name].skills)
        found = {skill.name: skill for folder in folders for skill in folder.skills}
        return dict(sorted(found.items()))

    def usable_skills(self, team: TeamSpec, agent: str | None) -> Mapping[str, Skill]:
        """Return the skills that an agent may load: the team's, or those that the sub-agent's file lists."""
        skills = self.skills(team.name)
        name = (agent or "").partition(SUBAGENT_SEPARATOR)[2]
        for file in self.sources(team.name).subagents:
            if file.name == name and file.skills is not None:
                return {each: skill for each, skill in skills.items() if each in file.skills}
        return skills

    def skill_problems(self, name: str | None = None) -> Sequence[SkillProblem]:
        """Return the files of a team's skills that cannot be used; without a name, those of all teams."""
        folders = [self.common_skills] if name is None else self._entries[self.get(name).name].skills
        return [problem for folder in folders for problem in folder.problems]

    def team_of(self, context: Context) -> TeamSpec | None:
        """Return the team whose agent, or whose sub-agent, makes a call; None for any other caller."""
        return None if context.agent is None else self.team_of_agent(context.agent)

    def team_of_agent(self, agent: str) -> TeamSpec | None:
        """Return the team that an agent belongs to: `NAME`, or `NAME/SUBAGENT`; None for another agent."""
        return self._specs.get(agent.partition(SUBAGENT_SEPARATOR)[0])

    def nearest_team(self, context: Context) -> TeamSpec | None:
        """Return the team of the agent that calls, or else of the nearest agent that it works for.

        None, too, where that team was removed.
        """
        return self._specs.get(self.nearest_team_name(context) or "")

    def nearest_team_name(self, context: Context) -> str | None:
        """Return the name of the team of `nearest_team`, also where it was removed."""
        if not self._specs and not self.removed:  # fast: this runs several times for each call
            return None
        agents = (context.agent, *(parent.agent for parent in reversed(context.parent_agents)))
        names = (agent.partition(SUBAGENT_SEPARATOR)[0] for agent in agents if agent is not None)
        return next((name for name in names if name in self._specs or name in self.removed), None)

    def calling_team(self, context: Context, team: str | None = None) -> TeamSpec:
        """Return the team that a call is made for: its own, or the one that a person names.

        An agent of a team, and one that works for it, acts for this team only. Raises CallError, NotFound.
        """
        own = self.nearest_team(context)
        if own is None and team is None:
            raise CallError(
                "This is an operation of teams, and no team calls it.",
                hint=f"Name one in `team`: {', '.join(self.names()) or 'there are none'}.",
            )
        if own is not None and team not in (None, own.name):
            raise CallError(f"The team {own.name!r} cannot act for the team {team!r}.")
        return own or self.get(team or "")

    def _entry(self, name: str, folder: Path) -> TeamEntry:
        """Return what is in a team's folder; it is read only if it has changed. Raises ConfigError."""
        signature, earlier = self._signatures[name], self._entries.get(name)
        if earlier is not None and earlier.signature == signature:
            return earlier
        file = self._read(folder / TEAM_FILE)
        check_patterns(file, folder / TEAM_FILE)
        root = self.root or folder
        skills = (
            read_skills(folder / GENERATED / SKILLS, root, level="generated"),
            read_skills(folder / SKILLS, root, level="team"),
        )
        sources, accepts = read_sources(folder, root), read_accepts(folder, root)
        return TeamEntry(signature, file, sources, accepts, skills)

    def _has_changed(self, name: str | None) -> bool:
        """Return whether files have another time or size than at the last reading."""
        if self.root is None or signature_of(self.root) != self._signatures.get(ROOT):
            return True
        spec = None if name is None else self._specs.get(name)
        if spec is None and find_folders(self.root) != self._folders:
            return True
        names = self._folders if spec is None else (*spec.ancestors, spec.name)
        return any(signature_of(self._folders[each]) != self._signatures.get(each) for each in names)
