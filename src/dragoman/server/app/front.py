"""The front of a hub: its doors, and those who answer at them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from dragoman.accounts.meter import Meter
from dragoman.config import Config
from dragoman.mcp.server.door import McpDoor
from dragoman.mcp.server.origins import Origins
from dragoman.mcp.server.server import McpServer
from dragoman.operations.approval import Approval
from dragoman.operations.identity import Identity
from dragoman.runs.board import Board
from dragoman.server.app.ground import Ground
from dragoman.server.app.outside import Outside
from dragoman.server.approvals import Approvals
from dragoman.server.artifacts import Artifacts
from dragoman.server.auth import Auth
from dragoman.server.calls import Calls
from dragoman.server.chat import Chat, ChatSettings
from dragoman.server.doors import Rooms, make_router
from dragoman.server.gateway.doors import Gateway
from dragoman.server.health import Health
from dragoman.server.metrics import Metrics
from dragoman.server.operations import Operations
from dragoman.server.reference.reference import Reference
from dragoman.server.servers import Servers
from dragoman.server.sessions import Sessions
from dragoman.server.usage import Usage
from dragoman.spokes.hub.door import SpokeDoor

EXPOSED = [
    f"x-dragoman-{name}" for name in ("session", "run", "request-id", "model", "cost", "dropped", "estimated")
]


class Parts(Protocol):
    """What of a hub its doors lead to."""

    runs: Board
    gateway: Gateway
    meter: Meter
    metrics: Metrics
    outside: Outside
    mcp: McpServer

    async def abort(self, id: str) -> bool: ...

    async def answer(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> Approval: ...


class Front:
    """The doors of a hub; `app` is what a server of ASGI apps serves."""

    def __init__(self, config: Config, parts: Parts, *, ground: Ground) -> None:
        auth = Auth(
            ground.store.keys,
            required=ground.place.keys,
            folder=ground.place.data,
            origins=Origins(hosts=config.mcp.hosts, origins=(*config.cors.origins, *config.mcp.origins)),
        )
        self._mcp = McpDoor(
            parts.mcp, identify=auth.identify, hosts=config.mcp.hosts, origins=config.mcp.origins
        )
        rooms = rooms_of(config, parts, ground=ground, mcp=self._mcp, auth=auth)
        self._operations = rooms.operations
        app = make_router(rooms, auth, open_metrics=config.metrics.public)
        self.app = across(app, config.cors.origins) if config.cors.origins else app

    async def drain(self, seconds: float) -> None:
        """Give the calls that were made at these doors so many seconds."""
        await asyncio.gather(self._mcp.drain(seconds), self._operations.drain(seconds))

    async def close(self) -> None:
        """End the sessions of MCP clients."""
        await self._mcp.close()


def rooms_of(config: Config, parts: Parts, *, ground: Ground, mcp: ASGIApp, auth: Auth) -> Rooms:
    """Those who answer at the doors."""
    store, ledger, gateway = ground.store, parts.meter.ledger, parts.gateway
    settings = ChatSettings(body=config.limits.body, part=config.limits.part, keep_alive=config.keep_alive)
    servers, switchboard = parts.outside.servers, parts.outside.switchboard
    return Rooms(
        chat=Chat(parts.runs, store, settings=settings),
        sessions=Sessions(parts.runs, store),
        operations=Operations(ground.calls, meta=ground.meta),
        gateway=gateway,
        calls=Calls(store, abort=parts.abort, source=ground.source, catch_up=ledger.catch_up),
        approvals=Approvals(store.approvals, answer=parts.answer),
        artifacts=Artifacts(store.artifacts),
        servers=Servers(servers, switchboard, keeper=parts.outside),
        mcp=mcp,
        spokes=SpokeDoor(switchboard, identify=auth.identify) if config.spokes.enabled else None,
        usage=Usage(store, catch_up=ledger.catch_up),
        metrics=parts.metrics,
        health=Health(store, spool=ledger.spool, is_draining=lambda: gateway.draining),
        reference=Reference(),
    )


def across(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """The doors for front ends of other origins."""
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED
    )
