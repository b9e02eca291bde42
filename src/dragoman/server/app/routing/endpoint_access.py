"""The endpoints under `/api`, and the methods that session tokens may use."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.http.asgi_exchange import BodyLimits
from dragoman.server.app.routing.shared_routes import Routes
from dragoman.server.auth import Auth
from dragoman.server.browser_sessions import BrowserAuth
from dragoman.server.http.endpoint import NO_TOKENS, HttpEndpoint, TokenMethods

READ: TokenMethods = {"GET": "path"}
WRITE: TokenMethods = {"POST": "path"}
TOKEN_METHODS: Mapping[str, TokenMethods] = {
    "/api/chat": {"POST": "handler"},
    "/api/chat/{id}/stream": READ,
    "/api/chat/{id}/stop": WRITE,
    "/api/sessions/{id}/chat": WRITE,
    "/api/sessions/{id}/chat/stream": READ,
    "/api/sessions/{id}/chat/{same}/stream": READ,
    "/api/sessions/{id}/chat/stop": WRITE,
    "/api/sessions/{id}/stream": READ,
    "/api/sessions/{id}/stop": WRITE,
    "/api/sessions": {"GET": "handler"},
    "/api/sessions/{id}": READ,
    "/api/sessions/{id}/messages": READ,
    "/api/approvals": {"GET": "handler"},
    "/api/approvals/{id}": {"GET": "handler", "POST": "handler"},
}
"""The methods that session tokens may use; others are 404 for them. Sockets check the session themselves."""


def api_endpoints(
    routes: Routes, auth: Auth | BrowserAuth, *, body_limits: BodyLimits
) -> Mapping[str, HttpEndpoint]:
    """Return the endpoint of each route, by its path."""
    return {
        path: HttpEndpoint(
            methods,
            auth=auth,
            scope=scope,
            body_limits=body_limits,
            tokens=TOKEN_METHODS.get(path, NO_TOKENS),
        )
        for path, methods, scope in routes
    }
