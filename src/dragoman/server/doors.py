"""The doors of a hub and where they are: every address, its methods, and who may knock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.server.auth import Auth
from dragoman.server.chat import Chat
from dragoman.server.exchange import Door, Handler, no_such_address
from dragoman.server.health import Health
from dragoman.server.operations import Operations
from dragoman.server.reference import Reference
from dragoman.server.sessions import Sessions


class Rooms(msgspec.Struct, frozen=True, kw_only=True):
    """Those who answer at the doors."""

    chat: Chat
    sessions: Sessions
    operations: Operations
    health: Health
    reference: Reference


def make_router(rooms: Rooms, auth: Auth) -> ASGIApp:
    """The doors behind one router; what is no address gets a 404 in the hub's own words.

    Addresses are matched as they were sent, so that an id may hold an encoded slash.
    """
    routes = [Route(path, Door(handlers, auth=auth)) for path, handlers in guarded(rooms)]
    routes += [Route(path, Door(handlers)) for path, handlers in public(rooms)]
    router = Router(routes, default=no_such_address)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if "raw_path" in scope:
            scope["path"] = scope["raw_path"].decode("latin-1")
        await router(scope, receive, send)

    return app


def guarded(rooms: Rooms) -> Iterator[tuple[str, Mapping[str, Handler]]]:
    """The doors that want a key; the busiest first."""
    chat, sessions, operations = rooms.chat, rooms.sessions, rooms.operations
    yield "/api/chat", {"POST": chat.post}
    yield "/api/chat/{id}/stream", {"GET": chat.resume}
    yield "/api/chat/{id}/stop", {"POST": chat.stop}
    yield "/api/sessions", {"GET": sessions.list, "POST": sessions.create}
    yield (
        "/api/sessions/{id}",
        {"GET": sessions.get, "PATCH": sessions.change, "DELETE": sessions.delete},
    )
    yield "/api/sessions/{id}/messages", {"GET": sessions.messages}
    yield "/api/sessions/{id}/chat", {"POST": chat.post}
    yield "/api/sessions/{id}/chat/stream", {"GET": chat.resume}
    yield "/api/sessions/{id}/chat/{same}/stream", {"GET": chat.resume}  # as a stock client makes it
    yield "/api/sessions/{id}/chat/stop", {"POST": chat.stop}
    yield "/api/sessions/{id}/stream", {"GET": chat.resume}
    yield "/api/sessions/{id}/stop", {"POST": chat.stop}
    yield "/api/operations", {"GET": operations.list}
    yield "/api/operations/{id}", {"GET": operations.get}
    yield "/api/operations/{id}/call", {"POST": operations.call}


def public(rooms: Rooms) -> Iterator[tuple[str, Mapping[str, Handler]]]:
    """The doors that are open to all."""
    yield "/healthz", {"GET": rooms.health.live}
    yield "/readyz", {"GET": rooms.health.ready}
    yield "/openapi.json", {"GET": rooms.reference.openapi}
    yield "/docs", {"GET": rooms.reference.docs}
    yield "/", {"GET": rooms.reference.home}
