"""The skills that a run has loaded, and the operations that it may therefore call.

What a run has loaded is what its calls of `skills.load` say in the ledger: it is the same after an approval,
a crash, and at another host. A skill counts for the agent that loaded it and for the agents below it, in that
run alone, and declares what its file says now. It opens nothing that `allowed_tools` does not allow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from dragoman.operations.context import Activation, Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Rule, Verdict
from dragoman.store.calls import CallRepository
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.skill_files import Skill
from dragoman.teams.spec import TeamSpec
from dragoman.teams.tool_patterns import is_allowed

LOAD = "skills.load"
MAX_ACTIVE = 50  # skills of one run
MAX_MATCHED = 16_384


class ActiveSkills:
    """Knows the skills of each run. `bind` begins a run, `activate` adds a skill to it."""

    def __init__(self, teams: TeamRegistry, calls: CallRepository) -> None:
        self._teams = teams
        self._calls = calls

    async def bind(self, context: Context) -> Context:
        """Return the context of a run with the skills that it has loaded before. Raises StoreError."""
        found: list[Activation] = []
        if context.session_id is not None and context.key_scope is not None and self._has_skills():
            entries = await self._calls.list_done(context.session_id, context.key_scope, operation=LOAD)
            for entry in entries:
                add(found, Activation(entry.record.agent, loaded_name(entry.record.input)))
        return replace(context, activations=found)

    def activate(self, skill: Skill, context: Context) -> None:
        """Record that the agent of a call has loaded a skill."""
        if context.activations is not None:
            add(context.activations, Activation(context.agent, skill.name))

    def loaded(self, context: Context) -> Iterator[Skill]:
        """Yield the skills that count for a call: those of its agent, and of the agents that it works for."""
        team = self._teams.team_of(context)
        if team is None or not context.activations:
            return
        skills = self._teams.skills(team.name)
        agents = {context.agent, *(parent.agent for parent in context.parent_agents)}
        for each in context.activations:
            is_own = each.agent is not None and self._teams.team_of_agent(each.agent) == team
            if is_own and each.agent in agents and each.name in skills:
                yield skills[each.name]

    def declared(self, context: Context) -> Collection[str]:
        """Return the ids and names of operations that the skills of a call declare, in lower case."""
        return {id.lower() for skill in self.loaded(context) for id in skill.requires}

    def restrict(self, operation: Operation, context: Context) -> Verdict | None:
        """Deny what `needs_skill` of the caller's team names, unless a skill that is loaded requires it."""
        team = self._teams.nearest_team(context)
        if team is None or not team.needs_skill or not matches_any(team.needs_skill, operation.id):
            return None
        if operation.id.lower() in self.declared(context):
            return None
        return missing_skill(team, operation.id)

    def _has_skills(self) -> bool:
        return any(self._teams.skills(name) for name in self._teams.names())


def add(activations: list[Activation], activation: Activation) -> None:
    """Add an activation to those of a run, once, up to MAX_ACTIVE."""
    if activation not in activations and len(activations) < MAX_ACTIVE:
        activations.append(activation)


def loaded_name(input: Any) -> str:
    """Return the name in the recorded input of `skills.load`."""
    return str(input.get("name", "")) if isinstance(input, dict) else ""


@lru_cache(MAX_MATCHED)
def matches_any(patterns: tuple[str, ...], id: str) -> bool:
    """Return whether one of some patterns matches an operation."""
    return is_allowed(patterns, id)


def missing_skill(team: TeamSpec, id: str) -> Verdict:
    """Return the verdict on an operation for which no skill is loaded."""
    reason = f"no skill that this run has loaded requires it; the team {team.name!r} needs one for {id}"
    return Verdict("deny", Rule(decision="deny", agents=(team.name,), reason=reason))
