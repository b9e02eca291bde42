"""The doors of a hub and where they are: every address, its methods, and who may knock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.server.approvals import Approvals
from dragoman.server.artifacts import Artifacts
from dragoman.server.auth import Auth
from dragoman.server.calls import Calls
from dragoman.server.chat import Chat
from dragoman.server.exchange import Door, Failing, Guard, Handler, no_such_address, no_such_socket
from dragoman.server.gateway.doors import COMPLETIONS, MESSAGES, Gateway, refuse
from dragoman.server.health import Health
from dragoman.server.metrics import Metrics
from dragoman.server.operations import Operations
from dragoman.server.reference.reference import Reference
from dragoman.server.servers import Servers
from dragoman.server.sessions import Sessions
from dragoman.server.usage import Usage

MCP = "/mcp"
SPOKE = "/api/spoke"


class Rooms(msgspec.Struct, frozen=True, kw_only=True):
    """Those who answer at the doors."""

    chat: Chat
    sessions: Sessions
    operations: Operations
    gateway: Gateway
    calls: Calls
    approvals: Approvals
    artifacts: Artifacts
    servers: Servers
    mcp: ASGIApp
    spokes: ASGIApp | None
    usage: Usage
    metrics: Metrics
    health: Health
    reference: Reference


def make_router(rooms: Rooms, auth: Auth, *, open_metrics: bool = True) -> ASGIApp:
    """The doors behind one router; what is no address gets a 404 in the hub's own words.

    Addresses are matched as they were sent, so that an id may hold an encoded slash. The gateway's, which
    have nothing in them to match and the most to do, are looked up first.
    """
    hot = {
        path: Door(handlers, auth=auth, scope="gateway", fail=fail) for path, handlers, fail in models(rooms)
    }
    routes = [Route(path, door) for path, door in hot.items()]
    routes += [
        Route(path, Door(handlers, auth=auth, scope=scope)) for path, handlers, scope in guarded(rooms)
    ]
    routes += [Route(path, Door(handlers)) for path, handlers in public(rooms)]
    metrics = {"GET": rooms.metrics.get}
    routes.append(
        Route("/metrics", Door(metrics) if open_metrics else Door(metrics, auth=auth, scope="admin"))
    )
    router = Router(routes, default=no_such_address)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == MCP and scope["type"] == "http":
            await rooms.mcp(scope, receive, send)
            return
        if scope["type"] == "websocket":
            taken = rooms.spokes if path == SPOKE else None
            await (taken or no_such_socket)(scope, receive, send)
            return
        if "raw_path" in scope:
            scope["path"] = scope["raw_path"].decode("latin-1")
        door = hot.get(path)
        await (router if door is None else door)(scope, receive, send)

    return app


def models(rooms: Rooms) -> Iterator[tuple[str, Mapping[str, Handler], Failing]]:
    """The gateway's doors, and in whose words they refuse."""
    gateway = rooms.gateway
    openai, anthropic = partial(refuse, tongue=COMPLETIONS), partial(refuse, tongue=MESSAGES)
    yield "/v1/chat/completions", {"POST": gateway.chat}, openai
    yield "/v1/messages", {"POST": gateway.messages}, anthropic
    yield "/v1/messages/count_tokens", {"POST": gateway.count_tokens}, anthropic
    yield "/v1/embeddings", {"POST": gateway.embeddings}, openai
    yield "/v1/models", {"GET": gateway.models}, openai
    yield "/v1/models/{id:path}", {"GET": gateway.model}, openai


def guarded(rooms: Rooms) -> Iterator[tuple[str, Mapping[str, Handler], Guard]]:
    """The doors that want a key, and what it has to be for; the busiest first."""
    chat, sessions, operations = rooms.chat, rooms.sessions, rooms.operations
    yield "/api/chat", {"POST": chat.post}, "chat"
    yield "/api/chat/{id}/stream", {"GET": chat.resume}, "chat"
    yield "/api/chat/{id}/stop", {"POST": chat.stop}, "chat"
    yield "/api/sessions", {"GET": sessions.list, "POST": sessions.create}, "chat"
    yield (
        "/api/sessions/{id}",
        {"GET": sessions.get, "PATCH": sessions.change, "DELETE": sessions.delete},
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
    yield "/api/usage", {"GET": rooms.usage.show}, None
    yield from watching(rooms)
    yield from administering(rooms)


def watching(rooms: Rooms) -> Iterator[tuple[str, Mapping[str, Handler], Guard]]:
    """The doors to what was called, what waits for an answer, and what was kept of results."""
    calls, approvals, artifacts = rooms.calls, rooms.approvals, rooms.artifacts
    yield "/api/calls", {"GET": calls.list}, None
    yield "/api/calls/{id}", {"GET": calls.get}, None
    yield "/api/calls/{id}/tree", {"GET": calls.tree}, None
    yield "/api/calls/{id}/abort", {"POST": calls.abort}, None
    yield "/api/approvals", {"GET": approvals.list}, None
    yield "/api/approvals/{id}", {"GET": approvals.get, "POST": approvals.answer}, None
    yield "/api/artifacts/{id}", {"GET": artifacts.get}, None
    yield "/api/artifacts/{id}/content", {"GET": artifacts.content}, None


def administering(rooms: Rooms) -> Iterator[tuple[str, Mapping[str, Handler], Guard]]:
    """The doors to what brings operations from elsewhere."""
    servers = rooms.servers
    yield "/api/mcp/servers", {"GET": servers.list, "POST": servers.add}, "admin"
    yield "/api/mcp/servers/{name}", {"GET": servers.get, "DELETE": servers.remove}, "admin"
    yield "/api/mcp/servers/{name}/approve", {"POST": servers.approve}, "admin"
    yield "/api/mcp/servers/{name}/reconnect", {"POST": servers.reconnect}, "admin"
    yield "/api/spokes", {"GET": servers.spokes}, "admin"


def public(rooms: Rooms) -> Iterator[tuple[str, Mapping[str, Handler]]]:
    """The doors that are open to all."""
    yield "/healthz", {"GET": rooms.health.live}
    yield "/readyz", {"GET": rooms.health.ready}
    yield "/openapi.json", {"GET": rooms.reference.openapi}
    yield "/docs", {"GET": rooms.reference.docs}
    yield "/", {"GET": rooms.reference.home}
