"""What teams may call: the patterns of `allowed_tools`, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Rule, Verdict
from dragoman.operations.registry import RESERVED_NAMESPACE
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.tool_patterns import is_allowed

MAX_CACHED = 65_536
CHECK_INTERVAL = 1.0  # seconds between two checks of a team's file


class AllowedTools:
    """Denies the agents of teams every operation that `allowed_tools` of their team does not match.

    It is a restriction of access control: it denies and never allows, so a team's files cannot give the team
    what the policy of the hub denies or asks about. The list of a team binds its sub-agents, and agents of
    the hub that it calls. Another team that it calls or delegates to has its own list. That of a team which
    was removed is empty.
    """

    def __init__(self, teams: TeamRegistry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._teams = teams
        self._checked_at: dict[str, float] = {}
        self._verdicts: dict[tuple[str, str], Verdict | None] = {}
        teams.on_change(self._verdicts.clear)

    def __call__(self, operation: Operation, context: Context) -> Verdict | None:
        """Return the verdict on a call; None when the caller's team allows it, or the caller has none."""
        if operation.namespace == RESERVED_NAMESPACE:
            return None
        name = self._teams.nearest_team_name(context)
        if name is None:
            return None
        team = self._teams.find(name)
        if team is None:
            return refusal(name)
        key = (team.name, operation.id)
        if key not in self._verdicts:
            if len(self._verdicts) >= MAX_CACHED:
                self._verdicts.clear()
            self._verdicts[key] = None if is_allowed(team.allowed_tools, operation.id) else refusal(name)
        return self._verdicts[key]

    def refresh(self, context: Context) -> None:
        """Read the list of the caller's team again if its file has changed, checked at most once a second.

        A run may take hours: what its team may no longer call is denied to its next call.
        """
        name = self._teams.nearest_team_name(context)
        if name is None:
            return
        now = self.clock()
        if now - self._checked_at.get(name, -CHECK_INTERVAL) >= CHECK_INTERVAL:
            self._checked_at[name] = now
            with suppress(OSError):  # its files are changing right now: the next check reads them
                self._teams.reload_rights(name)


def refusal(team: str) -> Verdict:
    """Return the verdict on an operation that a team may not call."""
    reason = f"it is not in allowed_tools of the team {team!r}"
    return Verdict("deny", Rule(decision="deny", agents=(team,), reason=reason))
