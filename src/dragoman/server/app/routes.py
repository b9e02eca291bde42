"""The doors of a hub and where they are: every address, its methods, and who may knock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.accounts.meter import Meter
from dragoman.config import Config
from dragoman.http.exchange import ErrorHandler, Handler
from dragoman.http.origin_policy import OriginPolicy
from dragoman.identity import Identity
from dragoman.mcp.server.endpoint import McpEndpoint
from dragoman.mcp.server.server import McpServer
from dragoman.operations.approval import ApprovalRequest
from dragoman.runs.registry import RunRegistry
from dragoman.server.app.external_operations import ExternalOperations
from dragoman.server.app.services import HubServices
from dragoman.server.approvals import ApprovalHandlers
from dragoman.server.artifacts import ArtifactHandlers
from dragoman.server.auth import Auth
from dragoman.server.calls import CallHandlers
from dragoman.server.chat import ChatHandlers, ChatSettings
from dragoman.server.gateway.routes import CHAT_COMPLETIONS, MESSAGES, Gateway, send_error
from dragoman.server.health import HealthHandlers
from dragoman.server.http_endpoint import (
    HttpEndpoint,
    RequiredScope,
    not_found,
    reject_websocket,
)
from dragoman.server.mcp_servers import McpServerHandlers
from dragoman.server.metrics import Metrics
from dragoman.server.operations import OperationHandlers
from dragoman.server.reference.handlers import ReferenceHandlers
from dragoman.server.sessions import SessionHandlers
from dragoman.server.usage import UsageHandlers
from dragoman.spokes.hub.endpoint import SpokeEndpoint

MCP_PATH = "/mcp"
SPOKE_PATH = "/api/spoke"


class ApiHandlers(msgspec.Struct, frozen=True, kw_only=True):
    """Those who answer at the doors."""

    chat: ChatHandlers
    sessions: SessionHandlers
    operations: OperationHandlers
    gateway: Gateway
    calls: CallHandlers
    approvals: ApprovalHandlers
    artifacts: ArtifactHandlers
    servers: McpServerHandlers
    mcp: ASGIApp
    spokes: ASGIApp | None
    usage: UsageHandlers
    metrics: Metrics
    health: HealthHandlers
    reference: ReferenceHandlers


def build_router(handlers: ApiHandlers, auth: Auth, *, public_metrics: bool = True) -> ASGIApp:
    """The doors behind one router; what is no address gets a 404 in the hub's own words.

    Addresses are matched as they were sent, so that an id may hold an encoded slash. The gateway's, which
    have nothing in them to match and the most to do, are looked up first.
    """
    hot = {
        path: HttpEndpoint(handlers, auth=auth, scope="gateway", on_error=fail)
        for path, handlers, fail in gateway_routes(handlers)
    }
    routes = [Route(path, door) for path, door in hot.items()]
    routes += [
        Route(path, HttpEndpoint(handlers, auth=auth, scope=scope))
        for path, handlers, scope in api_routes(handlers)
    ]
    routes += [Route(path, HttpEndpoint(handlers)) for path, handlers in public_routes(handlers)]
    metrics = {"GET": handlers.metrics.get}
    routes.append(
        Route(
            "/metrics",
            HttpEndpoint(metrics) if public_metrics else HttpEndpoint(metrics, auth=auth, scope="admin"),
        )
    )
    router = Router(routes, default=not_found)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == MCP_PATH and scope["type"] == "http":
            await handlers.mcp(scope, receive, send)
            return
        if scope["type"] == "websocket":
            taken = handlers.spokes if path == SPOKE_PATH else None
            await (taken or reject_websocket)(scope, receive, send)
            return
        if "raw_path" in scope:
            scope["path"] = scope["raw_path"].decode("latin-1")
        door = hot.get(path)
        await (router if door is None else door)(scope, receive, send)

    return app


def gateway_routes(handlers: ApiHandlers) -> Iterator[tuple[str, Mapping[str, Handler], ErrorHandler]]:
    """The gateway's doors, and in whose words they refuse."""
    gateway = handlers.gateway
    openai, anthropic = partial(send_error, dialect=CHAT_COMPLETIONS), partial(send_error, dialect=MESSAGES)
    yield "/v1/chat/completions", {"POST": gateway.chat}, openai
    yield "/v1/messages", {"POST": gateway.messages}, anthropic
    yield "/v1/messages/count_tokens", {"POST": gateway.count_tokens}, anthropic
    yield "/v1/embeddings", {"POST": gateway.embeddings}, openai
    yield "/v1/models", {"GET": gateway.models}, openai
    yield "/v1/models/{id:path}", {"GET": gateway.model}, openai


