"""Connections to checked addresses, with the host name and the certificate of the URL."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from dragoman.http.connection import HttpConnection
from dragoman.http.dialer import AddrInfo, interleave_families, race_connect
from dragoman.tools.web.url import Url

OpenSocket: TypeAlias = Callable[[list[AddrInfo]], Awaitable[socket.socket]]


class CheckedConnector:
    """Connects to one of the addresses that a host policy allowed.

    It never uses a proxy, which would resolve the name again, perhaps to an address that is not allowed.
    """

    def __init__(self, open_socket: OpenSocket | None = None) -> None:
        self._open_socket = open_socket or connect_first
        self._tls: ssl.SSLContext | None = None

    async def connect(self, url: Url, addresses: list[AddrInfo]) -> HttpConnection:
        """Return a connection for one request. Raises OSError."""
        tls = await self._tls_context() if url.tls else None
        connected = await self._open_socket(addresses)
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpConnection(url.authority),
                sock=connected,
                ssl=tls,
                server_hostname=url.host if tls else None,
            )
        except BaseException:
            connected.close()
            raise
        return connection

    async def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS context with the system's certificates, loaded once and off the event loop."""
        if self._tls is None:
            context = await asyncio.to_thread(ssl.create_default_context)
            context.set_alpn_protocols(["http/1.1"])
            self._tls = context
        return self._tls


async def connect_first(addresses: list[AddrInfo]) -> socket.socket:
    """Return a socket connected to the first address that accepts."""
    return await race_connect(interleave_families(addresses))
