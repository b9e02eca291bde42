"""The routes of a served hub: every path, its handlers by method, and the scope that a key needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.accounts.meter import Meter
from dragoman.config import Config
from dragoman.http.asgi_exchange import BodyLimits, ErrorHandler, Handler
from dragoman.http.origin_policy import OriginPolicy
from dragoman.mcp.server.endpoint import McpEndpoint
from dragoman.mcp.server.limits import McpLimits
from dragoman.mcp.server.server import McpServer
from dragoman.revocable_work import ActiveWork
from dragoman.runners.hub.endpoint import RunnerEndpoint
from dragoman.runners.hub.server import RunnerServer
from dragoman.runs.registry import RunRegistry
from dragoman.server.a2a.handlers import A2aHandlers
from dragoman.server.a2a.push import PushNotifier
from dragoman.server.accounts.keys import KeyHandlers
from dragoman.server.accounts.tokens import TokenHandlers
from dragoman.server.accounts.usage import UsageHandlers
from dragoman.server.ag_ui import AgUiHandlers
from dragoman.server.app.external_operations import ExternalOperations
from dragoman.server.app.model_setup import listed_models
from dragoman.server.app.push import build_push_post, push_settings
from dragoman.server.app.routing.a2a_routes import a2a_routes, build_a2a_handlers, card_routes
from dragoman.server.app.routing.call_routes import CallApi, build_call_api, call_api_routes
from dragoman.server.app.routing.console_routes import (
    ConsoleApi,
    build_console_api,
    console_routes,
    public_console_routes,
)
from dragoman.server.app.routing.endpoint_access import api_endpoints
from dragoman.server.app.routing.response_routes import (
    RESPONSES_PATH,
    build_response_handlers,
    response_routes,
)
from dragoman.server.app.routing.shared_routes import (
    Routes,
    artifact_routes,
    key_routes,
    operation_routes,
    run_routes,
    session_routes,
    usage_routes,
)
from dragoman.server.app.routing.system_routes import SystemApi, build_system_api, system_routes
from dragoman.server.app.routing.team_routes import TeamApi, build_team_api, team_routes
from dragoman.server.app.runners import build_runner_endpoint
from dragoman.server.app.services import HubServices
from dragoman.server.approvals import AnswerApproval
from dragoman.server.artifacts import ArtifactHandlers
from dragoman.server.auth import Auth
from dragoman.server.browser_sessions import BrowserAuth
from dragoman.server.chat import ChatHandlers, ChatSettings
from dragoman.server.event_publishing import DomainEventHandlers
from dragoman.server.events import EventHandlers
from dragoman.server.gateway.handlers import (
    CHAT_COMPLETIONS,
    MESSAGES,
    Gateway,
    UnknownClientPath,
    send_error,
)
from dragoman.server.gateway.responses.handlers import ResponseHandlers
from dragoman.server.gateway.responses.socket import ResponsesSocket
from dragoman.server.health import HealthHandlers
from dragoman.server.hosts import LocalHost
from dragoman.server.http.cors import allow_origins
from dragoman.server.http.endpoint import (
    HttpEndpoint,
    reject_websocket,
)
from dragoman.server.http.route_table import RouteTable
from dragoman.server.mcp_and_spokes import McpServerHandlers
from dragoman.server.metrics.metrics import Metrics
from dragoman.server.operations import OperationHandlers
from dragoman.server.reference.documentation_site import site_endpoints
from dragoman.server.reference.handlers import ReferenceHandlers
from dragoman.server.runs import RunHandlers
from dragoman.server.sessions.branches import BranchHandlers
from dragoman.server.sessions.grants import GrantHandlers
from dragoman.server.sessions.import_export import SessionFileHandlers
from dragoman.server.sessions.sessions import SessionHandlers
from dragoman.server.sessions.shares import ShareHandlers
from dragoman.server.sockets.endpoint import PATH as SOCKET_PATH
from dragoman.server.sockets.endpoint import SessionSocketEndpoint
from dragoman.server.sockets.session_socket import SocketServices
from dragoman.server.system import SystemSources
from dragoman.spokes.hub.endpoint import SpokeEndpoint
from dragoman.spokes.hub.server import SpokeServer
from dragoman.store.store import Store
from dragoman.teams.tasks.service import TeamTasks
from dragoman.teams.triggers.service import TriggerService

MCP_PATH = "/mcp"
SPOKE_PATH = "/api/spoke"
RUNNER_PATH = "/api/runners"
EXPOSED_HEADERS = [
    f"x-dragoman-{name}" for name in ("session", "run", "request-id", "model", "cost", "dropped", "estimated")
]


class ApiHandlers(msgspec.Struct, frozen=True, kw_only=True):
    """The handlers of all routes."""

    chat: ChatHandlers
    ag_ui: AgUiHandlers
    a2a: A2aHandlers
    sessions: SessionHandlers
    runs: RunHandlers
    branches: BranchHandlers
    files: SessionFileHandlers
    shares: ShareHandlers
    operations: OperationHandlers
    gateway: Gateway
    responses: ResponseHandlers
    calls: CallApi
    artifacts: ArtifactHandlers
    servers: McpServerHandlers
    teams: TeamApi
    console: ConsoleApi
    keys: KeyHandlers
    tokens: TokenHandlers
    system: SystemApi
    events: EventHandlers
    domain_events: DomainEventHandlers
    grants: GrantHandlers
    session_sockets: SessionSocketEndpoint
    mcp: ASGIApp
    spokes: SpokeEndpoint | None
    runners: RunnerEndpoint | None
    usage: UsageHandlers
    metrics: Metrics
    health: HealthHandlers
    reference: ReferenceHandlers


def build_router(
    handlers: ApiHandlers, auth: Auth, *, body_limits: BodyLimits, public_metrics: bool = True
) -> ASGIApp:
    """Build the router. An unknown path gets a 404 with the hub's error body.

    Paths are matched as they were sent, still quoted, so that an id may hold an encoded slash.
    """
    endpoints: dict[str, ASGIApp] = {
        **{
            path: HttpEndpoint(
                methods, auth=auth, scope="gateway", on_error=on_error, body_limits=body_limits
            )
            for path, methods, on_error in gateway_routes(handlers)
        },
        **api_endpoints(
            api_routes(handlers), BrowserAuth(auth, handlers.console.browsers), body_limits=body_limits
        ),
        **{
            path: HttpEndpoint(methods, auth=auth, scope="chat", on_error=on_error, body_limits=body_limits)
            for path, methods, on_error in a2a_routes(handlers.a2a)
        },
        **{path: HttpEndpoint(methods) for path, methods in public_routes(handlers)},
        **{path: HttpEndpoint(methods) for path, methods in card_routes(handlers.a2a)},
        "/v1": (unknown := UnknownClientPath()),
        "/v1/{path:path}": unknown,
    }
    endpoints |= site_endpoints(handlers.reference.site)
    metrics = {"GET": handlers.metrics.get}
    endpoints["/metrics"] = (
        HttpEndpoint(metrics) if public_metrics else HttpEndpoint(metrics, auth=auth, scope="admin")
    )
    websockets = dict(websocket_routes(handlers, auth))
    routes = RouteTable(endpoints)

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope.get("path", "")
        if path == MCP_PATH and scope["type"] == "http":
            return handlers.mcp(scope, receive, send)
        if scope["type"] == "websocket":
            raw = scope.get("raw_path", path.encode()).decode("latin-1")  # an id may hold a slash, quoted
            is_session = SOCKET_PATH.fullmatch(raw) is not None
            socket = handlers.session_sockets if is_session else websockets.get(path, reject_websocket)
            return socket(scope, receive, send)
        if "raw_path" in scope:
            scope["path"] = scope["raw_path"].decode("latin-1")
        return routes(scope, receive, send)

    return app


def websocket_routes(handlers: ApiHandlers, auth: Auth) -> Iterator[tuple[str, ASGIApp]]:
    """The paths of WebSockets."""
    responses = handlers.responses
    yield RESPONSES_PATH, ResponsesSocket(responses.create, auth, max_memory=responses.max_memory)
    if handlers.runners is not None:
        yield RUNNER_PATH, handlers.runners
    if handlers.spokes is not None:
        yield SPOKE_PATH, handlers.spokes


def gateway_routes(handlers: ApiHandlers) -> Iterator[tuple[str, Mapping[str, Handler], ErrorHandler]]:
    """The paths of the gateway, each with the error format of its dialect."""
    gateway = handlers.gateway
    openai, anthropic = partial(send_error, dialect=CHAT_COMPLETIONS), partial(send_error, dialect=MESSAGES)
    yield "/v1/chat/completions", {"POST": gateway.chat}, openai
    yield from response_routes(handlers.responses)
    yield "/v1/messages", {"POST": gateway.messages}, anthropic
    yield "/v1/messages/count_tokens", {"POST": gateway.count_tokens}, anthropic
    yield "/v1/embeddings", {"POST": gateway.embeddings}, openai
    yield "/v1/models", {"GET": gateway.models}, openai
    yield "/v1/models/{id:path}", {"GET": gateway.model}, openai


def api_routes(handlers: ApiHandlers) -> Routes:
    """The paths under `/api`, each with the scope that a key needs, the busiest first."""
    yield from chat_routes(handlers.chat)
    yield "/agui/{agent}", {"POST": handlers.ag_ui.post}, "chat"
    yield from file_routes(handlers.files, handlers.shares)  # before the session with the id "import"
    yield from session_routes(handlers.sessions)
    yield from run_routes(handlers.runs)
    yield from branch_routes(handlers.branches)
    yield from operation_routes(handlers.operations)
    yield from usage_routes(handlers.usage)
    yield from call_api_routes(handlers.calls)
    yield from artifact_routes(handlers.artifacts)
    yield from admin_routes(handlers.servers)
    yield "/api/events", {"GET": handlers.events.follow}, "chat"
    yield "/api/sessions/{id}/events", {"POST": handlers.domain_events.publish}, "chat"
    yield from grant_routes(handlers.grants)
    yield from team_routes(handlers.teams)
    yield from key_routes(handlers.keys)
    yield from token_routes(handlers.tokens)
    yield from system_routes(handlers.system)
    yield from console_routes(handlers.console)


def token_routes(tokens: TokenHandlers) -> Routes:
    methods = {"GET": tokens.list, "POST": tokens.create, "DELETE": tokens.revoke_owner}
    yield "/api/tokens", methods, "chat"
    yield "/api/tokens/{id}", {"DELETE": tokens.revoke}, "chat"


def chat_routes(chat: ChatHandlers) -> Routes:
    yield "/api/chat", {"POST": chat.post}, "chat"
    yield "/api/chat/{id}/stream", {"GET": chat.resume}, "chat"
    yield "/api/chat/{id}/stop", {"POST": chat.stop}, "chat"
    yield "/api/sessions/{id}/chat", {"POST": chat.post}, "chat"
    yield "/api/sessions/{id}/chat/stream", {"GET": chat.resume}, "chat"
    # A stock `useChat` whose `api` is /api/sessions/ID/chat puts the id once more into its resume URL.
    yield "/api/sessions/{id}/chat/{same}/stream", {"GET": chat.resume}, "chat"
    yield "/api/sessions/{id}/chat/stop", {"POST": chat.stop}, "chat"
    yield "/api/sessions/{id}/stream", {"GET": chat.resume}, "chat"
    yield "/api/sessions/{id}/stop", {"POST": chat.stop}, "chat"


def branch_routes(branches: BranchHandlers) -> Routes:
    yield "/api/sessions/{id}/fork", {"POST": branches.fork}, "chat"
    yield "/api/sessions/{id}/rewind", {"POST": branches.rewind}, "chat"
    yield "/api/sessions/{id}/branch", {"POST": branches.switch}, "chat"


def grant_routes(grants: GrantHandlers) -> Routes:
    methods = {"GET": grants.list, "PUT": grants.put, "DELETE": grants.remove}
    yield "/api/sessions/{id}/grants", methods, "chat"
    yield "/api/sessions/{id}/audit", {"GET": grants.audit}, "chat"


def file_routes(files: SessionFileHandlers, shares: ShareHandlers) -> Routes:
    """The paths of exports, imports and shared links."""
    yield "/api/sessions/import", {"POST": files.import_session}, "chat"
    yield "/api/sessions/{id}/export", {"GET": files.export}, "chat"
    yield "/api/sessions/{id}/share", {"GET": shares.list, "POST": shares.create}, "chat"
    yield "/api/sessions/{id}/share/{share}", {"DELETE": shares.revoke}, "chat"


def admin_routes(servers: McpServerHandlers) -> Routes:
    """The paths of MCP servers and spokes."""
    yield "/api/mcp/servers", {"GET": servers.list, "POST": servers.add}, "admin"
    yield "/api/mcp/servers/{name}", {"GET": servers.get, "DELETE": servers.remove}, "admin"
    yield "/api/mcp/servers/{name}/log", {"GET": servers.log}, "admin"
    yield "/api/mcp/servers/{name}/approve", {"POST": servers.approve}, "admin"
    yield "/api/mcp/servers/{name}/reconnect", {"POST": servers.reconnect}, "admin"
    yield "/api/spokes", {"GET": servers.spokes}, "admin"
    yield "/api/spokes/operations", {"GET": servers.definitions}, "admin"
    yield "/api/spokes/operations/{id}", {"GET": servers.definition}, "admin"
    yield "/api/spokes/approve", {"POST": servers.approve_definitions}, "admin"
    yield "/api/spokes/revoke", {"POST": servers.revoke_definitions}, "admin"
    yield "/api/spokes/namespaces/{name}", {"DELETE": servers.free_namespace}, "admin"


def public_routes(handlers: ApiHandlers) -> Iterator[tuple[str, Mapping[str, Handler]]]:
    """The paths that need no key."""
    yield from public_console_routes(handlers.console)
    yield "/share/{token}", {"GET": handlers.shares.show}
    yield "/hooks/triggers/{id}", {"POST": handlers.teams.hooks.receive}
    yield "/healthz", {"GET": handlers.health.live}
    yield "/readyz", {"GET": handlers.health.ready}
    yield "/openapi.json", {"GET": handlers.reference.openapi}
    yield "/docs/api", {"GET": handlers.reference.docs}
    yield "/", {"GET": handlers.reference.home}


class HubParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a hub that its routes lead to, and two of its methods."""

    runs: RunRegistry
    gateway: Gateway
    meter: Meter
    metrics: Metrics
    host: LocalHost
    external: ExternalOperations
    system: SystemSources
    mcp: McpServer
    runners: RunnerServer
    team_tasks: TeamTasks
    triggers: TriggerService
    abort: Callable[[str], Awaitable[bool]]
    answer_approval: AnswerApproval


