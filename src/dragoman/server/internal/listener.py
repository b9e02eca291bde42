"""The internal listener: a socket of its own, apart from the public one, that only other hosts may use."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from dragoman.server.http.connection_limits import ConnectionLimits
from dragoman.server.http.listener import bind_listener, build_server, keep_date, listener_url

OUTSIDE = ("192.0.2.1", 9)  # of RFC 5737: nothing is sent there
CONNECTIONS = 4_096
LIMITS = ConnectionLimits(connections=CONNECTIONS, per_address=CONNECTIONS, idle_timeout=75.0)


@asynccontextmanager
async def open_internal_listener(app: ASGIApp, listen: str, *, url: str | None) -> AsyncIterator[str]:
    """Serve an app at `listen` ("address:port") while the block runs; yield the URL for other hosts.

    `url` replaces the one of the socket: behind address translation, or a proxy. Raises ConfigError when the
    address cannot be bound.
    """
    address, _, port = listen.rpartition(":")
    listener = bind_listener(address.strip("[]"), int(port))
    server = build_server(app, LIMITS)
    await server.startup(sockets=[listener])
    ticking = asyncio.create_task(keep_date(server))
    try:
        yield url.rstrip("/") if url is not None else reachable_url(listener)
    finally:
        ticking.cancel()
        await server.shutdown(sockets=[listener])
        listener.close()


def reachable_url(listener: socket.socket) -> str:
    """Return the URL of a listener; of one at all addresses, with an address of this machine."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_unspecified:
        return listener_url(listener)
    return f"http://{own_address()}:{port}"


def own_address() -> str:
    """Return the address by which this machine reaches others; 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(OUTSIDE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
