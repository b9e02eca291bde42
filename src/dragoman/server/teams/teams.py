"""HTTP handlers of teams: list them, and show one with the sections of its instructions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.http.asgi_exchange import Exchange
from dragoman.teams.prompt import SectionKind, build_prompt, find_conflicts
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import GENERATED, TeamBudget, TeamSpec


class TeamView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A team as the API shows it, without folders of the machine. `paused` is set by a running hub only."""

    name: str
    parent: str | None
    description: str
    accepts: Sequence[str]
    model: str | None
    allowed_tools: Sequence[str]
    members: Sequence[str]
    subagents: Sequence[str]
    max_steps: int
    concurrency: int
    budget: TeamBudget
    generated: bool
    paused: bool | UnsetType = UNSET


class SectionView(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a team's instructions, without its text."""

    kind: SectionKind
    source: str
    hash: str
    tokens: int


class ConflictView(msgspec.Struct, frozen=True):
    """Two files of rules with the same name, the more specific one second."""

    name: str
    first: str
    second: str


class TeamDetail(TeamView, frozen=True, kw_only=True, rename="camel"):
    """A team with the sections of its instructions, and the rules that exist at two levels."""

    sections: Sequence[SectionView]
    conflicts: Sequence[ConflictView]


class TeamHandlers:
    """Handlers of `/api/teams`."""

    def __init__(self, teams: TeamRegistry, *, list_paused: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """`list_paused` returns the teams that begin no tasks until they are resumed."""
        self._teams = teams
        self._list_paused = list_paused

    async def list(self, exchange: Exchange) -> None:
        """List the teams by name; for the scope admin also what is wrong in their files."""
        self._teams.reload()
        paused = set(await self._list_paused())
        views = [
            msgspec.structs.replace(team_view(self._teams, self._teams.get(name)), paused=name in paused)
            for name in self._teams.names()
        ]
        problems = self._teams.problems if exchange.identity.may("admin") else ()
        await exchange.respond(200, {"teams": views, "problems": problems})

    async def get(self, exchange: Exchange) -> None:
        """Show one team. NotFound."""
        self._teams.reload()
        detail = team_detail(self._teams, self._teams.get(exchange.path_params["name"]))
        paused = detail.name in await self._list_paused()
        await exchange.respond(200, msgspec.structs.replace(detail, paused=paused))


def view_fields(teams: TeamRegistry, team: TeamSpec) -> dict[str, Any]:
    """Return the fields of a TeamView."""
    return {
        "name": team.name,
        "parent": team.parent,
        "description": team.description,
        "accepts": team.accepts,
        "model": team.model,
        "allowed_tools": team.allowed_tools,
        "members": team.members,
        "max_steps": team.max_steps,
        "concurrency": team.concurrency,
        "budget": team.budget,
        "subagents": [f"{team.name}.{file.name}" for file in teams.sources(team.name).subagents],
        "generated": team.folder.parent.name == GENERATED,
    }


def team_view(teams: TeamRegistry, team: TeamSpec) -> TeamView:
    """Return a team as the list shows it."""
    return TeamView(**view_fields(teams, team))


def team_detail(teams: TeamRegistry, team: TeamSpec) -> TeamDetail:
    """Return a team with its sections and conflicts."""
    sections = [
        SectionView(kind=each.kind, source=each.source, hash=each.hash, tokens=each.tokens)
        for each in build_prompt(teams, team).sections
    ]
    conflicts = [ConflictView(each.name, each.first, each.second) for each in find_conflicts(teams, team)]
    return TeamDetail(**view_fields(teams, team), sections=sections, conflicts=conflicts)
