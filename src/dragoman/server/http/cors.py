"""CORS: which front ends of other origins may read answers, and a log line for those that may not."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.http.authority import parse_authority, parse_origin

log = logging.getLogger(__name__)
LOOPBACK_ORIGIN = r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?"
MAX_LOGGED = 50  # origins; a page can make up any number


class OriginLog:
    """Logs the first request of each origin that CORS does not allow, with the line that would allow it."""

    def __init__(self, app: ASGIApp, cors: CORSMiddleware) -> None:
        self._app = app
        self._cors = cors
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request; what has no `Origin` passes as it is."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"origin":
                    self._check(value.decode("latin-1"), headers=Headers(scope=scope), scope=scope)
                    break
        await self._app(scope, receive, send)

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
    app: ASGIApp, origins: Sequence[str], *, allow_loopback: bool, exposed_headers: Sequence[str]
) -> ASGIApp:
    """Allow front ends of these origins, with `allow_loopback` also all pages of this machine."""
    cors = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_origin_regex=LOOPBACK_ORIGIN if allow_loopback else None,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=exposed_headers,
    )
    return OriginLog(cors if origins or allow_loopback else app, cors)
