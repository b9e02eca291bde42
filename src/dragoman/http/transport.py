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
from dragoman.http.address import Address, Proxies, Proxy, parse_url, proxies_from
from dragoman.http.connection import NEVER, HttpConnection, HttpRequest, Timeouts
from dragoman.http.dialer import Dialer
from dragoman.http.response_parser import ResponseParser

__all__ = ["Proxies", "Response", "Sender", "Timeouts", "Transport", "proxies_from"]

IDLE_SECONDS = 60.0
DEFAULTS = Timeouts()
NO_PROXIES = Proxies()
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
METHODS_WITH_BODY = {"POST", "PUT", "PATCH"}
# The transport frames and routes requests itself; what a caller says of it is left out.
MANAGED_HEADERS = {
    "accept-encoding", "connection", "content-length", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip


class Response:
    """A response whose head is here and whose body may still come; the names of `headers` are lower-case.

    Read it to the end, or leave it with `abort`, `close` or the end of an `async with`.
    """

    def __init__(
        self, parser: ResponseParser, connection: HttpConnection, *, release: Callable[[HttpConnection], None]
    ) -> None:
        self.status = parser.status
        self.headers: Mapping[str, str] = parser.headers
        self._parser = parser
        self._connection: HttpConnection | None = connection
        self._peer = connection.peer
        self._release = release

    def __repr__(self) -> str:
        return f"Response({self.status}, from {self._peer!r})"

    @property
    def complete(self) -> bool:
        """True when the whole body has arrived."""
        return self._parser.complete

    async def iter_raw(self) -> AsyncGenerator[bytes, None]:
        """The body: all that has come since the last await as one piece. A body cut short is an error."""
        try:
            while data := await self.receive():
                yield data
        finally:
            self.abort()

    async def read(self, limit: int) -> bytes:
        """The whole body. ProviderError `api_error` when it is longer than `limit` bytes."""
        pieces = []
        size = 0
        try:
            while data := await self.receive():
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

    async def receive(self) -> bytes:
        """All that has come since the last await; nothing at the end. A body cut short is an error."""
        if self._connection is None:
            message = f"the answer of {self._peer} was already read or given up"
            raise ProviderError(message, category="cancelled")
        return await self._connection.receive(self._parser)


class HostPool:
    """One server: its connections at rest, places for those at work, and how requests to it begin."""

    def __init__(
        self, address: Address, proxy: Proxy | None, *, slots: int, on_idle: Callable[[], None]
    ) -> None:
        self.address = address
        self.proxy = proxy
        self.slots = asyncio.Semaphore(slots)
        self.active = 0
        self._on_idle = on_idle
        self._idle: list[HttpConnection] = []
        self._prefix = "" if proxy is None or address.tls else f"http://{address.authority}"
        self._fixed_headers = [f"host: {address.authority}", "accept-encoding: identity"]
        if self._prefix and proxy is not None and proxy.authorization:
            self._fixed_headers.append(f"proxy-authorization: {proxy.authorization}")

    def encode_head(self, method: str, target: str, *, headers: Mapping[str, str], length: int) -> bytes:
        """The head of a request. ProviderError `bad_request` for what would not arrive as one header."""
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", *self._fixed_headers]
        lines += [f"{name}: {value}" for name, value in headers.items() if not is_managed_header(name)]
        if length or method in METHODS_WITH_BODY:
            lines.append(f"content-length: {length}")
        text = "\r\n".join(lines)
        breaks = len(lines) - 1
        if text.count("\r") != breaks or text.count("\n") != breaks or "\0" in text or not method.isalpha():
            raise not_sendable(f"a header or the method of a request to {self.address.authority}")
        try:
            return f"{text}\r\n\r\n".encode("latin-1")
        except UnicodeEncodeError:
            raise not_sendable(f"a header of a request to {self.address.authority}") from None

    def take_idle(self) -> HttpConnection | None:
        """The connection that served last, if one rests."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closing():
                return connection
        return None

    def release(self, connection: HttpConnection) -> None:
        """Keep the connection for the next request, or close it when none may follow."""
        self.free_slot()
        if connection.reusable:
            connection.keep_idle(IDLE_SECONDS)
            self._idle.append(connection)
        else:
            connection.abort()

    def free_slot(self) -> None:
        """Give a place back."""
        self.active -= 1
        self.slots.release()
        if not self.active:
            self._on_idle()

    def discard(self, connection: HttpConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)


@lru_cache(maxsize=1024)
def is_managed_header(name: str) -> bool:
    """Whether the transport writes this header itself."""
    if not HEADER_NAME.fullmatch(name):
        raise not_sendable("the name of a header")
    return name.lower() in MANAGED_HEADERS


def not_sendable(what: str) -> ProviderError:
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
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        self._timeouts = timeouts
        self._max_connections = max_connections_per_host
        self._proxies = proxies
        self._dialer = Dialer()
        self._hosts: dict[Address, HostPool] = {}
        self._connections: set[HttpConnection] = set()
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
        address, target = parse_url(url)
        host = self._host(address)
        head = host.encode_head(method, target, headers=headers, length=len(body))
        end = NEVER if limits.total is None else asyncio.get_running_loop().time() + limits.total
        request = HttpRequest(head, body, limits, deadline=end, no_response_body=method == "HEAD")
        await self._acquire_slot(host, request)
        host.active += 1
        try:
            connection, incoming = await self._exchange(host, request)
        except BaseException:
            host.free_slot()
            raise
        return Response(incoming, connection, release=host.release)

    async def wait_idle(self) -> None:
        """Wait until no request is under way."""
        while any(host.active for host in self._hosts.values()):
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Close all connections, those at work too."""
        closed = [connection.closed for connection in self._connections]
        for connection in self._connections:
            connection.abort()
        if closed:
            await asyncio.wait(closed)

    def _host(self, address: Address) -> HostPool:
        host = self._hosts.get(address)
        if host is None:
            host = HostPool(
                address, self._proxies.proxy_for(address), slots=self._max_connections, on_idle=self._idle.set
            )
            self._hosts[address] = host
        return host

    async def _acquire_slot(self, host: HostPool, request: HttpRequest) -> None:
        """Take a place among the connections to the server."""
        if not host.slots.locked():
            await host.slots.acquire()  # does not wait
            return
        try:
            async with asyncio.timeout_at(connect_deadline(request)):
                await host.slots.acquire()
        except TimeoutError:
            busy = f"all {self._max_connections} connections to {host.address.authority} stayed busy"
            raise ProviderError(busy, category="timeout", transient=True) from None

    async def _exchange(self, host: HostPool, request: HttpRequest) -> tuple[HttpConnection, ResponseParser]:
        connection = host.take_idle()
        if connection is not None:
            try:
                return connection, await connection.send(request)
            except ProviderError:
                if not connection.stale:
                    raise
        connection = await self._dial(host, request)
        return connection, await connection.send(request)

    async def _dial(self, host: HostPool, request: HttpRequest) -> HttpConnection:
        address = host.address
        try:
            async with asyncio.timeout_at(connect_deadline(request)):
                connection = await self._dialer.dial(address, host.proxy)
        except TimeoutError:
            message = f"cannot connect to {address.authority} in time"
            raise ProviderError(message, category="timeout", transient=True) from None
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._on_closed(host, connection))
        return connection

    def _on_closed(self, host: HostPool, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        host.discard(connection)


def connect_deadline(request: HttpRequest) -> float | None:
    """The loop's time at which the connection must be there."""
    seconds = request.timeouts.connect
    due = (
        request.deadline
        if seconds is None
        else min(request.deadline, asyncio.get_running_loop().time() + seconds)
    )
    return None if due == NEVER else due
