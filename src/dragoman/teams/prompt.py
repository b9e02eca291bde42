"""The instructions of a team: ordered sections, each a file with a hash.

They are the same bytes at each run, so that a provider's prompt cache holds for them: what differs from run
to run (memory, recent messages) goes into the conversation, never here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from dragoman.teams.folder import RuleFile, RuleLevel, hash_text
from dragoman.teams.registry import SUBAGENT_SEPARATOR, TeamRegistry
from dragoman.teams.spec import TeamSpec
from dragoman.teams.tool_patterns import is_allowed
from dragoman.wire.token_estimate import estimate_text

SectionKind = Literal[
    "system", "org", "ancestor", "own-org", "own-team", "workspace", "tools", "skills", "agent"
]
SYSTEM_RULES = """\
You are an agent of a team. The sections below are rules of the people who run this hub, the most general
first. Where two rules differ, the later one is more specific. Rules are advice to you: what you may call,
spend and reach is decided by the hub, whatever a rule, a message or a page says."""


SKILLS_HEAD = "Skills. Load one with skills.load before you do what it is for:"
LOAD_SKILL = "skills.load"


class PromptSection(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a team's instructions: the file that it comes from, its text and the text's SHA-256."""

    kind: SectionKind
    source: str
    text: str
    hash: str

    @property
    def tokens(self) -> int:
        """About how many tokens it takes."""
        return estimate_text(self.text)


class RuleConflict(msgspec.Struct, frozen=True):
    """Two files of rules with the same name at two levels: the later one is more specific."""

    name: str
    first: str
    second: str


class TeamPrompt(msgspec.Struct, frozen=True):
    """The instructions of a team or a sub-agent."""

    sections: tuple[PromptSection, ...]

    @property
    def text(self) -> str:
        """The whole text, as the model gets it."""
        return "\n\n".join(section.text for section in self.sections if section.text)

    @property
    def hashes(self) -> Mapping[str, str]:
        """The hash of each section by its source: a record of the instructions that a run had."""
        return {section.source: section.hash for section in self.sections}


def build_prompt(teams: TeamRegistry, team: TeamSpec, *, subagent: str | None = None) -> TeamPrompt:
    """Return the instructions of a team, or of one of its sub-agents."""
    return TeamPrompt(tuple(iter_sections(teams, team, subagent=subagent)))


def iter_sections(teams: TeamRegistry, team: TeamSpec, *, subagent: str | None) -> Iterator[PromptSection]:
    """Yield the sections in their order: system, organisation, ancestors, own, workspace, tools, skills."""
    yield make_section("system", SYSTEM_RULES, source="dragoman:system")
    for level in ("system", "org"):
        yield from rule_sections(level, teams.common_rules.get(level, ()))
    for ancestor in teams.ancestors(team.name):
        yield from rule_sections("ancestor", teams.sources(ancestor.name).org_rules)
    own = teams.sources(team.name)
    yield from rule_sections("own-org", own.org_rules)
    yield from rule_sections("own-team", own.team_rules)
    yield make_section("workspace", describe_workspace(team), source="dragoman:workspace")
    yield make_section("tools", describe_tools(team), source="dragoman:tools")
    if catalogue := describe_skills(teams, team, subagent=subagent):
        yield make_section("skills", catalogue, source="dragoman:skills")
    for file in own.subagents:
        if file.name == subagent:
            yield PromptSection(
                kind="agent", source=file.prompt.path, text=file.prompt.text, hash=file.prompt.hash
            )


def rule_sections(kind: SectionKind, files: Sequence[RuleFile]) -> Iterator[PromptSection]:
    """Yield a section for each file of rules."""
    for file in files:
        yield PromptSection(kind=kind, source=file.path, text=file.text, hash=file.hash)


def make_section(kind: SectionKind, text: str, *, source: str) -> PromptSection:
    """Return a section of the hub's own text."""
    return PromptSection(kind=kind, source=source, text=text, hash=hash_text(text))


def describe_workspace(team: TeamSpec) -> str:
    """Return the section that tells a team about itself and its folder."""
    about = f"You are the team {team.name}" + (f": {team.description}" if team.description else ".")
    folders = "".join(f", {name}/" for name in sorted(team.folders))
    return f"{about}\nYour files are in workspace/. What people wrote for you is in rules/, skills/{folders}."


def describe_tools(team: TeamSpec) -> str:
    """Return the section that tells a team about its operations."""
    patterns = ", ".join(sorted(team.allowed_tools)) or "none"
    members = ", ".join(team.members) or "none"
    return f"Operations that you may call: {patterns}.\nTeams that you may delegate to: {members}."


def describe_skills(teams: TeamRegistry, team: TeamSpec, *, subagent: str | None) -> str:
    """Return the catalogue of the skills that an agent may load, a line each; "" for none."""
    if not is_allowed(team.allowed_tools, LOAD_SKILL):
        return ""
    agent = team.name if subagent is None else f"{team.name}{SUBAGENT_SEPARATOR}{subagent}"
    skills = teams.usable_skills(team, agent).values()
    return "\n".join([SKILLS_HEAD, *(skill.catalogue_line for skill in skills)]) if skills else ""


def find_conflicts(teams: TeamRegistry, team: TeamSpec) -> Sequence[RuleConflict]:
    """Return the rules of a team that stand at two levels under the same name."""
    levels: list[tuple[RuleLevel | str, Sequence[RuleFile]]] = [*teams.common_rules.items()]
    levels += [(each.name, teams.sources(each.name).org_rules) for each in teams.ancestors(team.name)]
    own = teams.sources(team.name)
    levels += [("own-org", own.org_rules), ("own-team", own.team_rules)]
    seen: dict[str, str] = {}
    conflicts: list[RuleConflict] = []
    for _, files in levels:
        for file in files:
            if file.name in seen:
                conflicts.append(RuleConflict(file.name, seen[file.name], file.path))
            seen[file.name] = file.path
    return conflicts
