"""HTTP handlers of skills and plugins of teams: the active ones, and those that wait for an approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.operations.approval import ApprovalRequest, ApprovalStore
from dragoman.operations.authorization import visible_owner
from dragoman.suggestions import suggest
from dragoman.teams.plugins.store import PluginRecord, PluginStore
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.skill_files import Skill, SkillProblem
from dragoman.teams.skills.additions import ADD
from dragoman.teams.spec import TeamSpec

SHOWN_TEXT = 8_000  # characters of a text in lists
MAX_PENDING = 500


class SkillHandlers:
    """Handlers of `/api/teams/{name}/skills` and `/api/teams/{name}/plugins`."""

    def __init__(self, teams: TeamRegistry, approvals: ApprovalStore, *, plugins: PluginStore) -> None:
        self._teams = teams
        self._approvals = approvals
        self._plugins = plugins

    async def list(self, exchange: Exchange) -> None:
        """List the skills of a team by name, those that wait for an approval, and files with problems."""
        team = self._team(exchange)
        skills = self._teams.skills(team.name).values()
        problems = (*self._teams.skill_problems(), *self._teams.skill_problems(team.name))
        proposed = await self._proposed(team, exchange)
        views = [
            *(shortened(skill_to_json(skill)) for skill in skills),
            *(problem_to_json(problem) for problem in problems),
            *(proposal_to_json(each, skill) for each in proposed for skill in additions(each, team)),
        ]
        await exchange.respond(200, {"skills": views})

    async def get(self, exchange: Exchange) -> None:
        """Show one skill with its whole text. NotFound."""
        team, name = self._team(exchange), exchange.path_params["skill"]
        skills = self._teams.skills(team.name)
        if name not in skills:
            hint = suggest(name, skills)
            raise NotFound(f"the team {team.name!r} has no skill {name[:100]!r}{hint}")
        await exchange.respond(200, skill_to_json(skills[name]))

    async def list_plugins(self, exchange: Exchange) -> None:
        """List the plugins of a team that the caller's owner sees, with their sources."""
        team = self._team(exchange)
        found = self._plugins.list(team.name, owner=exchange.identity.owner)
        await exchange.respond(200, {"plugins": [plugin_to_json(record) for record in found]})

    def _team(self, exchange: Exchange) -> TeamSpec:
        name = exchange.path_params["name"]
        self._teams.reload(name)
        return self._teams.get(name)

    async def _proposed(self, team: TeamSpec, exchange: Exchange) -> Sequence[ApprovalRequest]:
        """Return the requests to add a skill to a team that the caller may see."""
        owner = visible_owner(exchange.identity)
        found = await self._approvals.list(owner=owner, status="pending", limit=MAX_PENDING)
        return [each for each in found if additions(each, team)]


def additions(request: ApprovalRequest, team: TeamSpec) -> Sequence[dict[str, Any]]:
    """Return the skills that a request would add to a team, as the request has them."""
    inputs = [item.input for item in request.items if item.operation == ADD and isinstance(item.input, dict)]
    return [input for input in inputs if input.get("team") == team.name]


def skill_to_json(skill: Skill) -> dict[str, Any]:
    return {
        "name": skill.name,
        "state": "active",
        "level": skill.level,
        "description": skill.description,
        "operations": skill.requires,
        "path": skill.path,
        "source": skill.origin,
        "hash": skill.hash,
        "text": skill.text,
    }


def problem_to_json(problem: SkillProblem) -> dict[str, Any]:
    return {"name": None, "state": "invalid", "path": problem.path, "problem": problem.text}


def proposal_to_json(request: ApprovalRequest, skill: Mapping[str, Any]) -> dict[str, Any]:
    """Return a skill that waits for an approval, whole: whoever approves it has to see all of it."""
    fields = {name: value for name, value in skill.items() if name != "team"}
    return {"state": "proposed", "level": "generated", "approval": request.id, **fields}


def shortened(view: dict[str, Any]) -> dict[str, Any]:
    """Return a skill as lists show it: with the beginning of a long text."""
    text = view.get("text", "")
    return view if len(text) <= SHOWN_TEXT else {**view, "text": text[:SHOWN_TEXT], "size": len(text)}


def plugin_to_json(record: PluginRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state,
        "description": record.description,
        "effect": record.effect,
        "schema": record.schema,
        "hash": record.hash,
        "text": record.source,
        "reason": record.reason,
        "approvedBy": record.approved_by,
        "changedAt": record.changed_at,
    }
