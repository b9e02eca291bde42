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
from dragoman.http.connection import Connection, Request, Timeouts

STAGGER = 0.25
Found: TypeAlias = tuple[Any, ...]  # an entry of getaddrinfo


class ProxyRefusal(ConnectionError):
    """The proxy will not connect us; `status` is its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answered with status {status}")
        self.status = status


class Dialer:
    """Opens connections to servers, straight or through a proxy."""

    def __init__(self) -> None:
        self._tls: ssl.SSLContext | None = None

    async def dial(self, address: Address, proxy: Proxy | None = None) -> Connection:
        """A connection to send requests to the server on. ProviderError `network` says what failed."""
        try:
            if proxy is None:
                return await self._connect(address)
            connection = await self._connect(proxy.address, peer=address.authority)
            if address.tls:
                await self._tunnel(connection, proxy, to=address)
            return connection
        except OSError as error:
            through = f" by the proxy {proxy.address.authority}" if proxy else ""
            message = f"cannot connect to {address.authority}{through}: {explain(error)}"
            raise ProviderError(message, category="network", transient=can_pass(error)) from None

    async def _connect(self, address: Address, *, peer: str = "") -> Connection:
        tls = await self._context() if address.tls else None
        opened = await reach(address)
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(peer or address.authority),
            sock=opened,
            ssl=tls,
            server_hostname=address.host if tls else None,
        )
        return connection

    async def _tunnel(self, connection: Connection, proxy: Proxy, *, to: Address) -> None:
        """Have the proxy connect to the server, and speak TLS through it."""
        place = f"{to.bracketed}:{to.port}"
        head = f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n"
        if proxy.authorization:
            head += f"proxy-authorization: {proxy.authorization}\r\n"
        timeouts = Timeouts(first_byte=None, idle=None)  # the dialing as a whole has one
        request = Request(f"{head}\r\n".encode("latin-1"), b"", timeouts, bodiless=True)
        try:
            answer = await connection.ask(request)
            if not 200 <= answer.status < 300:
                raise ProxyRefusal(answer.status)
            if answer.surplus:
                raise ConnectionAbortedError("it sent more than its answer")
            await connection.start_tls(await self._context(), to.host)
        except BaseException:
            connection.abort()
            raise

    async def _context(self) -> ssl.SSLContext:
        """The trust store, read once and off the loop, since that takes tens of milliseconds."""
        if self._tls is None:
            context = await asyncio.to_thread(ssl.create_default_context)
            context.set_alpn_protocols(["http/1.1"])
            self._tls = context
        return self._tls


async def reach(address: Address) -> socket.socket:
    """A socket connected to one of the server's addresses."""
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return await knock(places[0]) if len(places) == 1 else await race(alternate(places))


async def race(places: list[Found]) -> socket.socket:
    """The first socket that connects: one address after the other is tried, 250 ms or a failure apart."""
    waiting = list(places)
    running: set[asyncio.Task[socket.socket]] = set()
    failures: list[BaseException] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.create_task(knock(waiting.pop(0))))
            patience = STAGGER if waiting else None
            done, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            failures += [error for task in done if (error := task.exception())]
            if opened := [task.result() for task in done if not task.exception()]:
                close(opened[1:])
                return opened[0]
    finally:
        await call_off(running)
    raise failures[0]


async def call_off(running: set[asyncio.Task[socket.socket]]) -> None:
    for task in running:
        task.cancel()
    results = await asyncio.gather(*running, return_exceptions=True)
    close([result for result in results if isinstance(result, socket.socket)])


def close(opened: list[socket.socket]) -> None:
    for one in opened:
        one.close()


def alternate(found: list[Found]) -> list[Found]:
    """The addresses, the two families by turns, in the order of the system's preference."""
    first = [place for place in found if place[0] == found[0][0]]
    second = [place for place in found if place[0] != found[0][0]]
    return [place for place in chain(*zip_longest(first, second)) if place is not None]


async def knock(place: Found) -> socket.socket:
    """A socket connected to one address."""
    family, kind, protocol, _, where = place
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


def explain(error: OSError) -> str:
    """What went wrong in a few words."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case ssl.SSLError():
            return f"TLS failed ({error.reason or 'no reason given'})"
        case _:
            return error.strerror or str(error) or type(error).__name__


def can_pass(error: OSError) -> bool:
    """Whether another attempt may succeed: not with a bad certificate, nor where a proxy says no."""
    if isinstance(error, ProxyRefusal):
        return error.status >= 500
    return not isinstance(error, ssl.SSLCertVerificationError)
