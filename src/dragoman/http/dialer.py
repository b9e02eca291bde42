"""Opening connections: names, sockets of both IP families, TLS, a proxy's tunnel.

Sources: RFC 8305 (happy eyeballs), RFC 9110 §9.3.6 (CONNECT).
TLS trusts the system's certificates, or those in SSL_CERT_FILE.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from dragoman.errors import ProviderError
from dragoman.http.address import Address, Proxy
from dragoman.http.connection import HttpConnection, HttpRequest, Timeouts

ATTEMPT_DELAY = 0.25
AddrInfo: TypeAlias = tuple[Any, ...]  # an entry of getaddrinfo


class ProxyConnectError(ConnectionError):
    """The proxy will not connect us; `status` is its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answered with status {status}")
        self.status = status


class Dialer:
    """Opens connections to servers, straight or through a proxy."""

    def __init__(self) -> None:
        self._ssl: ssl.SSLContext | None = None

    async def dial(self, address: Address, proxy: Proxy | None = None) -> HttpConnection:
        """A connection to send requests to the server on. ProviderError `network` says what failed."""
        try:
            if proxy is None:
                return await self._connect(address)
            connection = await self._connect(proxy.address, peer=address.authority)
            if address.tls:
                await self._tunnel(connection, proxy, target=address)
            return connection
        except OSError as error:
            through = f" by the proxy {proxy.address.authority}" if proxy else ""
            message = f"cannot connect to {address.authority}{through}: {describe_error(error)}"
            raise ProviderError(message, category="network", transient=is_transient(error)) from None

    async def _connect(self, address: Address, *, peer: str = "") -> HttpConnection:
        tls = await self._ssl_context() if address.tls else None
        opened = await open_socket(address)
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpConnection(peer or address.authority),
            sock=opened,
            ssl=tls,
            server_hostname=address.host if tls else None,
        )
        return connection

    async def _tunnel(self, connection: HttpConnection, proxy: Proxy, *, target: Address) -> None:
        """Have the proxy connect to the server, and speak TLS through it."""
        place = f"{target.host_literal}:{target.port}"
        head = f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n"
        if proxy.authorization:
            head += f"proxy-authorization: {proxy.authorization}\r\n"
        timeouts = Timeouts(first_byte=None, idle=None)  # the dialing as a whole has one
        request = HttpRequest(f"{head}\r\n".encode("latin-1"), b"", timeouts, no_response_body=True)
        try:
            answer = await connection.send(request)
            if not 200 <= answer.status < 300:
                raise ProxyConnectError(answer.status)
            if answer.extra_data:
                raise ConnectionAbortedError("it sent more than its answer")
            await connection.start_tls(await self._ssl_context(), target.host)
        except BaseException:
            connection.abort()
            raise

    async def _ssl_context(self) -> ssl.SSLContext:
        """The trust store, read once and off the loop, since that takes tens of milliseconds."""
        if self._ssl is None:
            context = await asyncio.to_thread(ssl.create_default_context)
            context.set_alpn_protocols(["http/1.1"])
            self._ssl = context
        return self._ssl


async def open_socket(address: Address) -> socket.socket:
    """A socket connected to one of the server's addresses."""
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return (
        await connect_socket(places[0])
        if len(places) == 1
        else await race_connect(interleave_families(places))
    )


async def race_connect(candidates: list[AddrInfo]) -> socket.socket:
    """The first socket that connects: one address after the other is tried, 250 ms or a failure apart."""
    waiting = list(candidates)
    running: set[asyncio.Task[socket.socket]] = set()
    failures: list[BaseException] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.create_task(connect_socket(waiting.pop(0))))
            patience = ATTEMPT_DELAY if waiting else None
            done, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            failures += [error for task in done if (error := task.exception())]
            if opened := [task.result() for task in done if not task.exception()]:
                close_sockets(opened[1:])
                return opened[0]
    finally:
        await cancel_attempts(running)
    raise failures[0]


async def cancel_attempts(running: set[asyncio.Task[socket.socket]]) -> None:
    for task in running:
        task.cancel()
    results = await asyncio.gather(*running, return_exceptions=True)
    close_sockets([result for result in results if isinstance(result, socket.socket)])


def close_sockets(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def interleave_families(candidates: list[AddrInfo]) -> list[AddrInfo]:
    """The addresses, the two families by turns, in the order of the system's preference."""
    first = [place for place in candidates if place[0] == candidates[0][0]]
    second = [place for place in candidates if place[0] != candidates[0][0]]
    return [place for place in chain(*zip_longest(first, second)) if place is not None]


async def connect_socket(candidate: AddrInfo) -> socket.socket:
    """A socket connected to one address."""
    family, kind, protocol, _, where = candidate
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(opened, where)
    except BaseException:
        opened.close()
        raise
    return opened


def describe_error(error: OSError) -> str:
    """What went wrong in a few words."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case ssl.SSLError():
            return f"TLS failed ({error.reason or 'no reason given'})"
        case _:
            return error.strerror or str(error) or type(error).__name__


def is_transient(error: OSError) -> bool:
    """Whether another attempt may succeed: not with a bad certificate, nor where a proxy says no."""
    if isinstance(error, ProxyConnectError):
        return error.status >= 500
    return not isinstance(error, ssl.SSLCertVerificationError)
