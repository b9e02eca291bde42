"""WebSockets to a hub: its URL, the connection, the errors of a refusal, the delay before a retry."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from dragoman.errors import ConfigError, DragomanError, Forbidden, NotFound, Unauthorized, Unavailable
from dragoman.http.url_and_proxy import is_loopback
from dragoman.json_decoding import decode_json

WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
OPEN_SECONDS = 10.0
MAX_FRAME_BYTES = 16_000_000  # bytes of a frame that a hub may send
MIN_BACKOFF, MAX_BACKOFF = 0.2, 15.0  # seconds between two attempts
ERRORS_BY_STATUS: Mapping[int, type[DragomanError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound}


class HubErrorDetails(msgspec.Struct):
    """The error in the body of a hub's HTTP response."""

    message: str
    hint: str | None = None


class HubErrorBody(msgspec.Struct):
    """The body of a hub's HTTP error."""

    error: HubErrorDetails


_error_decoder = msgspec.json.Decoder(HubErrorBody)


def websocket_url(hub: str, path: str) -> str:
    """Return the URL of a hub's WebSocket, such as `ws://host:8000/api/spoke` for `http://host:8000`.

    Raises ConfigError if `hub` is not the URL of a hub.
    """
    try:
        parts = urlsplit(hub.strip())
        usable = bool(parts.hostname) and parts.scheme in WEBSOCKET_SCHEMES
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable:
        raise ConfigError(f"{hub!r} is not the URL of a hub", hint="write it like http://127.0.0.1:8000")
    whole = parts.path.rstrip("/").removesuffix(path) + path
    return urlunsplit((WEBSOCKET_SCHEMES[parts.scheme], parts.netloc, whole, "", ""))


async def open_websocket(url: str, key: str | None, *, scope: str) -> ClientConnection:
    """Open a WebSocket with a key of a scope. Raises Unavailable if a retry may help, else another error."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    logger = logging.getLogger("dragoman.websocket")
    logger.setLevel(logging.WARNING)  # at lower levels it would log the key
    # True reads the proxy from the environment; none of those serves addresses of this machine.
    proxy: Literal[True] | None = None if is_loopback(urlsplit(url).hostname or "") else True
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
            logger=logger,
        )
    except InvalidURI as error:
        raise ConfigError(f"{url!r} is not the URL of a hub: {error}") from None
    except InvalidStatus as error:
        raise error_from_response(
            error.response.status_code, error.response.body or b"", url=url, scope=scope
        ) from None
    except (OSError, TimeoutError, InvalidHandshake) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable(f"no hub can be reached at {url}: {reason}", hint="is it running?") from None


def error_from_response(status: int, body: bytes | bytearray, *, url: str, scope: str) -> DragomanError:
    """Return the error for an HTTP response that is not a WebSocket."""
    try:
        details = decode_json(bytes(body), _error_decoder).error
        message, hint = details.message, details.hint
    except (msgspec.MsgspecError, UnicodeError):
        message, hint = f"{url} answers with status {status}", None
    kind = ERRORS_BY_STATUS.get(status, Unavailable)
    if kind is NotFound:
        return NotFound(f"no hub accepts {scope}s at {url}", hint="check the URL of the hub")
    return kind(message, hint=key_hint(scope) if kind is Unauthorized else hint)


def key_hint(scope: str) -> str:
    """Return a hint for clients without a valid key."""
    return f"`dragoman keys create --owner NAME --scope {scope}` makes one"


def backoff_delay(failures: int) -> float:
    """Return the delay before the next attempt: exponential, with jitter."""
    longest = min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(failures, 16))
    return longest * random.uniform(0.3, 1.0)  # noqa: S311 - spreads load, keeps no secret
