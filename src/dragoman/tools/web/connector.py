"""Connections to checked addresses, with the host name and the certificate of the URL."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from dragoman.http.connection import HttpConnection
from dragoman.http.dialer import AddrInfo, TlsContext, interleave_families, open_http, race_connect
from dragoman.tools.web.url import Url

OpenSocket: TypeAlias = Callable[[list[AddrInfo]], Awaitable[socket.socket]]


class CheckedConnector:
    """Connects to one of the addresses that a host policy allowed.

    It never uses a proxy, which would resolve the name again, perhaps to an address that is not allowed.
    """

    def __init__(self, open_socket: OpenSocket | None = None) -> None:
        self._open_socket = open_socket or connect_first
        self._tls = TlsContext()

    async def connect(self, url: Url, addresses: list[AddrInfo]) -> HttpConnection:
        """Return a connection for one request. Raises OSError."""
        tls = await self._tls.load() if url.tls else None
        sock = await self._open_socket(addresses)
        return await open_http(sock, peer=url.authority, tls=tls, host=url.host)


async def connect_first(addresses: list[AddrInfo]) -> socket.socket:
    """Return a socket connected to the first address that accepts."""
    return await race_connect(interleave_families(addresses))
