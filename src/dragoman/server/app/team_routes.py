"""Paths of teams under `/api`, and the handlers behind them."""

from __future__ import annotations

import msgspec

from dragoman.server.app.api_routes import Routes
from dragoman.server.app.services import HubServices
from dragoman.server.teams import TeamHandlers


class TeamApi(msgspec.Struct, frozen=True, kw_only=True):
    """The handlers of everything about teams."""

    teams: TeamHandlers


def build_team_api(services: HubServices) -> TeamApi:
    """Build the handlers of everything about teams."""
    return TeamApi(teams=TeamHandlers(services.teams.registry))


def team_routes(api: TeamApi) -> Routes:
    """Yield the paths, each with its handlers by method and the scope that a key needs."""
    yield "/api/teams", {"GET": api.teams.list}, "chat"
    yield "/api/teams/{name}", {"GET": api.teams.get}, "chat"
