"""HTTP to the providers: `Transport` sends requests, `Response` is read while it arrives.

Our own client on asyncio and httptools, since the client is most of what a gateway spends. HTTP/1.1 with a
pool per server; redirects are not followed, bodies not decompressed. What fails is a ProviderError `network`
or `timeout` that names the server and the phase, never a header or a body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import lru_cache
from typing import Protocol

from dragoman.errors import ProviderError
from dragoman.http.address import Address, Proxies, Proxy, locate, proxies_from
from dragoman.http.connection import NEVER, Connection, Request, Timeouts
from dragoman.http.dialer import Dialer
from dragoman.http.incoming import Incoming

__all__ = ["Proxies", "Response", "Sender", "Timeouts", "Transport", "proxies_from"]

KEEP_ALIVE = 60.0
DEFAULTS = Timeouts()
DIRECT = Proxies()
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
WITH_BODY = {"POST", "PUT", "PATCH"}
# The transport frames and routes requests itself; what a caller says of it is left out.
OURS = {
    "accept-encoding", "connection", "content-length", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip


class Response:
    """A response whose head is here and whose body may still come; the names of `headers` are lower-case.

    Read it to the end, or leave it with `abort`, `close` or the end of an `async with`.
    """

    def __init__(
        self, incoming: Incoming, connection: Connection, *, release: Callable[[Connection], None]
    ) -> None:
        self.status = incoming.status
        self.headers: Mapping[str, str] = incoming.headers
        self._incoming = incoming
        self._connection: Connection | None = connection
        self._peer = connection.peer
        self._release = release

    def __repr__(self) -> str:
        return f"Response({self.status}, from {self._peer!r})"

    @property
    def complete(self) -> bool:
        """True when the whole body has arrived."""
        return self._incoming.complete

    async def reads(self) -> AsyncGenerator[bytes, None]:
        """The body: all that has come since the last await as one piece. A body cut short is an error."""
        try:
            while data := await self.more():
                yield data
        finally:
            self.abort()

    async def read(self, limit: int) -> bytes:
        """The whole body. ProviderError `api_error` when it is longer than `limit` bytes."""
        pieces = []
        size = 0
        try:
            while data := await self.more():
                size += len(data)
                if size > limit:
                    message = f"the answer of {self._peer} is longer than {limit} bytes"
                    raise ProviderError(message, category="api_error")
                pieces.append(data)
        finally:
            self.abort()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def abort(self) -> None:
        """Be done with it: if its body is not over the socket is closed now, else the connection is kept."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._release(connection)

    async def close(self) -> None:
        """Like `abort`; returns when the socket is closed, if it is to be."""
        connection = self._connection
        self.abort()
        if connection is not None and connection.is_closing():
            await asyncio.wait([connection.closed])

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.abort()

    async def more(self) -> bytes:
        """All that has come since the last await; nothing at the end. A body cut short is an error."""
        if self._connection is None:
            message = f"the answer of {self._peer} was already read or given up"
            raise ProviderError(message, category="cancelled")
        return await self._connection.more(self._incoming)


class Host:
    """One server: its connections at rest, places for those at work, and how requests to it begin."""

    def __init__(
        self, address: Address, proxy: Proxy | None, *, places: int, on_idle: Callable[[], None]
    ) -> None:
        self.address = address
        self.proxy = proxy
        self.places = asyncio.Semaphore(places)
        self.at_work = 0
        self._on_idle = on_idle
        self._resting: list[Connection] = []
        self._prefix = "" if proxy is None or address.tls else f"http://{address.authority}"
        self._fixed = [f"host: {address.authority}", "accept-encoding: identity"]
        if self._prefix and proxy is not None and proxy.authorization:
            self._fixed.append(f"proxy-authorization: {proxy.authorization}")

    def write(self, method: str, target: str, *, headers: Mapping[str, str], length: int) -> bytes:
        """The head of a request. ProviderError `bad_request` for what would not arrive as one header."""
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", *self._fixed]
        lines += [f"{name}: {value}" for name, value in headers.items() if not is_ours(name)]
        if length or method in WITH_BODY:
            lines.append(f"content-length: {length}")
        text = "\r\n".join(lines)
        breaks = len(lines) - 1
        if text.count("\r") != breaks or text.count("\n") != breaks or "\0" in text or not method.isalpha():
            raise unsendable(f"a header or the method of a request to {self.address.authority}")
        try:
            return f"{text}\r\n\r\n".encode("latin-1")
        except UnicodeEncodeError:
            raise unsendable(f"a header of a request to {self.address.authority}") from None

    def take(self) -> Connection | None:
        """The connection that served last, if one rests."""
        while self._resting:
            connection = self._resting.pop()
            if not connection.is_closing():
                return connection
        return None

    def release(self, connection: Connection) -> None:
        """Keep the connection for the next request, or close it when none may follow."""
        self.leave()
        if connection.reusable:
            connection.rest(KEEP_ALIVE)
            self._resting.append(connection)
        else:
            connection.abort()

    def leave(self) -> None:
        """Give a place back."""
        self.at_work -= 1
        self.places.release()
        if not self.at_work:
            self._on_idle()

    def forget(self, connection: Connection) -> None:
        if connection in self._resting:
            self._resting.remove(connection)


