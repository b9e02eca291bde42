"""Hosting: a hub behind an address: bound, served by uvicorn, and ended so that open streams are told."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from dragoman.cli.corking import CorkedProtocol
from dragoman.config import Config
from dragoman.errors import ConfigError
from dragoman.server.app import Hub

BACKLOG = 2048
WEBSOCKET_FRAME = 2_000_000  # bytes; larger messages of spokes come in parts
GRACE = 5  # seconds that open responses get once all runs are closed


class Hosted(NamedTuple):
    """A hub that is reached at `url`."""

    hub: Hub
    url: str


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; ConfigError says why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ConfigError(
            f"{host!r} is no address of this machine", hint="use 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise refusal(host, port, error=error) from None
    return listener


def refusal(host: str, port: int, *, error: OSError) -> ConfigError:
    """Why an address cannot be had, in the user's words."""
    match error.errno:
        case errno.EADDRINUSE:
            message, hint = f"port {port} on {host} is taken by another program", "--port 0 takes a free one"
        case errno.EACCES:
            message, hint = f"this user may not take port {port}", "choose one from 1024 on with --port"
        case _:
            message, hint = f"cannot listen on {host} port {port}: {error.strerror}", "see --host and --port"
    return ConfigError(message, hint=hint)


def address_of(listener: socket.socket) -> str:
    """The URL that a listener is reached at."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def hosted(
    config: Config,
    data: Path,
    *,
    listener: socket.socket,
    keys: bool,
    secrets: set[str] | None = None,
) -> AsyncIterator[Hosted]:
    """A hub that accepts requests on the listener while the block runs.

    At its end nothing more is accepted, what is under way gets `limits.drain` seconds, all runs are stopped,
    and open streams are told so before they close. `secrets` is told what must never be shown.
    """
    async with Hub.open(config, data, keys=keys, environ=os.environ, secrets=secrets) as hub:
        server = server_of(hub.app)
        await server.startup(sockets=[listener])
        ticking = asyncio.create_task(server.main_loop())
        try:
            yield Hosted(hub, address_of(listener))
        finally:
            ticking.cancel()
            for accepting in server.servers:
                accepting.close()
            await hub.drain(config.limits.drain)
            await hub.end()
            await server.shutdown(sockets=[listener])


def server_of(app: ASGIApp) -> uvicorn.Server:
    """uvicorn for this app, ready to start. Its `serve()` would take the signals, which are ours to hear."""
    settings = uvicorn.Config(
        app,
        http=CorkedProtocol,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # the protocol of spokes has a heartbeat of its own
        ws_max_size=WEBSOCKET_FRAME,
        lifespan="off",
        log_config=None,
        access_log=logging.getLogger().isEnabledFor(logging.DEBUG),
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE,
    )
    settings.load()
    server = uvicorn.Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    return server
