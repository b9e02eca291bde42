"""One HTTP/1.1 connection: send a request, receive its response, enforce deadlines.

An asyncio protocol, not a stream: one socket read wakes the reader once, and a single lazy timer per
connection covers all deadlines. No timer is armed and no task is switched per chunk.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

import msgspec

from dragoman.errors import ProviderCategory, ProviderError, WireError
from dragoman.http.response_parser import ResponseParser

HIGH_WATER = 128 * 1024  # buffered bytes of a body above which nothing more is read from the socket
WRITE_SIZE = 256 * 1024
NEVER = float("inf")
CLOCK_RESOLUTION = 0.001  # seconds; uvloop's clock counts in milliseconds


class Timeouts(msgspec.Struct, frozen=True):
    """Timeouts in seconds; None means no limit.

    `connect` covers waiting for a free slot, name resolution, socket, proxy and TLS; `first_byte` runs from
    the last byte sent to the end of the response's head; `idle` is the longest pause in the body; `total`
    covers the whole request.
    """

    connect: float | None = 10.0
    first_byte: float | None = 300.0
    idle: float | None = 120.0
    total: float | None = None


class HttpRequest(msgspec.Struct, frozen=True):
    """The bytes of a request; `deadline` is the loop time at which its response must be complete.

    `no_response_body`: the response has no body whatever its head says (HEAD, CONNECT).
    """

    head: bytes
    body: bytes | memoryview
    timeouts: Timeouts
    deadline: float = NEVER
    no_response_body: bool = False

    def __repr__(self) -> str:
        return f"HttpRequest(<{len(self.head)} + {len(self.body)} bytes>)"


class HttpConnection(asyncio.Protocol):
    """One socket, one request at a time: `send`, then `receive` until it returns b"".

    `peer` names the server in error messages.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None  # None between requests
        self._waiter: asyncio.Future[None] | None = None
        self._error: ProviderError | None = None
        self._responses = 0  # completed so far
        self._request_sent = False  # completely
        self._writing_paused = False  # the transport's write buffer is full
        self._reading_paused = False  # our read buffer is full
        self._idle_timeout: float | None = None
        self._deadline = self._total_deadline = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = NEVER

    def __repr__(self) -> str:
        return f"HttpConnection({self.peer!r}, {self._parser!r})"

    # ---- requests and responses ----------------------------------------------------------------------------

    async def send(self, request: HttpRequest) -> ResponseParser:
        """Send a request and wait for the head of its response. Raises ProviderError.

        Failure and cancellation close the socket.
        """
        self._parser = parser = ResponseParser(no_body=request.no_response_body)
        self._error = None
        self._request_sent = False
        self._idle_timeout = request.timeouts.idle
        self._total_deadline = request.deadline
        try:
            transport = cast(asyncio.Transport, self._transport)
            is_short = len(request.body) <= WRITE_SIZE
            for chunk in (b"".join((request.head, request.body)),) if is_short else split_request(request):
                transport.write(chunk)
                self._set_deadline(request.timeouts.first_byte)
                while self._writing_paused and not parser.status:
                    await self._wait()
                if parser.status:  # answered early: do not send the rest of the request
                    return parser
            self._request_sent = True
            while not parser.status:
                await self._wait()
        except BaseException:
            self.abort()
            raise
        return parser

    async def receive(self, parser: ResponseParser) -> bytes:
        """Return the body received since the last call, waiting for at least one byte; b"" at its end.

        A longer one is returned in parts of `MAX_TAKE` bytes, one for each iteration of the event loop, so
        that a fast server does not keep other tasks from running. Raises ProviderError.
        """
        while not parser.buffered:
            if parser.complete:
                return b""
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()  # as `_wait`, without a coroutine for every read
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = parser.take_body()
        if parser.buffered:
            await asyncio.sleep(0)
        elif self._reading_paused:
            self._resume_reading()
        return data

    @property
    def reusable(self) -> bool:
        """Whether the connection can send another request: the response is complete and as expected."""
        parser = self._parser
        if parser is None or not (parser.complete and parser.keep_alive and self._request_sent):
            return False
        return not parser.extra_data and self._transport is not None and not self._transport.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the request failed because the server had closed an idle keep-alive connection."""
        if self._responses == 0 or self._error is None or self._error.category != "network":
            return False
        return self._parser is not None and not self._parser.any_received

    def keep_idle(self, seconds: float) -> None:
        """Keep the connection open for another request, for at most `seconds`."""
        if self._reading_paused:
            self._resume_reading()
        self._responses += 1
        self._parser = None
        self._total_deadline = NEVER
        self._set_deadline(seconds)

    def abort(self) -> None:
        """Close the socket now. A pending `send` or `receive` raises ProviderError."""
        if self._error is None:
            self._error = ProviderError(f"the request to {self.peer} was cancelled", category="cancelled")
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS on the open socket, after a proxy's CONNECT."""
        inner = cast(asyncio.Transport, self._transport)
        self._transport = await self._loop.start_tls(inner, self, context, server_hostname=host)
        self._parser = None

    async def _wait(self) -> None:
        """Wait for the next socket event; raise the connection's error, if any."""
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
        """Require progress within `seconds`. The timer is re-armed only if it would fire too late."""
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
            self._fail("did not finish its response within the request's total timeout", "timeout")
        elif self._parser.status:
            self._fail("stopped sending in the middle of its response", "timeout")
        else:
            self._fail("did not start to respond in time", "timeout")

    # ---- back-pressure -------------------------------------------------------------------------------------

    def _pause_reading(self) -> None:
        self._reading_paused = True
        self._deadline = NEVER  # we cause the pause, not the server
        cast(asyncio.Transport, self._transport).pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if not self.is_closing():
            cast(asyncio.Transport, self._transport).resume_reading()
            complete = self._parser is None or self._parser.complete
            self._set_deadline(None if complete else self._idle_timeout)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake()

    # ---- asyncio.Protocol callbacks ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self.abort()  # data without a request
            return
        try:
            parser.feed(data)
        except WireError as error:
            self._fail(error.message)
            return
        if parser.complete:
            self._deadline = self._total_deadline = NEVER
        elif parser.buffered > HIGH_WATER:
            self._pause_reading()
        elif parser.status:  # as `_set_deadline`, without a call for every read
            idle = self._idle_timeout
            self._deadline = NEVER if idle is None else self._loop.time() + idle
            if self._deadline < self._timer_due:
                self._set_timer(min(self._deadline, self._total_deadline))
        waiter = self._waiter
        if waiter is not None and parser.status and not (waiter.done() or parser.hand_over()):
            waiter.set_result(None)

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
    """Split a request with a long body into several writes."""
    body = memoryview(request.body)
    return [request.head, *(body[start : start + WRITE_SIZE] for start in range(0, len(body), WRITE_SIZE))]
