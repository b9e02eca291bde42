"""Refuses all requests to a host that the other hosts have fenced."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.errors import HostFenced
from dragoman.http.asgi_exchange import Exchange
from dragoman.server.http.endpoint import send_error

TRY_AGAIN_LATER = 1013


class FenceGate:
    """An ASGI app that passes requests to another app until it is closed, and then refuses all."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._error: HostFenced | None = None
        self._on_close: list[Callable[[], None]] = []

    @property
    def is_closed(self) -> bool:
        """Whether the host is fenced."""
        return self._error is not None

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the gate is closed; at once if it is closed already."""
        if self.is_closed:
            callback()
        else:
            self._on_close.append(callback)

    def close(self, error: HostFenced) -> None:
        """Refuse all later requests with this error."""
        self._error = error
        for callback in self._on_close:
            callback()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._error is None:
            await self._app(scope, receive, send)
        else:
            await refuse(self._error, scope, receive=receive, send=send)


async def refuse(error: HostFenced, scope: Scope, *, receive: Receive, send: Send) -> None:
    """Respond to a request with an error, and close a WebSocket."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
        return
    await send_error(Exchange(scope, receive, send), error)
