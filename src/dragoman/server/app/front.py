"""The front of a hub: its doors, and those who answer at them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from dragoman.accounts.meter import Meter
from dragoman.config import Config
from dragoman.mcp.server.door import McpEndpoint
from dragoman.mcp.server.origins import OriginPolicy
from dragoman.mcp.server.server import McpServer
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.identity import Identity
from dragoman.runs.board import RunRegistry
from dragoman.server.app.ground import HubServices
from dragoman.server.app.outside import ExternalOperations
from dragoman.server.approvals import ApprovalHandlers
from dragoman.server.artifacts import ArtifactHandlers
from dragoman.server.auth import Auth
from dragoman.server.calls import CallHandlers
from dragoman.server.chat import ChatHandlers, ChatSettings
from dragoman.server.doors import ApiHandlers, build_router
from dragoman.server.gateway.doors import Gateway
from dragoman.server.health import HealthHandlers
from dragoman.server.metrics import Metrics
from dragoman.server.operations import OperationHandlers
from dragoman.server.reference.reference import ReferenceHandlers
from dragoman.server.servers import McpServerHandlers
from dragoman.server.sessions import SessionHandlers
from dragoman.server.usage import UsageHandlers
from dragoman.spokes.hub.door import SpokeEndpoint

EXPOSED_HEADERS = [
    f"x-dragoman-{name}" for name in ("session", "run", "request-id", "model", "cost", "dropped", "estimated")
]


class HubParts(Protocol):
    """What of a hub its doors lead to."""

    runs: RunRegistry
    gateway: Gateway
    meter: Meter
    metrics: Metrics
    external: ExternalOperations
    mcp: McpServer

    async def abort(self, id: str) -> bool: ...

    async def answer_approval(
        self, id: str, *, approved: bool, by: Identity, reason: str | None = None
    ) -> ApprovalRequest: ...


class HubEndpoints:
    """The doors of a hub; `app` is what a server of ASGI apps serves."""

    def __init__(self, config: Config, parts: HubParts, *, services: HubServices) -> None:
        auth = Auth(
            services.store.keys,
            required=services.environment.require_keys,
            folder=services.environment.data,
            origins=OriginPolicy(hosts=config.mcp.hosts, origins=(*config.cors.origins, *config.mcp.origins)),
        )
        self._mcp = McpEndpoint(
            parts.mcp, identify=auth.identify, hosts=config.mcp.hosts, origins=config.mcp.origins
        )
        rooms = build_handlers(config, parts, services=services, mcp=self._mcp, auth=auth)
        self._operations = rooms.operations
        app = build_router(rooms, auth, public_metrics=config.metrics.public)
        self.app = allow_origins(app, config.cors.origins) if config.cors.origins else app

    async def drain(self, seconds: float) -> None:
        """Give the calls that were made at these doors so many seconds."""
        await asyncio.gather(self._mcp.drain(seconds), self._operations.drain(seconds))

    async def close(self) -> None:
        """End the sessions of MCP clients."""
        await self._mcp.close()


def build_handlers(
    config: Config, parts: HubParts, *, services: HubServices, mcp: ASGIApp, auth: Auth
) -> ApiHandlers:
    """Those who answer at the doors."""
    store, ledger, gateway = services.store, parts.meter.ledger, parts.gateway
    settings = ChatSettings(body=config.limits.body, part=config.limits.part, keep_alive=config.keep_alive)
    servers, switchboard = parts.external.servers, parts.external.switchboard
    return ApiHandlers(
        chat=ChatHandlers(parts.runs, store, settings=settings),
        sessions=SessionHandlers(parts.runs, store),
        operations=OperationHandlers(services.calls, meta=services.meta),
        gateway=gateway,
        calls=CallHandlers(
            store, abort=parts.abort, source=services.operation_source, flush_usage=ledger.flush
        ),
        approvals=ApprovalHandlers(store.approvals, answer=parts.answer_approval),
        artifacts=ArtifactHandlers(store.artifacts),
        servers=McpServerHandlers(servers, switchboard, editor=parts.external),
        mcp=mcp,
        spokes=SpokeEndpoint(switchboard, identify=auth.identify) if config.spokes.enabled else None,
        usage=UsageHandlers(store, flush_usage=ledger.flush),
        metrics=parts.metrics,
        health=HealthHandlers(store, spool=ledger.spool, is_draining=lambda: gateway.draining),
        reference=ReferenceHandlers(),
    )


def allow_origins(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """The doors for front ends of other origins."""
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED_HEADERS
    )
