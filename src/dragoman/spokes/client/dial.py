"""Connecting a spoke to its hub, and the meaning of refusals."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from dragoman.errors import (
    ConfigError,
    Conflict,
    DragomanError,
    Forbidden,
    NotFound,
    Unauthorized,
    Unavailable,
    WireError,
)
from dragoman.json_text import decode_json
from dragoman.spokes.protocol import (
    PATH,
    HelloFrame,
    RefusedFrame,
    SpokeFailure,
    WelcomeFrame,
    decode_from_hub,
    encode_frame,
)

# ---- The address of a hub's door for spokes.

WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def endpoint_url(hub: str) -> str:
    """Return the WebSocket URL of a hub: `ws://host:8000/api/spoke` for `http://host:8000`. Raises
    ConfigError.
    """
    try:
        parts = urlsplit(hub.strip())
        usable = bool(parts.hostname) and parts.scheme in WEBSOCKET_SCHEMES
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable:
        raise ConfigError(f"{hub!r} is not the URL of a hub", hint="write it like http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix(PATH) + PATH
    return urlunsplit((WEBSOCKET_SCHEMES[parts.scheme], parts.netloc, path, "", ""))


def is_loopback_url(url: str) -> bool:
    """Return whether the URL is on this machine, which no proxy serves."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


OPEN_SECONDS = 10.0
MAX_FRAME_BYTES = 16_000_000  # bytes of a frame that a hub may send
MIN_BACKOFF, MAX_BACKOFF = 0.2, 15.0  # seconds between two attempts
NO_KEY_HINT = "`dragoman keys create --owner NAME` makes one, with the scope `operations`"
ERRORS_BY_CODE: Mapping[str, type[DragomanError]] = {
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "conflict": Conflict,
    "replaced": Conflict,
    "unavailable": Unavailable,
}
ERRORS_BY_STATUS: Mapping[int, type[DragomanError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound}


class HubErrorBody(msgspec.Struct):
    """The body of a hub's HTTP error."""

    error: SpokeFailure


_error_decoder = msgspec.json.Decoder(HubErrorBody)


async def open_websocket(url: str, key: str | None) -> ClientConnection:
    """Open a WebSocket. Raises Unavailable if a retry may help, another error if not."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    quiet = logging.getLogger("dragoman.spokes.socket")
    quiet.setLevel(logging.WARNING)  # below, it would log the key
    proxy: Literal[True] | None = None if is_loopback_url(url) else True
    try:
        return await connect(
            url,
            additional_headers=headers,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            ping_interval=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=1.0,
            proxy=proxy,
            logger=quiet,
        )
    except InvalidURI as error:
        raise ConfigError(f"{url!r} is not the URL of a hub: {error}") from None
    except InvalidStatus as error:
        raise error_from_response(error.response.status_code, error.response.body or b"", url=url) from None
    except (OSError, TimeoutError, InvalidHandshake) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable(f"no hub can be reached at {url}: {reason}", hint="is it running?") from None


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


def error_from_response(status: int, body: bytes | bytearray, *, url: str) -> DragomanError:
    """Return the error for an HTTP response that is not a WebSocket."""
    try:
        failure = decode_json(bytes(body), _error_decoder).error
        message, hint = failure.message, failure.hint
    except (msgspec.MsgspecError, UnicodeError):
        message, hint = f"{url} answers with status {status}", None
    kind = ERRORS_BY_STATUS.get(status, Unavailable)
    if kind is NotFound:
        return NotFound(f"no hub accepts spokes at {url}", hint="check the URL of the hub")
    return kind(message, hint=NO_KEY_HINT if kind is Unauthorized else hint)


def error_from_code(code: str, message: str, *, hint: str | None = None) -> DragomanError:
    """Return the error for a hub's refusal of this spoke."""
    kind = ERRORS_BY_CODE.get(code, WireError)
    return kind(message, hint=NO_KEY_HINT if kind is Unauthorized else hint)


def backoff_delay(failures: int) -> float:
    """Return the delay before the next attempt: exponential, with jitter."""
    longest = min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(failures, 16))
    return longest * random.uniform(0.3, 1.0)  # noqa: S311 - spreads load, keeps no secret
