"""HTTP handlers of the API reference, which needs no key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from dragoman.http.asgi_exchange import Exchange
from dragoman.server.reference.documentation_site import DocumentationSite
from dragoman.version import version

HTML_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
LINKS = {
    "docs": "/docs",
    "reference": "/docs/api",
    "openapi": "/openapi.json",
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "models": "/v1/models",
    "chat": "/api/chat",
    "sessions": "/api/sessions",
    "operations": "/api/operations",
    "usage": "/api/usage",
    "metrics": "/metrics",
    "health": "/healthz",
    "ready": "/readyz",
}


class ReferenceHandlers:
    """Handlers of `/`, `/docs/api` and `/openapi.json`. Each document is built on its first request."""

    def __init__(self) -> None:
        self.site = DocumentationSite()
        self._texts: dict[str, bytes] = {}

    async def openapi(self, exchange: Exchange) -> None:
        """Respond with the OpenAPI document."""
        await exchange.respond(200, await self._text("openapi", _openapi))

    async def docs(self, exchange: Exchange) -> None:
        """Respond with the reference as a page."""
        await exchange.respond(200, await self._text("docs", _docs), headers=HTML_HEADERS)

    async def home(self, exchange: Exchange) -> None:
        """Respond with a page for browsers, JSON for other clients."""
        if "text/html" in exchange.headers.get("accept", ""):
            page = await self._text("home", _home)
            await exchange.respond(200, page, headers={**HTML_HEADERS, "vary": "accept"})
            return
        body = {"name": "dragoman", "version": version(), "links": LINKS}
        await exchange.respond(200, body, headers={"vary": "accept"})

    async def _text(self, name: str, make: Callable[[], bytes]) -> bytes:
        if name not in self._texts:
            self._texts[name] = await asyncio.to_thread(make)
        return self._texts[name]


def _openapi() -> bytes:
    # late: rarely needed, and start-up stays fast
    from dragoman.server.reference.openapi import build_document

    return msgspec.json.encode(build_document())


def _docs() -> bytes:
    from dragoman.server.reference.openapi import build_document  # late: as above
    from dragoman.server.reference.page import render_reference  # late: as above

    return render_reference(build_document()).encode()


def _home() -> bytes:
    from dragoman.server.reference.page import render_home  # late: as above

    return render_home(version()).encode()
