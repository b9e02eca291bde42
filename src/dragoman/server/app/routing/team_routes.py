"""Paths of teams under `/api`, and the handlers behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dragoman.server.app.routing.shared_routes import Routes
from dragoman.server.teams.memory import MemoryHandlers, VaultHandlers
from dragoman.server.teams.skills_and_plugins import SkillHandlers
from dragoman.server.teams.tasks import TaskHandlers
from dragoman.server.teams.teams import TeamHandlers
from dragoman.server.teams.triggers import TriggerHandlers, TriggerHookHandlers
from dragoman.teams.tasks.service import TeamTasks
from dragoman.teams.triggers.service import TriggerService

if TYPE_CHECKING:
    from dragoman.server.app.services import HubServices


class TeamApi(msgspec.Struct, frozen=True, kw_only=True):
    """The handlers of everything about teams."""

    teams: TeamHandlers
    tasks: TaskHandlers
    memory: MemoryHandlers
    vault: VaultHandlers
    triggers: TriggerHandlers
    hooks: TriggerHookHandlers
    skills: SkillHandlers


def build_team_api(services: HubServices, tasks: TeamTasks, *, triggers: TriggerService) -> TeamApi:
    """Build the handlers of everything about teams."""
    teams, store = services.teams.registry, services.store
    return TeamApi(
        teams=TeamHandlers(teams, list_paused=tasks.paused_teams),
        tasks=TaskHandlers(tasks, store.sessions),
        memory=MemoryHandlers(store.memories, teams),
        vault=VaultHandlers(store.vault, teams),
        triggers=TriggerHandlers(triggers),
        hooks=TriggerHookHandlers(triggers),
        skills=SkillHandlers(teams, store.approvals, plugins=services.teams.plugin_store),
    )


def team_routes(api: TeamApi) -> Routes:
    """Yield the paths, each with its handlers by method and the scope that a key needs."""
    yield "/api/teams", {"GET": api.teams.list}, "chat"
    yield "/api/teams/{name}", {"GET": api.teams.get}, "chat"
    yield "/api/teams/{name}/skills", {"GET": api.skills.list}, "chat"
    yield "/api/teams/{name}/skills/{skill}", {"GET": api.skills.get}, "chat"
    yield "/api/teams/{name}/plugins", {"GET": api.skills.list_plugins}, "chat"
    yield from task_routes(api.tasks)
    memory = {"GET": api.memory.list, "POST": api.memory.save, "DELETE": api.memory.delete}
    yield "/api/memory", memory, "chat"
    yield "/api/vault", {"GET": api.vault.list}, "chat"
    yield from trigger_routes(api.triggers)


def task_routes(tasks: TaskHandlers) -> Routes:
    """Yield the paths of tasks, and of pausing a team."""
    yield "/api/teams/{name}/pause", {"POST": tasks.pause}, "admin"
    yield "/api/teams/{name}/resume", {"POST": tasks.resume}, "admin"
    yield "/api/tasks", {"GET": tasks.list, "POST": tasks.create}, "chat"
    yield "/api/tasks/{id}", {"GET": tasks.get}, "chat"
    yield "/api/tasks/{id}/cancel", {"POST": tasks.cancel}, "chat"


def trigger_routes(triggers: TriggerHandlers) -> Routes:
    """Yield the paths of triggers."""
    yield "/api/triggers", {"GET": triggers.list, "POST": triggers.create}, "chat"
    methods = {"GET": triggers.get, "PATCH": triggers.update, "DELETE": triggers.remove}
    yield "/api/triggers/{id}", methods, "chat"
    yield "/api/triggers/{id}/enable", {"POST": triggers.enable}, "chat"
    yield "/api/triggers/{id}/disable", {"POST": triggers.disable}, "chat"
    yield "/api/triggers/{id}/run", {"POST": triggers.run}, "chat"
    yield "/api/triggers/{id}/history", {"GET": triggers.history}, "chat"