def api_routes(handlers: ApiHandlers) -> Iterator[tuple[str, Mapping[str, Handler], RequiredScope]]:
    """The doors that want a key, and what it has to be for; the busiest first."""
    chat, sessions, operations = handlers.chat, handlers.sessions, handlers.operations
    yield "/api/chat", {"POST": chat.post}, "chat"
    yield "/api/chat/{id}/stream", {"GET": chat.resume}, "chat"
    yield "/api/chat/{id}/stop", {"POST": chat.stop}, "chat"
    yield "/api/sessions", {"GET": sessions.list, "POST": sessions.create}, "chat"
    yield (
        "/api/sessions/{id}",
        {"GET": sessions.get, "PATCH": sessions.update, "DELETE": sessions.delete},
        "chat",
    )
    yield "/api/sessions/{id}/messages", {"GET": sessions.messages}, "chat"
    yield "/api/sessions/{id}/chat", {"POST": chat.post}, "chat"
    yield "/api/sessions/{id}/chat/stream", {"GET": chat.resume}, "chat"
    yield "/api/sessions/{id}/chat/{same}/stream", {"GET": chat.resume}, "chat"  # as a stock client makes it
    yield "/api/sessions/{id}/chat/stop", {"POST": chat.stop}, "chat"
    yield "/api/sessions/{id}/stream", {"GET": chat.resume}, "chat"
    yield "/api/sessions/{id}/stop", {"POST": chat.stop}, "chat"
    yield "/api/search", {"GET": sessions.search}, "chat"
    yield "/api/operations", {"GET": operations.list}, "operations"
    yield "/api/operations/{id}", {"GET": operations.get}, "operations"
    yield "/api/operations/{id}/call", {"POST": operations.call}, "operations"
    yield "/api/usage", {"GET": handlers.usage.get}, None
    yield from inspection_routes(handlers)
    yield from admin_routes(handlers)


def inspection_routes(handlers: ApiHandlers) -> Iterator[tuple[str, Mapping[str, Handler], RequiredScope]]:
    """The doors to what was called, what waits for an answer, and what was kept of results."""
    calls, approvals, artifacts = handlers.calls, handlers.approvals, handlers.artifacts
    yield "/api/calls", {"GET": calls.list}, None
    yield "/api/calls/{id}", {"GET": calls.get}, None
    yield "/api/calls/{id}/tree", {"GET": calls.tree}, None
    yield "/api/calls/{id}/abort", {"POST": calls.abort}, None
    yield "/api/approvals", {"GET": approvals.list}, None
    yield "/api/approvals/{id}", {"GET": approvals.get, "POST": approvals.answer}, None
    yield "/api/artifacts/{id}", {"GET": artifacts.get}, None
    yield "/api/artifacts/{id}/content", {"GET": artifacts.content}, None


def admin_routes(handlers: ApiHandlers) -> Iterator[tuple[str, Mapping[str, Handler], RequiredScope]]:
    """The doors to what brings operations from elsewhere."""
    servers = handlers.servers
    yield "/api/mcp/servers", {"GET": servers.list, "POST": servers.add}, "admin"
    yield "/api/mcp/servers/{name}", {"GET": servers.get, "DELETE": servers.remove}, "admin"
    yield "/api/mcp/servers/{name}/approve", {"POST": servers.approve}, "admin"
    yield "/api/mcp/servers/{name}/reconnect", {"POST": servers.reconnect}, "admin"
    yield "/api/spokes", {"GET": servers.spokes}, "admin"


def public_routes(handlers: ApiHandlers) -> Iterator[tuple[str, Mapping[str, Handler]]]:
    """The doors that are open to all."""
    yield "/healthz", {"GET": handlers.health.live}
    yield "/readyz", {"GET": handlers.health.ready}
    yield "/openapi.json", {"GET": handlers.reference.openapi}
    yield "/docs", {"GET": handlers.reference.docs}
    yield "/", {"GET": handlers.reference.home}


# ---- The front of a hub: its doors, and those who answer at them.

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
