"""Warnings about the skills of a team, as sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman.teams.registry import TeamRegistry
from dragoman.teams.skills.active import LOAD
from dragoman.teams.skills.operations import operation_id
from dragoman.teams.spec import TeamSpec
from dragoman.teams.tool_patterns import is_allowed


def skill_warnings(teams: TeamRegistry, team: TeamSpec) -> Sequence[str]:
    """Return what is wrong with the skills of a team, and with those of all teams."""
    return [*problems_of_files(teams, team), *missing_rights(teams, team), *unknown_names(teams, team)]


def problems_of_files(teams: TeamRegistry, team: TeamSpec) -> Iterator[str]:
    """Yield the files that cannot be used."""
    for problem in (*teams.skill_problems(), *teams.skill_problems(team.name)):
        yield f"{problem.path}: {problem.text}"


def missing_rights(teams: TeamRegistry, team: TeamSpec) -> Iterator[str]:
    """Yield what skills require and `allowed_tools` does not allow."""
    skills = teams.skills(team.name).values()
    if any(skill.level != "hub" for skill in skills) and not is_allowed(team.allowed_tools, LOAD):
        yield f"{team.name}: it has skills, but allowed_tools does not allow {LOAD}"
        return
    for skill in skills:
        ids = [operation_id(each, team) for each in skill.requires]
        missing = [id for id in ids if not is_allowed(team.allowed_tools, id)]
        if missing and skill.level != "hub":
            yield f"{skill.path}: allowed_tools of {team.name} does not allow {', '.join(missing)}"


def unknown_names(teams: TeamRegistry, team: TeamSpec) -> Iterator[str]:
    """Yield the skills that sub-agents list and the team does not have."""
    for file in teams.sources(team.name).subagents:
        for name in file.skills or ():
            if name not in teams.skills(team.name):
                yield f"{file.prompt.path}: skills: there is no skill {name!r}"