class HubEndpoints:
    """The HTTP and WebSocket endpoints of a hub; `app` is the ASGI app."""

    def __init__(self, config: Config, parts: HubParts, *, services: HubServices) -> None:
        auth = Auth(
            services.store.keys,
            required=services.environment.require_keys,
            folder=services.environment.data,
            origins=OriginPolicy(hosts=config.mcp.hosts, origins=(*config.cors.origins, *config.mcp.origins)),
        )
        auth.tokens = services.store.session_tokens
        self._mcp = McpEndpoint(
            parts.mcp,
            identify=auth.identify,
            hosts=config.mcp.hosts,
            origins=config.mcp.origins,
            limits=McpLimits(sessions=config.mcp.sessions, owner_sessions=config.mcp.owner_sessions),
        )
        body_limits = BodyLimits(count=parts.meter.receiving, max_values=config.limits.values)
        self._mcp.body_limits = body_limits
        handlers = build_handlers(config, parts, services=services, mcp=self._mcp, auth=auth)
        self._operations = handlers.operations
        self.console_pages = handlers.console.pages
        self.push_notifier = PushNotifier(
            services.store,
            build_push_post(config),
            find_task=handlers.a2a.find_task,
            settings=push_settings(config, services.environment.environ),
        )
        self._responses, self._events = handlers.responses.background, handlers.events
        spokes, runners = handlers.spokes, handlers.runners
        self.work: Sequence[ActiveWork] = [
            auth.work,
            handlers.session_sockets.work,
            self._mcp.work,
            handlers.responses.background.work,
            *([] if spokes is None else [spokes.work]),
            *([] if runners is None else [runners.work]),
        ]
        """What is in progress for keys: requests, MCP sessions, spokes, runners."""
        app = build_router(handlers, auth, body_limits=body_limits, public_metrics=config.metrics.public)
        self.app = allow_origins(
            app,
            config.cors.origins,
            allow_loopback=not services.environment.require_keys,
            exposed_headers=EXPOSED_HEADERS,
            separate=[MCP_PATH],
        )

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for the calls that these endpoints received to end."""
        await asyncio.gather(self._mcp.drain(seconds), self._operations.drain(seconds))

    async def close(self) -> None:
        """End the sessions of MCP clients, and streams of events."""
        self._events.close()
        await asyncio.gather(self._mcp.close(), self._responses.close())


def chat_settings(config: Config) -> ChatSettings:
    """Return the limits of chat requests."""
    limits = config.limits
    return ChatSettings(
        body=limits.body,
        history=limits.history,
        part=limits.part,
        keep_alive=config.keep_alive,
        signs_webhooks=config.webhooks.secret_env is not None,
    )


def build_handlers(
    config: Config, parts: HubParts, *, services: HubServices, mcp: ASGIApp, auth: Auth
) -> ApiHandlers:
    """Build the handlers of all routes."""
    store, ledger, gateway = services.store, parts.meter.ledger, parts.gateway
    settings = chat_settings(config)
    servers, spoke_server = parts.external.servers, parts.external.spoke_server
    access = services.shared_access
    return ApiHandlers(
        chat=ChatHandlers(parts.runs, store, access=access, settings=settings),
        ag_ui=AgUiHandlers(parts.runs, store, settings=settings, access=access),
        a2a=build_a2a_handlers(
            config, services, runs=parts.runs, auth=auth, answer_approval=parts.answer_approval
        ),
        **build_session_handlers(store, parts.runs),
        runs=RunHandlers(store, runs=parts.runs, abort=parts.abort),
        operations=OperationHandlers(services.calls, meta=services.meta),
        gateway=gateway,
        responses=build_response_handlers(config, gateway, runs=parts.runs, store=store),
        calls=build_call_api(
            services, abort=parts.abort, answer=parts.answer_approval, flush_usage=ledger.flush
        ),
        artifacts=ArtifactHandlers(store.artifacts),
        servers=McpServerHandlers(servers, spoke_server, editor=parts.external),
        domain_events=DomainEventHandlers(services.session_events, store),
        events=EventHandlers(services.events, store, access=access, keep_alive=config.keep_alive),
        grants=GrantHandlers(store, access=access),
        session_sockets=build_session_sockets(config, parts, services=services, auth=auth),
        console=build_console_api(services, auth, keep_alive=config.keep_alive),
        teams=build_team_api(services, parts.team_tasks, triggers=parts.triggers),
        keys=KeyHandlers(store.keys),
        tokens=TokenHandlers(store.session_tokens, forget=auth.forget_tokens),
        system=build_system_api(
            services,
            parts.system,
            meter=parts.meter,
            host=parts.host,
            count_runs=lambda: parts.runs.active_count,
        ),
        mcp=mcp,
        spokes=build_spoke_endpoint(spoke_server, auth) if config.spokes.enabled else None,
        runners=build_runner_endpoint(parts.runners, auth) if config.runners.enabled else None,
        usage=UsageHandlers(store, flush_usage=ledger.flush),
        metrics=parts.metrics,
        health=HealthHandlers(
            store, spool=ledger.spool, is_draining=lambda: gateway.draining or parts.host.is_draining
        ),
        reference=ReferenceHandlers(),
    )


def build_session_sockets(
    config: Config, parts: HubParts, *, services: HubServices, auth: Auth
) -> SessionSocketEndpoint:
    """Build the endpoint of the sockets of sessions."""
    socket_services = SocketServices(
        store=services.store,
        runs=parts.runs,
        events=services.events,
        answer_approval=parts.answer_approval,
        models=listed_models(config),
        keep_alive=config.keep_alive,
        max_frame=config.limits.body,
        max_part=config.limits.part,
    )
    return SessionSocketEndpoint(
        socket_services,
        auth=auth,
        access=services.shared_access,
        origins=frozenset(config.cors.origins),
        requires_key=services.environment.require_keys,
    )


def build_session_handlers(store: Store, runs: RunRegistry) -> dict[str, Any]:
    """Build the handlers of sessions, by their names in `ApiHandlers`."""
    return {
        "sessions": SessionHandlers(store, runs=runs),
        "branches": BranchHandlers(store, runs=runs),
        "files": SessionFileHandlers(store, runs=runs),
        "shares": ShareHandlers(store),
    }


def build_spoke_endpoint(server: SpokeServer, auth: Auth) -> SpokeEndpoint:
    """Build the endpoint of spokes."""
    return SpokeEndpoint(server, identify=auth.identify, check_host=auth.check_host)
