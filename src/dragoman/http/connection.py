"""One HTTP/1.1 connection: a request out, its response in, under deadlines.

Whatever one read of the socket brings wakes the reader once, and one lazy timer a connection watches all
deadlines: nothing is armed, and no task is switched, per chunk.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

import msgspec

from dragoman.errors import ProviderCategory, ProviderError, WireError
from dragoman.http.response_parser import ResponseParser

HIGH_WATER = 1024 * 1024
WRITE_SIZE = 256 * 1024
NEVER = float("inf")
CLOCK_RESOLUTION = 0.001  # a loop's clock may run in milliseconds


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds; None is no limit.

    `connect` covers a free place, name, socket, proxy and TLS; `first_byte` runs from the last byte sent to
    the end of the response's head; `idle` is the longest silence in its body; `total` is the whole of it.
    """

    connect: float | None = 10.0
    first_byte: float | None = 300.0
    idle: float | None = 120.0
    total: float | None = None


class HttpRequest(msgspec.Struct, frozen=True):
    """The bytes of a request; `deadline` is the loop's time at which its response must be complete.

    `no_response_body`: a response to it has no body whatever its head says, as after HEAD and CONNECT.
    """

    head: bytes
    body: bytes
    timeouts: Timeouts
    deadline: float = NEVER
    no_response_body: bool = False

    def __repr__(self) -> str:
        return f"Request(<{len(self.head)} + {len(self.body)} bytes>)"


class HttpConnection(asyncio.Protocol):
    """One socket, one request at a time: `send`, then `receive` until it gives b"". `peer` names the
    server.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None  # None while nothing was asked
        self._waiter: asyncio.Future[None] | None = None
        self._error: ProviderError | None = None
        self._responses = 0  # responses so far
        self._request_sent = False  # the whole request
        self._writing_paused = False  # the transport wants no more to write
        self._reading_paused = False  # we want no more to read
        self._idle_timeout: float | None = None
        self._deadline = self._total_deadline = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = NEVER

    def __repr__(self) -> str:
        return f"Connection({self.peer!r}, {self._parser!r})"

    # ---- a request and its response ------------------------------------------------------------------------

    async def send(self, request: HttpRequest) -> ResponseParser:
        """Send a request, wait for the head of its response. Failure and cancellation close the socket."""
        self._parser = incoming = ResponseParser(no_body=request.no_response_body)
        self._error = None
        self._request_sent = False
        self._idle_timeout = request.timeouts.idle
        self._total_deadline = request.deadline
        try:
            await self._write(request, incoming)
            while not incoming.status:
                await self._wait()
        except BaseException:
            self.abort()
            raise
        return incoming

    async def receive(self, parser: ResponseParser) -> bytes:
        """Everything of the body that has arrived since the last call; waits for some; b"" at its end."""
        while not parser.buffered:
            if parser.complete:
                return b""
            await self._wait()
        data = parser.take_body()
        if self._reading_paused:
            self._resume_reading()
        return data

    @property
    def reusable(self) -> bool:
        """Whether another request may follow: the response is over, and the connection as it should be."""
        incoming = self._parser
        if incoming is None or not (incoming.complete and incoming.keep_alive and self._request_sent):
            return False
        return not incoming.extra_data and not self.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the request failed only because the server had left a connection that had served before."""
        if self._responses == 0 or self._error is None or self._error.category != "network":
            return False
        return self._parser is not None and not self._parser.any_received

    def keep_idle(self, seconds: float) -> None:
        """Wait for another request, at most so long."""
        if self._reading_paused:
            self._resume_reading()
        self._responses += 1
        self._parser = None
        self._total_deadline = NEVER
        self._set_deadline(seconds)

    def abort(self) -> None:
        """Close the socket now. Whoever still waits for the response gets an error."""
        if self._error is None:
            self._error = ProviderError(f"the request to {self.peer} was given up", category="cancelled")
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Put TLS on the open socket, as behind a proxy's tunnel."""
        inner = cast(asyncio.Transport, self._transport)
        self._transport = await self._loop.start_tls(inner, self, context, server_hostname=host)
        self._parser = None

    async def _write(self, request: HttpRequest, parser: ResponseParser) -> None:
        transport = cast(asyncio.Transport, self._transport)
        for piece in split_request(request):
            transport.write(piece)
            self._set_deadline(request.timeouts.first_byte)
            while self._writing_paused and not parser.status:
                await self._wait()
            if parser.status:  # answered early: the rest of the request stays unsent
                return
        self._request_sent = True

    async def _wait(self) -> None:
        """Wait until something has happened; raise what has gone wrong."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, problem: str, category: ProviderCategory = "network") -> None:
        if self._error is None:
            self._error = ProviderError(f"{self.peer} {problem}", category=category, transient=True)
        self.abort()

    # ---- deadlines -----------------------------------------------------------------------------------------

    def _set_deadline(self, seconds: float | None) -> None:
        """Something must happen within so many seconds. The timer is touched only if it rings too late."""
        self._deadline = NEVER if seconds is None else self._loop.time() + seconds
        due = min(self._deadline, self._total_deadline)
        if due < self._timer_due:
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = None if due == NEVER else self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        due = min(self._deadline, self._total_deadline)
        self._timer, self._timer_due = None, NEVER
        if due > self._loop.time() + CLOCK_RESOLUTION:
            self._set_timer(due)
        elif self._parser is None:
            self.abort()
        elif self._total_deadline <= self._deadline:
            self._fail("did not finish its answer in the time that the request may take", "timeout")
        elif self._parser.status:
            self._fail("fell silent in the middle of its answer", "timeout")
        else:
            self._fail("did not begin to answer in time", "timeout")

    # ---- back-pressure -------------------------------------------------------------------------------------

    def _pause_reading(self) -> None:
        self._reading_paused = True
        self._deadline = NEVER  # the silence is ours
        cast(asyncio.Transport, self._transport).pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if not self.is_closing():
            cast(asyncio.Transport, self._transport).resume_reading()
            over = self._parser is None or self._parser.complete
            self._set_deadline(None if over else self._idle_timeout)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake()

    # ---- what the socket tells -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        incoming = self._parser
        if incoming is None:
            self.abort()  # nothing was asked
            return
        try:
            incoming.feed(data)
        except WireError as error:
            self._fail(error.message)
            return
        if incoming.complete:
            self._deadline = self._total_deadline = NEVER
        elif incoming.buffered > HIGH_WATER:
            self._pause_reading()
        elif incoming.status:
            self._set_deadline(self._idle_timeout)
        if incoming.status:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._set_timer(NEVER)
        self._writing_paused = False
        if self._parser is not None and self._error is None:
            try:
                self._parser.connection_closed(cleanly=error is None)
            except WireError as problem:
                self._fail(problem.message)
        self._wake()
        if not self.closed.done():
            self.closed.set_result(None)


def split_request(request: HttpRequest) -> list[bytes | memoryview]:
    """What to write at a time: all at once, or a long body in pieces."""
    if len(request.body) <= WRITE_SIZE:
        return [request.head + request.body]
    body = memoryview(request.body)
    return [request.head, *(body[at : at + WRITE_SIZE] for at in range(0, len(body), WRITE_SIZE))]
