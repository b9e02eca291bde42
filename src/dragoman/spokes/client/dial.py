"""The handshake of a spoke with its hub, and the meaning of refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from dragoman.errors import Conflict, DragomanError, Forbidden, Unauthorized, Unavailable, WireError
from dragoman.http.websocket_client import OPEN_SECONDS, key_hint, websocket_url
from dragoman.spokes.protocol import (
    PATH,
    HelloFrame,
    RefusedFrame,
    WelcomeFrame,
    decode_from_hub,
    encode_frame,
)

SCOPE = "spoke"
ERRORS_BY_CODE: Mapping[str, type[DragomanError]] = {
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "conflict": Conflict,
    "replaced": Conflict,
    "unavailable": Unavailable,
}


def endpoint_url(hub: str) -> str:
    """Return the WebSocket URL of a hub for spokes. Raises ConfigError."""
    return websocket_url(hub, PATH)


async def handshake(socket: ClientConnection, hello: HelloFrame) -> WelcomeFrame:
    """Send the hello. Return the hub's welcome, or raise its refusal."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await socket.send(encode_frame(hello).decode())
            answer = decode_from_hub(await socket.recv())
    except (ConnectionClosed, TimeoutError):
        raise Unavailable("the hub closed the connection before its welcome") from None
    match answer:
        case WelcomeFrame():
            return answer
        case RefusedFrame(error=failure):
            raise error_from_code(failure.code, failure.message, hint=failure.hint)
        case _:
            raise WireError("what answers there does not speak the spoke protocol")


def error_from_code(code: str, message: str, *, hint: str | None = None) -> DragomanError:
    """Return the error for a hub's refusal of this spoke."""
    kind = ERRORS_BY_CODE.get(code, WireError)
    return kind(message, hint=key_hint(SCOPE) if kind is Unauthorized else hint)
