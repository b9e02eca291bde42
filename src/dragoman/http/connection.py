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
from dragoman.http.incoming import Incoming

HIGH_WATER = 1024 * 1024
PIECE = 256 * 1024
NEVER = float("inf")
TICK = 0.001  # a loop's clock may run in milliseconds


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds; None is no limit.

    `connect` covers a free place, name, socket, proxy and TLS; `first_byte` runs from the last byte sent to
    the end of the response's head; `idle` is the longest silence in its body; `total` is the whole of it.
    """

    connect: float | None = 10.0
    first_byte: float | None = 300.0
    idle: float | None = 120.0
    total: float | None = None


class Request(msgspec.Struct, frozen=True):
    """The bytes of a request; `end` is the loop's time at which its response must be complete.

    `bodiless`: a response to it has no body whatever its head says, as after HEAD and CONNECT.
    """

    head: bytes
    body: bytes
    timeouts: Timeouts
    end: float = NEVER
    bodiless: bool = False

    def __repr__(self) -> str:
        return f"Request(<{len(self.head)} + {len(self.body)} bytes>)"


class Connection(asyncio.Protocol):
    """One socket, one request at a time: `ask`, then `more` until it gives b"". `peer` names the server."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._incoming: Incoming | None = None  # None while nothing was asked
        self._waiter: asyncio.Future[None] | None = None
        self._error: ProviderError | None = None
        self._served = 0  # responses so far
        self._sent = False  # the whole request
        self._clogged = False  # the transport wants no more to write
        self._paused = False  # we want no more to read
        self._idle: float | None = None
        self._deadline = self._end = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._rings = NEVER

    def __repr__(self) -> str:
        return f"Connection({self.peer!r}, {self._incoming!r})"

    # ---- a request and its response ------------------------------------------------------------------------

    async def ask(self, request: Request) -> Incoming:
        """Send a request, wait for the head of its response. Failure and cancellation close the socket."""
        self._incoming = incoming = Incoming(bodiless=request.bodiless)
        self._error = None
        self._sent = False
        self._idle = request.timeouts.idle
        self._end = request.end
        try:
            await self._write(request, incoming)
            while not incoming.status:
                await self._news()
        except BaseException:
            self.abort()
            raise
        return incoming

    async def more(self, incoming: Incoming) -> bytes:
        """Everything of the body that has arrived since the last call; waits for some; b"" at its end."""
        while not incoming.size:
            if incoming.complete:
                return b""
            await self._news()
        data = incoming.take()
        if self._paused:
            self._resume()
        return data

    @property
    def reusable(self) -> bool:
        """Whether another request may follow: the response is over, and the connection as it should be."""
        incoming = self._incoming
        if incoming is None or not (incoming.complete and incoming.persistent and self._sent):
            return False
        return not incoming.surplus and not self.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the request failed only because the server had left a connection that had served before."""
        if self._served == 0 or self._error is None or self._error.category != "network":
            return False
        return self._incoming is not None and not self._incoming.heard

    def rest(self, seconds: float) -> None:
        """Wait for another request, at most so long."""
        if self._paused:
            self._resume()
        self._served += 1
        self._incoming = None
        self._end = NEVER
        self._expect(seconds)

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
        self._incoming = None

    async def _write(self, request: Request, incoming: Incoming) -> None:
        transport = cast(asyncio.Transport, self._transport)
        for piece in cut(request):
            transport.write(piece)
            self._expect(request.timeouts.first_byte)
            while self._clogged and not incoming.status:
                await self._news()
            if incoming.status:  # answered early: the rest of the request stays unsent
                return
        self._sent = True

    async def _news(self) -> None:
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

    def _fail(self, happened: str, category: ProviderCategory = "network") -> None:
        if self._error is None:
            self._error = ProviderError(f"{self.peer} {happened}", category=category, transient=True)
        self.abort()

    # ---- deadlines -----------------------------------------------------------------------------------------

    def _expect(self, seconds: float | None) -> None:
        """Something must happen within so many seconds. The timer is touched only if it rings too late."""
        self._deadline = NEVER if seconds is None else self._loop.time() + seconds
        due = min(self._deadline, self._end)
        if due < self._rings:
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = due
        self._timer = None if due == NEVER else self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        due = min(self._deadline, self._end)
        self._timer, self._rings = None, NEVER
        if due > self._loop.time() + TICK:
            self._set_timer(due)
        elif self._incoming is None:
            self.abort()
        elif self._end <= self._deadline:
            self._fail("did not finish its answer in the time that the request may take", "timeout")
        elif self._incoming.status:
            self._fail("fell silent in the middle of its answer", "timeout")
        else:
            self._fail("did not begin to answer in time", "timeout")

    # ---- back-pressure -------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._paused = True
        self._deadline = NEVER  # the silence is ours
        cast(asyncio.Transport, self._transport).pause_reading()

    def _resume(self) -> None:
        self._paused = False
        if not self.is_closing():
            cast(asyncio.Transport, self._transport).resume_reading()
            over = self._incoming is None or self._incoming.complete
            self._expect(None if over else self._idle)

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False
        self._wake()

    # ---- what the socket tells -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            self.abort()  # nothing was asked
            return
        try:
            incoming.feed(data)
        except WireError as error:
            self._fail(error.message)
            return
        if incoming.complete:
            self._deadline = self._end = NEVER
        elif incoming.size > HIGH_WATER:
            self._pause()
        elif incoming.status:
            self._expect(self._idle)
        if incoming.status:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._set_timer(NEVER)
        self._clogged = False
        if self._incoming is not None and self._error is None:
            try:
                self._incoming.end(cleanly=error is None)
            except WireError as problem:
                self._fail(problem.message)
        self._wake()
        if not self.closed.done():
            self.closed.set_result(None)


def cut(request: Request) -> list[bytes | memoryview]:
    """What to write at a time: all at once, or a long body in pieces."""
    if len(request.body) <= PIECE:
        return [request.head + request.body]
    body = memoryview(request.body)
    return [request.head, *(body[at : at + PIECE] for at in range(0, len(body), PIECE))]
