"""The token that a request of another host must have."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.errors import Unauthorized
from dragoman.http.asgi_exchange import Exchange
from dragoman.server.http.endpoint import reject_websocket


def require_token(app: ASGIApp, token: str) -> ASGIApp:
    """Return an app that answers requests with `Authorization: Bearer <token>`, and others with 401.

    The comparison takes the same time for any header of one length.
    """
    expected = f"Bearer {token}".encode()

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await reject_websocket(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(sent, expected):
            await app(scope, receive, send)
            return
        error = Unauthorized("this address is for the hosts of one hub, and the token is not this host's")
        await Exchange(scope, receive, send).respond(401, {"error": error.to_json()})

    return check
