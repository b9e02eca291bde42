"""The paths of the internal listener and their handlers: what other hosts may ask of this one.

Each request has this host's token, so it comes from a host that can read the database. It names no caller:
the host that sends it has authenticated that, and has checked what it may see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from dragoman.http.asgi_exchange import Exchange, Handler
from dragoman.server.http.endpoint import HttpEndpoint, not_found
from dragoman.server.internal.token import require_token

HostRoutes: TypeAlias = Iterable[tuple[str, Mapping[str, Handler]]]


def health_routes() -> HostRoutes:
    """Whether this host answers."""

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, {"status": "ok"})

    yield "/healthz", {"GET": answer}


def build_internal_app(*routes: HostRoutes, token: str) -> ASGIApp:
    """Build the app of the internal listener. Ids in its paths are matched as they were sent."""
    endpoints = [Route(path, HttpEndpoint(methods)) for table in routes for path, methods in table]
    return require_token(Router(endpoints, default=not_found), token)
