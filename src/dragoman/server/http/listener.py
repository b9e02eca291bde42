"""Sockets that listen, and the uvicorn server behind them: for clients, and for other hosts."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from dragoman.errors import ConfigError
from dragoman.server.http.connection_limits import ConnectionLimits, ConnectionTable
from dragoman.server.http.protocol import LimitedHttpProtocol
from dragoman.spokes.hub.settings import SpokeSettings

BACKLOG = 2048
MAX_UNSENT = 131_072  # bytes
# In bytes. Twice a spoke's limit, so that an answer somewhat above that fails alone, not with its connection.
WEBSOCKET_MESSAGE = 2 * SpokeSettings().message
PING_INTERVAL, PING_TIMEOUT = 20.0, 20.0  # seconds; a WebSocket that answers no ping is closed
SHUTDOWN_TIMEOUT = 5  # seconds for open responses to end after all runs are closed


def bind_listener(host: str, port: int) -> socket.socket:
    """Open a socket that listens at this address. ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError):  # UnicodeError: a name that DNS cannot have
        raise ConfigError(
            f"{host!r} is not an address of this machine", hint="use 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    limit_unsent(listener)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise bind_error(host, port, error=error) from None
    return listener


def limit_unsent(listener: socket.socket) -> None:
    """Limit what the system queues for each connection behind what is in flight.

    By default it queues megabytes, so an answer would be written far ahead of its reader. Unlike a small send
    buffer, this does not limit the throughput of a distant reader.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted sockets inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT)


def bind_error(host: str, port: int, *, error: OSError) -> ConfigError:
    """Return the error for an address that cannot be bound."""
    match error.errno:
        case errno.EADDRINUSE:
            message, hint = (
                f"port {port} on {host} is taken by another program",
                "--port 0 chooses a free port",
            )
        case errno.EACCES:
            message, hint = (
                f"this user may not listen on port {port}",
                "choose port 1024 or above with --port",
            )
        case _:
            message, hint = f"cannot listen on {host} port {port}: {error.strerror}", "see --host and --port"
    return ConfigError(message, hint=hint)


def listener_url(listener: socket.socket) -> str:
    """Return the URL of a listener."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def build_server(app: ASGIApp, limits: ConnectionLimits) -> uvicorn.Server:
    """Build a uvicorn server for this app. Do not call its `serve()`: it installs its own signal handlers."""
    settings = uvicorn.Config(
        app,
        http=cast(
            "type[asyncio.Protocol]", partial(LimitedHttpProtocol, connections=ConnectionTable(limits))
        ),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=PING_INTERVAL,
        ws_ping_timeout=PING_TIMEOUT,
        ws_max_size=WEBSOCKET_MESSAGE,
        lifespan="off",
        log_config=None,
        access_log=logging.getLogger().isEnabledFor(logging.DEBUG),
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
    )
    settings.load()
    server = uvicorn.Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    return server


async def keep_date(server: uvicorn.Server) -> None:
    """Keep the `date` header up to date, until cancelled: uvicorn's own loop wakes ten times a second."""
    while True:
        await server.on_tick(0)
        await asyncio.sleep(1.0)
