"""Which endpoint answers a path: a dict for paths without parameters, patterns for the others.

A router tries its patterns one after the other, and the hub has about a hundred. So they are grouped by
the beginning of the path, and those of one group are tried in their order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.server.http.endpoint import not_found

PREFIX_SEGMENTS = 2  # such as /api/sessions


class RouteTable:
    """An ASGI app for HTTP requests that passes each one to the endpoint of its path, or answers 404.

    `endpoints` are by path; where several patterns match a path, the first one counts.
    """

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._fixed = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        self._endpoints = [(prefix_of(path), path, endpoint) for path, endpoint in endpoints.items()]
        self._prefixes = {prefix for prefix, _, _ in self._endpoints if "{" not in prefix}
        self._routers: dict[str, Router] = {}  # by prefix, and "" for any other

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        path: str = scope["path"]
        endpoint = self._fixed.get(path)
        if endpoint is None:
            endpoint = self._router(prefix_of(path))
        return endpoint(scope, receive, send)

    def _router(self, prefix: str) -> Router:
        """Return the router of the paths with this prefix. It is built when it is first used."""
        group = prefix if prefix in self._prefixes else ""
        router = self._routers.get(group)
        if router is None:
            routes = [
                Route(path, endpoint)
                for own, path, endpoint in self._endpoints
                if not group or own == group or "{" in own
            ]
            router = self._routers[group] = Router(routes, default=not_found)
        return router


def prefix_of(path: str) -> str:
    """Return the first segments of a path."""
    return "/".join(path.split("/", PREFIX_SEGMENTS + 1)[: PREFIX_SEGMENTS + 1])
