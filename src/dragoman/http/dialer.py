"""Open connections: name resolution, Happy Eyeballs, TLS, proxy tunnels.

Sources: RFC 8305 (Happy Eyeballs), RFC 9110 §9.3.6 (CONNECT).
TLS trusts the system's certificates, or those of SSL_CERT_FILE.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from dragoman.errors import ProviderError
from dragoman.http.connection import HttpConnection, HttpRequest, Timeouts
from dragoman.http.url_and_proxy import Address, Proxy

ATTEMPT_DELAY = 0.25  # seconds between two connection attempts
AddrInfo: TypeAlias = tuple[Any, ...]  # an entry of getaddrinfo


class ProxyConnectError(ConnectionError):
    """The proxy refused to connect; `status` is its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answered with status {status}")
        self.status = status


class Dialer:
    """Opens connections to servers, directly or through a proxy."""

    def __init__(self) -> None:
        self._tls = TlsContext()

    async def dial(self, address: Address, proxy: Proxy | None = None) -> HttpConnection:
        """Open a connection to a server. Raises ProviderError `network`."""
        try:
            if proxy is None:
                return await self._connect(address)
            connection = await self._connect(proxy.address, peer=address.authority)
            if address.tls:
                await self._tunnel(connection, proxy, target=address)
            return connection
        except OSError as error:
            through = f" through the proxy {proxy.address.authority}" if proxy else ""
            message = f"cannot connect to {address.authority}{through}: {describe_error(error)}"
            raise ProviderError(message, category="network", transient=is_transient(error)) from None

    async def _connect(self, address: Address, *, peer: str = "") -> HttpConnection:
        tls = await self._tls.load() if address.tls else None
        sock = await open_socket(address)
        return await open_http(sock, peer=peer or address.authority, tls=tls, host=address.host)

    async def _tunnel(self, connection: HttpConnection, proxy: Proxy, *, target: Address) -> None:
        """Open a tunnel through the proxy with CONNECT, and start TLS in it."""
        authority = f"{target.host_literal}:{target.port}"
        head = f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n"
        if proxy.authorization:
            head += f"proxy-authorization: {proxy.authorization}\r\n"
        timeouts = Timeouts(first_byte=None, idle=None)  # the connect timeout covers all of it
        request = HttpRequest(f"{head}\r\n".encode("latin-1"), b"", timeouts, no_response_body=True)
        try:
            response = await connection.send(request)
            if not 200 <= response.status < 300:
                raise ProxyConnectError(response.status)
            if response.extra_data:
                raise ConnectionAbortedError("it sent data after its response")
            await connection.start_tls(await self._tls.load(), target.host)
        except BaseException:
            connection.abort()
            raise


class TlsContext:
    """The TLS context for connections to servers."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    async def load(self) -> ssl.SSLContext:
        """Return the context. It is loaded once and in a thread: it takes tens of milliseconds."""
        if self._context is None:
            context = await asyncio.to_thread(ssl.create_default_context)
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        return self._context


async def open_http(
    sock: socket.socket, *, peer: str, tls: ssl.SSLContext | None, host: str
) -> HttpConnection:
    """Return an HTTP connection over a connected socket, with TLS for `host` if `tls` is set.

    The socket is closed if that fails. Raises OSError.
    """
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpConnection(peer), sock=sock, ssl=tls, server_hostname=host if tls else None
        )
    except BaseException:
        sock.close()
        raise
    return connection


async def open_socket(address: Address) -> socket.socket:
    """Return a socket that is connected to one of the server's addresses."""
    loop = asyncio.get_running_loop()
    candidates = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return (
        await connect_socket(candidates[0])
        if len(candidates) == 1
        else await race_connect(interleave_families(candidates))
    )


async def race_connect(candidates: list[AddrInfo]) -> socket.socket:
    """Return the first socket that connects; start the next attempt after 250 ms or a failure (RFC 8305)."""
    waiting = list(candidates)
    running: set[asyncio.Task[socket.socket]] = set()
    failures: list[BaseException] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.create_task(connect_socket(waiting.pop(0))))
            delay = ATTEMPT_DELAY if waiting else None
            done, running = await asyncio.wait(running, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            failures += [error for task in done if (error := task.exception())]
            if sockets := [task.result() for task in done if not task.exception()]:
                close_sockets(sockets[1:])
                return sockets[0]
    finally:
        await cancel_attempts(running)
    raise failures[0]


async def cancel_attempts(running: set[asyncio.Task[socket.socket]]) -> None:
    for task in running:
        task.cancel()
    results = await asyncio.gather(*running, return_exceptions=True)
    close_sockets([result for result in results if isinstance(result, socket.socket)])


def close_sockets(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def interleave_families(candidates: list[AddrInfo]) -> list[AddrInfo]:
    """Return the addresses with the two IP families alternating, in the system's order of preference."""
    first = [info for info in candidates if info[0] == candidates[0][0]]
    second = [info for info in candidates if info[0] != candidates[0][0]]
    return [info for info in chain(*zip_longest(first, second)) if info is not None]


async def connect_socket(candidate: AddrInfo) -> socket.socket:
    """Return a socket that is connected to one address."""
    family, kind, protocol, _, address = candidate
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def describe_error(error: OSError) -> str:
    """Describe an error in a few words."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case ssl.SSLError():
            return f"TLS failed ({error.reason or 'no reason given'})"
        case OSError(errno=int(code)) if code in errno.errorcode and not isinstance(error, socket.gaierror):
            return os.strerror(code)  # asyncio's own text would be "Connect call failed"
        case _:
            return error.strerror or str(error) or type(error).__name__


def is_transient(error: OSError) -> bool:
    """Return whether another attempt may succeed: not after a bad certificate or a proxy's 4xx."""
    if isinstance(error, ProxyConnectError):
        return error.status >= 500
    return not isinstance(error, ssl.SSLCertVerificationError)