@lru_cache(maxsize=1024)
def is_ours(name: str) -> bool:
    """Whether the transport writes this header itself."""
    if not TOKEN.fullmatch(name):
        raise unsendable("the name of a header")
    return name.lower() in OURS


def unsendable(what: str) -> ProviderError:
    return ProviderError(f"{what} holds characters that HTTP does not allow", category="bad_request")


class Sender(Protocol):
    """What requests go through."""

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeouts: Timeouts | None = None,
    ) -> Response:
        """See `Transport.send`."""
        ...


class Transport:
    """Sends requests, each over a connection of its own while it lasts. For one event loop."""

    def __init__(
        self,
        *,
        timeouts: Timeouts = DEFAULTS,
        max_connections_per_host: int = 1000,
        proxies: Proxies = DIRECT,
    ) -> None:
        self._timeouts = timeouts
        self._places = max_connections_per_host
        self._proxies = proxies
        self._dialer = Dialer()
        self._hosts: dict[Address, Host] = {}
        self._open: set[Connection] = set()
        self._idle = asyncio.Event()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeouts: Timeouts | None = None,
    ) -> Response:
        """The response, as soon as its head has come. Cancelling closes the socket at once.

        ProviderError: `network` or `timeout`; `bad_request` when the URL or a header cannot be sent. A kept
        connection that the server has left meanwhile is replaced by a new one, once.
        """
        limits = timeouts or self._timeouts
        address, target = locate(url)
        host = self._host(address)
        head = host.write(method, target, headers=headers, length=len(body))
        end = NEVER if limits.total is None else asyncio.get_running_loop().time() + limits.total
        request = Request(head, body, limits, end=end, bodiless=method == "HEAD")
        await self._admit(host, request)
        host.at_work += 1
        try:
            connection, incoming = await self._exchange(host, request)
        except BaseException:
            host.leave()
            raise
        return Response(incoming, connection, release=host.release)

    async def quiet(self) -> None:
        """Wait until no request is under way."""
        while any(host.at_work for host in self._hosts.values()):
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Close all connections, those at work too."""
        closed = [connection.closed for connection in self._open]
        for connection in self._open:
            connection.abort()
        if closed:
            await asyncio.wait(closed)

    def _host(self, address: Address) -> Host:
        host = self._hosts.get(address)
        if host is None:
            host = Host(address, self._proxies.pick(address), places=self._places, on_idle=self._idle.set)
            self._hosts[address] = host
        return host

    async def _admit(self, host: Host, request: Request) -> None:
        """Take a place among the connections to the server."""
        if not host.places.locked():
            await host.places.acquire()  # does not wait
            return
        try:
            async with asyncio.timeout_at(patience(request)):
                await host.places.acquire()
        except TimeoutError:
            busy = f"all {self._places} connections to {host.address.authority} stayed busy"
            raise ProviderError(busy, category="timeout", transient=True) from None

    async def _exchange(self, host: Host, request: Request) -> tuple[Connection, Incoming]:
        connection = host.take()
        if connection is not None:
            try:
                return connection, await connection.ask(request)
            except ProviderError:
                if not connection.stale:
                    raise
        connection = await self._dial(host, request)
        return connection, await connection.ask(request)

    async def _dial(self, host: Host, request: Request) -> Connection:
        address = host.address
        try:
            async with asyncio.timeout_at(patience(request)):
                connection = await self._dialer.dial(address, host.proxy)
        except TimeoutError:
            message = f"cannot connect to {address.authority} in time"
            raise ProviderError(message, category="timeout", transient=True) from None
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._forget(host, connection))
        return connection

    def _forget(self, host: Host, connection: Connection) -> None:
        self._open.discard(connection)
        host.forget(connection)


def patience(request: Request) -> float | None:
    """The loop's time at which the connection must be there."""
    seconds = request.timeouts.connect
    due = request.end if seconds is None else min(request.end, asyncio.get_running_loop().time() + seconds)
    return None if due == NEVER else due
