"""HTTP client transport: connection pools, requests, streamed responses.

Our own client on asyncio and httptools, because the HTTP client accounts for most of a gateway's CPU time.
HTTP/1.1 with a connection pool per server; redirects are not followed. No compression is requested; bodies
that are compressed anyway are decoded. Failures are ProviderErrors `network` or `timeout` that name the
server and the phase, never a header or a body.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import Protocol

from dragoman.errors import ProviderError
from dragoman.http.connection import NEVER, HttpConnection, HttpRequest, Timeouts
from dragoman.http.content_coding import decode_body
from dragoman.http.dialer import Dialer
from dragoman.http.response_parser import ResponseParser
from dragoman.http.url_and_proxy import Address, Proxies, Proxy, parse_url, proxies_from

__all__ = ["Proxies", "Response", "Sender", "Timeouts", "Transport", "proxies_from"]

IDLE_SECONDS = 60.0
DEFAULTS = Timeouts()
NO_PROXIES = Proxies()
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
METHODS_WITH_BODY = {"POST", "PUT", "PATCH"}
# The transport writes these headers itself; the caller's are dropped.
MANAGED_HEADERS = {
    "accept-encoding", "connection", "content-length", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip


class Response:
    """A response whose head is complete and whose body may still arrive; header names are lower-case.

    Read it to the end, or end it with `abort`, `close` or `async with`: until then it occupies a connection.
    """

    receive: Callable[[], Awaitable[bytes]]
    """Returns the body received since the last call, waiting for at least one byte; b"" at its end.

    Raises ProviderError if the body is cut short, or if the response was ended. It is the connection's own
    method, not a wrapper, because it is called for every read.
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
        self.receive = partial(connection.receive, parser)
        codings = parser.headers.get("content-encoding")
        if codings:
            self.receive = decode_body(self.receive, codings, peer=self._peer)

    def __repr__(self) -> str:
        return f"Response({self.status}, from {self._peer!r})"

    def on_read(self, callback: Callable[[bytes], bool]) -> None:
        """Call `callback` with each short read that arrives while somebody waits for `receive`.

        It returns whether it has handled the read; otherwise `receive` returns it. It must not raise. It is
        called until the response is ended, and not for a body with a content encoding.
        """
        if "content-encoding" not in self.headers:
            self._parser.on_read = callback

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self._parser.complete

    async def iter_raw(self) -> AsyncGenerator[bytes, None]:
        """Iterate over the body as it arrives. Raises ProviderError if the body is cut short."""
        try:
            while data := await self.receive():
                yield data
        finally:
            self.abort()

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises ProviderError `api_error` if it exceeds `limit` bytes."""
        pieces = []
        size = 0
        try:
            while data := await self.receive():
                size += len(data)
                if size > limit:
                    message = f"the response of {self._peer} is longer than {limit} bytes"
                    raise ProviderError(message, category="api_error")
                pieces.append(data)
        finally:
            self.abort()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def abort(self) -> None:
        """End the response: keep the connection if the body is complete, else close the socket now."""
        connection, self._connection = self._connection, None
        self._parser.on_read = None
        if connection is not None:
            self.receive = partial(refuse_read, self._peer)
            self._release(connection)

    async def close(self) -> None:
        """Like `abort`, and wait until a socket that has to close is closed."""
        connection = self._connection
        self.abort()
        if connection is not None and connection.is_closing():
            await asyncio.wait([connection.closed])

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.abort()


async def refuse_read(peer: str) -> bytes:
    """Raise the error of a read after the end of a response."""
    raise ProviderError(f"the response of {peer} was already read or closed", category="cancelled")


class HostPool:
    """The connection pool of one server: idle connections, slots for active ones, fixed request headers."""

    def __init__(
        self, address: Address, proxy: Proxy | None, *, slots: int, on_idle: Callable[[], None]
    ) -> None:
        self.address = address
        self.proxy = proxy
        self.slots = slots
        self.active = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._on_idle = on_idle
        self._idle: list[HttpConnection] = []
        self._prefix = "" if proxy is None or address.tls else f"http://{address.authority}"
        self._fixed_lines: tuple[str, ...] = (f"host: {address.authority}", "accept-encoding: identity")
        if self._prefix and proxy is not None and proxy.authorization:
            self._fixed_lines += (f"proxy-authorization: {proxy.authorization}",)

    def encode_head(self, method: str, target: str, *, headers: Mapping[str, str], length: int) -> bytes:
        """Encode the head of a request. Raises ProviderError `bad_request` against header injection."""
        request_line = f"{method} {self._prefix}{target} HTTP/1.1"
        try:
            if not method.isalpha():
                raise ValueError("not a method")
            lines = encode_lines((request_line, *self._fixed_lines), tuple(headers.items()))
        except ValueError:
            raise not_sendable(f"a header or the method of a request to {self.address.authority}") from None
        if length or method in METHODS_WITH_BODY:
            return b"%bcontent-length: %d\r\n\r\n" % (lines, length)
        return lines + b"\r\n"

    def take_idle(self) -> HttpConnection | None:
        """Return the most recently used idle connection, if any."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closing():
                return connection
        return None

    def release(self, connection: HttpConnection) -> None:
        """Return a connection to the pool, or close it if it is not reusable."""
        self.free_slot()
        if connection.reusable:
            connection.keep_idle(IDLE_SECONDS)
            self._idle.append(connection)
        else:
            connection.abort()

    async def wait_for_slot(self) -> None:
        """Wait for a slot and take it; slots are given in the order of waiting."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.free_slot()
            raise

    def free_slot(self) -> None:
        """Release a slot, or hand it to the request that has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.active -= 1
        if not self.active:
            self._on_idle()

    def discard(self, connection: HttpConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)


