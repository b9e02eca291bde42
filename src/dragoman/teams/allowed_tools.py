"""What teams may call: the patterns of `allowed_tools`, and nothing else."""

from __future__ import annotations

from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Rule, Verdict
from dragoman.operations.registry import RESERVED_NAMESPACE
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import TeamSpec
from dragoman.teams.tool_patterns import is_allowed

MAX_CACHED = 65_536


class AllowedTools:
    """Denies the agents of teams every operation that `allowed_tools` of their team does not match.

    It is a restriction of access control: it denies and never allows, so a team's files cannot give the team
    what the policy of the hub denies or asks about. The list of a team binds its sub-agents, and agents of
    the hub that it calls. Another team that it calls or delegates to has its own list.
    """

    def __init__(self, teams: TeamRegistry) -> None:
        self._teams = teams
        self._verdicts: dict[tuple[str, str], Verdict | None] = {}
        teams.on_change(self._verdicts.clear)

    def __call__(self, operation: Operation, context: Context) -> Verdict | None:
        """Return the verdict on a call; None when the caller's team allows it, or the caller has none."""
        if operation.namespace == RESERVED_NAMESPACE:
            return None
        team = self._teams.nearest_team(context)
        if team is None:
            return None
        key = (team.name, operation.id)
        if key not in self._verdicts:
            if len(self._verdicts) >= MAX_CACHED:
                self._verdicts.clear()
            self._verdicts[key] = None if is_allowed(team.allowed_tools, operation.id) else refusal(team)
        return self._verdicts[key]


def refusal(team: TeamSpec) -> Verdict:
    """Return the verdict on an operation that a team may not call."""
    reason = f"it is not in allowed_tools of the team {team.name!r}"
    return Verdict("deny", Rule(decision="deny", agents=(team.name,), reason=reason))
