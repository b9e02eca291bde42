"""Dialing: how a spoke reaches its hub, and what a refusal means."""

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
from dragoman.spokes.protocol import PATH, Failure, Hello, Refused, Welcome, encode, from_hub

# ---- The address of a hub's door for spokes.

SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def door_of(hub: str) -> str:
    """The WebSocket URL of a hub: `http://host:8000` has `ws://host:8000/api/spoke`. ConfigError for none."""
    try:
        parts = urlsplit(hub.strip())
        usable = bool(parts.hostname) and parts.scheme in SCHEMES
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable:
        raise ConfigError(f"{hub!r} is no address of a hub", hint="one reads like http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix(PATH) + PATH
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, path, "", ""))


def is_near(url: str) -> bool:
    """Whether it is on this machine, so that no proxy leads there."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


OPEN_SECONDS = 10.0
LARGEST = 16_000_000  # bytes of a frame that a hub may send
SHORTEST, LONGEST = 0.2, 15.0  # seconds between two attempts
NO_KEY = "`dragoman keys create --owner NAME` makes one, with the scope `operations`"
ERRORS: Mapping[str, type[DragomanError]] = {
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "conflict": Conflict,
    "replaced": Conflict,
    "unavailable": Unavailable,
}
STATUSES: Mapping[int, type[DragomanError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound}


class RefusedBody(msgspec.Struct):
    """The body of an HTTP error of a hub."""

    error: Failure


async def dial(url: str, key: str | None) -> ClientConnection:
    """An open WebSocket. Unavailable when it can be tried again; other errors will stay."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    quiet = logging.getLogger("dragoman.spokes.socket")
    quiet.setLevel(logging.WARNING)  # below, it would log the key
    proxy: Literal[True] | None = None if is_near(url) else True
    try:
        return await connect(
            url,
            additional_headers=headers,
            compression=None,
            max_size=LARGEST,
            ping_interval=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=1.0,
            proxy=proxy,
            logger=quiet,
        )
    except InvalidURI as error:
        raise ConfigError(f"{url!r} is no address of a hub: {error}") from None
    except InvalidStatus as error:
        raise refusal(error.response.status_code, error.response.body or b"", url=url) from None
    except (OSError, TimeoutError, InvalidHandshake) as error:
        said = str(error) or type(error).__name__
        raise Unavailable(f"no hub can be reached at {url}: {said}", hint="is it running?") from None


async def greet(socket: ClientConnection, hello: Hello) -> Welcome:
    """Say hello; the hub's welcome, or its refusal as an error."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await socket.send(encode(hello).decode())
            answer = from_hub(await socket.recv())
    except (ConnectionClosed, TimeoutError):
        raise Unavailable("the hub closed the connection before it said welcome") from None
    match answer:
        case Welcome():
            return answer
        case Refused(error=failure):
            raise error_for(failure.code, failure.message, hint=failure.hint)
        case _:
            raise WireError("what answers there does not speak the spoke protocol")


def refusal(status: int, body: bytes | bytearray, *, url: str) -> DragomanError:
    """The error for an HTTP answer that is no WebSocket."""
    try:
        failure = msgspec.json.decode(body, type=RefusedBody).error
        message, hint = failure.message, failure.hint
    except (msgspec.MsgspecError, UnicodeError):
        message, hint = f"{url} answers with status {status}", None
    kind = STATUSES.get(status, Unavailable)
    if kind is NotFound:
        return NotFound(f"there is no door for spokes at {url}", hint="is this the hub's address?")
    return kind(message, hint=NO_KEY if kind is Unauthorized else hint)


def error_for(code: str, message: str, *, hint: str | None = None) -> DragomanError:
    """The error for what a hub says when it will have nothing to do with this spoke."""
    kind = ERRORS.get(code, WireError)
    return kind(message, hint=NO_KEY if kind is Unauthorized else hint)


def pause(failures: int) -> float:
    """How long to wait before the next attempt: longer each time, and never the same for two spokes."""
    longest = min(LONGEST, SHORTEST * 2.0 ** min(failures, 16))
    return longest * random.uniform(0.3, 1.0)  # noqa: S311 - spreads load, keeps no secret