@lru_cache(maxsize=64)
def encode_lines(first_lines: tuple[str, ...], headers: tuple[tuple[str, str], ...]) -> bytes:
    """Encode the lines of a head, each with its line break. Raises ValueError for invalid characters.

    Cached, because most requests to a server have the same headers; the cache is small, because they contain
    keys.
    """
    own = (f"{name}: {value}" for name, value in headers if not is_managed_header(name))
    lines = [*first_lines, *own, ""]
    text = "\r\n".join(lines)
    line_breaks = len(lines) - 1
    if text.count("\r") != line_breaks or text.count("\n") != line_breaks or "\0" in text:
        raise ValueError("line breaks within a line")
    return text.encode("latin-1")


@lru_cache(maxsize=1024)
def is_managed_header(name: str) -> bool:
    """Return whether the transport writes this header itself."""
    if not HEADER_NAME.fullmatch(name):
        raise not_sendable("the name of a header")
    return name.lower() in MANAGED_HEADERS


def not_sendable(subject: str) -> ProviderError:
    return ProviderError(f"{subject} contains characters that HTTP does not allow", category="bad_request")


class Sender(Protocol):
    """Sends HTTP requests: `Transport`, or a wrapper around it."""

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
    """Sends requests over pooled connections, one request at a time per connection. For one event loop."""

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
        body: bytes | memoryview = b"",
        timeouts: Timeouts | None = None,
    ) -> Response:
        """Send a request; return the response as soon as its head is complete. Cancelling closes the socket.

        Raises ProviderError: `network` or `timeout`, or `bad_request` for a URL or header that cannot be
        sent. An idle connection that the server has closed meanwhile is replaced by a new one, once.
        """
        limits = timeouts or self._timeouts
        address, target = parse_url(url)
        host = self._host(address)
        head = host.encode_head(method, target, headers=headers, length=len(body))
        deadline = NEVER if limits.total is None else asyncio.get_running_loop().time() + limits.total
        request = HttpRequest(head, body, limits, deadline=deadline, no_response_body=method == "HEAD")
        if host.active < host.slots:
            host.active += 1
        else:
            await self._wait_for_slot(host, request)
        try:
            connection, parser = await self._exchange(host, request)
        except BaseException:
            host.free_slot()
            raise
        return Response(parser, connection, release=host.release)

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        while any(host.active for host in self._hosts.values()):
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Close all connections, including active ones."""
        closing = [connection.closed for connection in self._connections]
        for connection in self._connections:
            connection.abort()
        if closing:
            await asyncio.wait(closing)

    def _host(self, address: Address) -> HostPool:
        host = self._hosts.get(address)
        if host is None:
            host = HostPool(
                address, self._proxies.proxy_for(address), slots=self._max_connections, on_idle=self._idle.set
            )
            self._hosts[address] = host
        return host

    async def _wait_for_slot(self, host: HostPool, request: HttpRequest) -> None:
        """Wait for one of the server's connection slots. Raises ProviderError `timeout`."""
        try:
            async with asyncio.timeout_at(connect_deadline(request)):
                await host.wait_for_slot()
        except TimeoutError:
            message = f"all {self._max_connections} connections to {host.address.authority} stayed busy"
            raise ProviderError(message, category="timeout", transient=True) from None

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
            message = f"connecting to {address.authority} timed out"
            raise ProviderError(message, category="timeout", transient=True) from None
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._on_closed(host, connection))
        return connection

    def _on_closed(self, host: HostPool, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        host.discard(connection)


def connect_deadline(request: HttpRequest) -> float | None:
    """Return the loop time by which the connection must be open."""
    seconds = request.timeouts.connect
    due = (
        request.deadline
        if seconds is None
        else min(request.deadline, asyncio.get_running_loop().time() + seconds)
    )
    return None if due == NEVER else due
