"""The handshake of a spoke with its hub, and the meaning of refusals."""

from __future__ import annotations

from websockets.asyncio.client import ClientConnection

from dragoman.errors import DragomanError, WireError
from dragoman.http.reconnecting_websocket import error_from_code, exchange_hello
from dragoman.http.websocket_client import websocket_url
from dragoman.spokes.protocol import (
    PATH,
    HelloFrame,
    RefusedFrame,
    WelcomeFrame,
    decode_from_hub,
    encode_frame,
)

SCOPE = "spoke"


def endpoint_url(hub: str) -> str:
    """Return the WebSocket URL of a hub for spokes. Raises ConfigError."""
    return websocket_url(hub, PATH)


async def handshake(socket: ClientConnection, hello: HelloFrame) -> WelcomeFrame:
    """Send the hello. Return the hub's welcome, or raise its refusal."""
    match await exchange_hello(socket, encode_frame(hello).decode(), decode=decode_from_hub):
        case WelcomeFrame() as welcome:
            return welcome
        case RefusedFrame(error=failure):
            raise refusal(failure.code, failure.message, hint=failure.hint)
        case _:
            raise WireError("the server at this address does not speak the spoke protocol")


def refusal(code: str, message: str, *, hint: str | None = None) -> DragomanError:
    """Return the error for a hub's refusal of this spoke."""
    return error_from_code(code, message, scope=SCOPE, hint=hint)
