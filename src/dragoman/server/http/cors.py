"""CORS: which front ends of other origins may read answers, and a log line for those that may not.

Starlette's middleware answers preflight requests. The headers of other responses are known before their
request is handled, so they go with the request's scope: a middleware that looks at each message of a response
costs a stream a call for every chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.http.asgi_exchange import RESPONSE_HEADERS
from dragoman.http.host_origin import parse_authority, parse_origin

log = logging.getLogger(__name__)
LOOPBACK_ORIGIN = r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?"
WITHOUT_ORIGIN = {"vary": "Origin"}
MAX_LOGGED = 50  # origins; a page can make up any number


class CorsHeaders:
    """Adds CORS headers to responses, and logs the first request of each origin that is not allowed.

    `exposed` are the headers that pages of other origins may read, as one text; None: no page of another
    origin is allowed, and nothing is added. Paths in `separate` do not take headers from the scope, so their
    responses pass Starlette's middleware.
    """

    def __init__(
        self, app: ASGIApp, cors: CORSMiddleware, *, exposed: str | None, separate: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._cors = cors
        self._exposed = exposed
        self._separate = separate
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        app = self._app
        if scope["type"] == "http":
            origin: str | None = None
            for name, value in scope["headers"]:
                if name == b"origin":
                    origin = value.decode("latin-1")
                    self._check(origin, headers=Headers(scope=scope), scope=scope)
                    break
            if (origin is not None and scope["method"] == "OPTIONS") or scope["path"] in self._separate:
                if self._exposed is not None:
                    app = self._cors
                    scope["extensions"] = {}  # it adds headers to the messages of ASGI itself only
            elif self._exposed is not None:
                scope[RESPONSE_HEADERS] = self._headers_for(origin)
        await app(scope, receive, send)

    def _headers_for(self, origin: str | None) -> Mapping[str, str]:
        """Return the headers of each response to a request from this origin."""
        if origin is None or self._exposed is None:
            return WITHOUT_ORIGIN
        headers = {"vary": "Origin", "access-control-expose-headers": self._exposed}
        if self._cors.allow_all_origins:
            headers["access-control-allow-origin"] = "*"
        elif self._cors.is_allowed_origin(origin):
            headers["access-control-allow-origin"] = origin
        return headers

    def _check(self, origin: str, *, headers: Headers, scope: Scope) -> None:
        page = parse_origin(origin)
        if page is None or origin in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        host = parse_authority(headers.get("host", ""))
        is_own = host is not None and (page.host, page.port) == (host.host, host.port)
        if not is_own and not self._cors.is_allowed_origin(origin):
            self._logged.add(origin)
            log.warning(
                "CORS: a page of %s may not read this hub's answers (%s %s); to allow it, write in"
                " dragoman.yaml: cors: {origins: [%r]}",
                origin,
                scope["method"],
                scope["path"][:200],
                origin,
            )


def allow_origins(
    app: ASGIApp,
    origins: Sequence[str],
    *,
    allow_loopback: bool,
    exposed_headers: Sequence[str],
    separate: Sequence[str] = (),
) -> ASGIApp:
    """Allow front ends of these origins, with `allow_loopback` also all pages of this machine.

    Paths in `separate` are of apps that do not take the response headers of the scope; see `Exchange`.
    """
    cors = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_origin_regex=LOOPBACK_ORIGIN if allow_loopback else None,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=exposed_headers,
    )
    exposed = ", ".join(exposed_headers) if origins or allow_loopback else None
    return CorsHeaders(app, cors, exposed=exposed, separate=separate)
