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

OUTSIDE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737); nothing is sent there
CONNECTIONS = 4_096
LIMITS = ConnectionLimits(connections=CONNECTIONS, per_address=CONNECTIONS, idle_timeout=75.0)
UNACKNOWLEDGED = 15.0  # seconds after which a host whose packets do not arrive counts as disconnected


@asynccontextmanager
async def open_internal_listener(app: ASGIApp, listen: str, *, url: str | None) -> AsyncIterator[str]:
    """Serve an app at `listen` ("address:port") while the block runs; yield the URL for other hosts.

    `url` replaces the one of the socket: behind address translation, or a proxy. Raises ConfigError when the
    address cannot be bound.
    """
    address, _, port = listen.rpartition(":")
    listener = bind_listener(address.strip("[]"), int(port))
    limit_unacknowledged(listener)
    server = build_server(app, LIMITS)
    await server.startup(sockets=[listener])
    ticking = asyncio.create_task(keep_date(server))
    try:
        yield url.rstrip("/") if url is not None else reachable_url(listener)
    finally:
        ticking.cancel()
        await server.shutdown(sockets=[listener])
        listener.close()


def limit_unacknowledged(listener: socket.socket) -> None:
    """Reset a connection whose other end is unreachable: a streamed response has a line every few seconds.

    By default the system tries for a quarter of an hour; meanwhile a call continues that its caller has given
    up, and a run counts as followed.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted sockets inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED * 1_000))


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
