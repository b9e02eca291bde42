"""The HTTP server's protocol: uvicorn's, with limits on connections and request heads.

uvicorn has no limit on a head and no deadline before a request has arrived. Both are enforced here, where the
bytes come in, because nothing above sees a request whose head is not complete.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from dragoman.flag import Flag
from dragoman.server.http.connection_limits import NEVER, ConnectionTable
from dragoman.server.http.response_cycle import (
    SCOPE_EXTENSIONS,
    CorkedTransport,
    LeanFlowControl,
    ResponseCycle,
)
from dragoman.server.http.websocket_protocol import LimitedWebSocketProtocol, UpgradedConnection

MAX_PIPELINED = 16  # requests of one connection that wait for the answers before theirs
MAX_READ_AHEAD = 4  # of these; with more, reading pauses, and a disconnect of the client is noticed late
LINGER_SECONDS = 1.0  # that a refused client has to read why
LINGER_BYTES = 1_000_000  # that a refused client may still send; then nothing more is read
MAX_REFUSED = 256  # refused connections that are told why; more are closed at once

Phase: TypeAlias = Literal["idle", "head", "body", "answer", "closing"]


class Rejection(NamedTuple):
    """The response to a request that no handler sees; `reason` is what is logged."""

    status: int
    code: str
    message: str
    reason: str
    hint: str | None = None

    def encode(self) -> bytes:
        """Return the whole response."""
        error = {"code": self.code, "message": self.message}
        if self.hint is not None:
            error["hint"] = self.hint
        body = msgspec.json.encode({"error": error})
        retry = b"retry-after: 1\r\n" if self.status == 503 else b""
        return (
            STATUS_LINE[self.status]
            + b"content-type: application/json\r\nconnection: close\r\n"
            + retry
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )


class RequestRejected(Exception):
    """Stops the parser, which raises its own error for it."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits of a `ConnectionTable`."""

    # With more than thirty attributes in its dict, an instance keeps a table of their names: 1.3 KiB.
    __slots__ = (
        "_answering",
        "_body_size",
        "_header_count",
        "_limits",
        "_phase",
        "_rejection",
        "_table",
        "_unparsed",
        "_unsent",
        "_url_size",
        "address",
        "deadline",
        "waiting_since",
    )

    def __init__(self, *, connections: ConnectionTable, **options: Any) -> None:
        super().__init__(**options)
        self.headers = []
        self.pipeline = cast(Any, [])  # uvicorn makes a deque, which takes 0.7 KiB even if it is empty
        self.address = ""
        self.deadline = NEVER
        self.waiting_since: float | None = None
        self._table = connections
        self._limits = connections.limits
        self._phase: Phase = "head"
        self._rejection: Rejection | None = None
        self._url_size = 0
        self._header_count = 0  # of those whose size was checked
        self._answering: RequestResponseCycle | None = None  # the others wait for its response
        self._unparsed = 0  # bytes since the last callback: the parser collects them
        self._body_size = 0  # bytes since the last check of the rate
        self._unsent = 0  # bytes of the answer when the connection was closed

    # ---- connections -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """See asyncio.Protocol."""
        super().connection_made(cast(asyncio.Transport, CorkedTransport(transport, self.loop)))
        self.flow = LeanFlowControl(self.transport)
        self.address = self.client[0] if self.client else ""
        self._await_head()
        problem = self._table.add(self)
        if problem is not None:
            rejection = Rejection(503, "unavailable", "the hub has too many connections", problem)
            self._reject(rejection, silently=self._table.refused > MAX_REFUSED)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        answering = self._answering
        if answering is not None and not answering.response_complete:  # uvicorn tells the last request only
            answering.disconnected = True
            answering.message_event.set()
        self.deadline = NEVER
        self._table.remove(self)

    def expire(self, now: float) -> None:
        """See `Connection.expire`."""
        match self._phase:
            case "closing":
                self._check_unsent(now)
            case "head":
                self._expire_head()
            case "body":
                self._check_body_rate(now)
            case "idle":
                self._close()
            case "answer":
                self.deadline = NEVER

    def evict(self) -> None:
        """See `Connection.evict`."""
        self._phase = "closing"
        self.transport.abort()

    def shutdown(self) -> None:
        """See uvicorn. Does not wait for a refused client."""
        if self._phase == "closing" and self._answering is None:
            self._check_unsent(self.loop.time())
        else:
            super().shutdown()

    def _close(self) -> None:
        """Close when everything is sent, or the client reads nothing for `body_timeout`."""
        self._phase = "closing"
        self._unsent = self.transport.get_write_buffer_size()
        self.deadline = self.loop.time() + (self._limits.body_timeout if self._unsent else LINGER_SECONDS)
        self.transport.close()

    def _check_unsent(self, now: float) -> None:
        unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if 0 < self._unsent < unsent:
            self.deadline = now + self._limits.body_timeout
        else:
            self.transport.abort()

    def _await_head(self) -> None:
        now = self.loop.time()
        self._phase = "head"
        self.waiting_since = now
        self.deadline = now + self._limits.head_timeout

    def _expire_head(self) -> None:
        limit = self._limits.head_timeout
        message = f"the head of a request did not arrive within {limit:g} s"
        rejection = Rejection(408, "timeout", message, f"no request within {limit:g} s (http.head_timeout)")
        self._reject(rejection, silently=self.scope is None)

    def _check_body_rate(self, now: float) -> None:
        limits, size = self._limits, self._body_size
        self._body_size = 0
        self.deadline = now + limits.body_timeout
        if self.cycle.response_complete:
            self._close()
        elif size < limits.body_rate * limits.body_timeout and not self.flow.read_paused:
            message = f"{size} bytes of the request body arrived within {limits.body_timeout:g} s"
            hint = f"the hub requires at least {limits.body_rate} bytes a second"
            reason = "a request body that came too slowly (http.body_rate)"
            self._reject(Rejection(408, "timeout", message, reason, hint))

    # ---- bytes -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._phase == "closing":
            self._discard(data)
            return
        if self._phase == "idle":
            self._await_head()
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            self._reject(self._rejection or INVALID_REQUEST)
            return
        if len(self.headers) != self._header_count or self._unparsed > self._limits.head:
            self._check_incomplete_head()

    def handle_websocket_upgrade(self) -> None:
        """See uvicorn."""
        self._phase, self.deadline = "answer", NEVER
        connection = UpgradedConnection(self._table, address=self.address, transport=self.transport)
        self._table.replace(self, connection)
        path = self.url.partition(b"?")[0]
        upgraded = partial(LimitedWebSocketProtocol, connection=connection, path=path)
        self.ws_protocol_class = cast("type[asyncio.Protocol]", upgraded)
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """See httptools."""
        self._unparsed = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            self.cycle.keep_alive = False  # answer those that have arrived, then close
            self._phase, self.deadline = "closing", NEVER
            raise RequestRejected
        self._url_size = self._header_count = 0
        if self._phase == "answer":
            self.deadline = self.loop.time() + self._limits.head_timeout
            self._phase = "head"
        super().on_message_begin()
        cast(Any, self.scope)["extensions"] = SCOPE_EXTENSIONS

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._unparsed = 0
        self._url_size += len(url)
        if self._url_size > self._limits.head:
            self._stop_parsing(self._too_large(url=True))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools. All headers of a read are checked together: there is one call for each of them."""
        lower_name = name.lower()
        if lower_name == b"expect":
            super().on_header(name, value)
        else:  # as uvicorn does, without a second call for every header
            self.headers.append((lower_name, value))

    def _check_incomplete_head(self) -> None:
        """Reject a head that is too large before its end has arrived, and trailers."""
        if len(self.headers) == self._header_count:
            self._reject(self._too_large(url=not self._url_size))
            return
        self._unparsed = 0
        if self._is_head_too_large():
            self._reject(self._too_large(url=False))

    def _is_head_too_large(self) -> bool:
        """Check the headers so far; trailers of a body count too."""
        headers, limits = self.headers, self._limits
        self._header_count = len(headers)
        size = self._url_size + sum(map(len, chain.from_iterable(headers)))
        return size > limits.head or len(headers) > limits.headers

    def on_headers_complete(self) -> None:
        """See httptools; as uvicorn does, with another cycle."""
        self._unparsed = 0
        if self._is_head_too_large():
            self._stop_parsing(self._too_large(url=False))
        scope, parser = self.scope, self.parser
        scope["method"] = parser.get_method().decode("ascii")
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        if not (parser.should_upgrade() and self._should_upgrade()):
            self._start_request(keep_alive=version != "1.0" and parser.should_keep_alive())
        self._phase = "body"
        self.waiting_since = None
        self._body_size = 0
        self.deadline = self.loop.time() + self._limits.body_timeout

    def _start_request(self, *, keep_alive: bool) -> None:
        """Call the app for the request, or queue it behind the responses to the requests before it."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope = self.scope
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        before: RequestResponseCycle | None = self.cycle
        self.cycle = ResponseCycle(  # by position: names would be looked up for each request
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            cast(asyncio.Event, Flag()),
            self.expect_100_continue,
            keep_alive,
            self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._answering = self.cycle
            self._start_asgi_task(self.cycle, self.app)
            return
        cast(Any, self.pipeline).append((self.cycle, self.app))
        if len(self.pipeline) >= MAX_READ_AHEAD:
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._unparsed = 0
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._unparsed = 0
        if len(self.headers) != self._header_count and self._is_head_too_large():
            self._stop_parsing(self._too_large(url=False))
        super().on_message_complete()
        self._phase, self.deadline = "answer", NEVER
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_complete:
            self._await_request()

    def on_response_complete(self) -> None:
        """See uvicorn, which has a timer for each idle connection where the table has one for all."""
        self.server_state.total_requests += 1
        self._answering = None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._answering, app = cast(Any, self.pipeline).pop(0)
            self._start_asgi_task(self._answering, app)
        elif self._phase == "answer":
            self._await_request()
        elif self._phase == "closing":
            if self._rejection is not None:
                self._send_rejection(self._rejection)
        else:
            self.waiting_since = self.loop.time()  # the rest of the request is not wanted any more

    def _await_request(self) -> None:
        now = self.loop.time()
        self._phase = "idle"
        self.waiting_since = now
        self.deadline = now + self._limits.idle_timeout

    def _discard(self, data: bytes) -> None:
        self._unparsed += len(data)
        if self._unparsed > LINGER_BYTES:
            self.transport.pause_reading()

    def _stop_parsing(self, rejection: Rejection) -> None:
        self._rejection = rejection
        raise RequestRejected

    # ---- refusals ----------------------------------------------------------------------------------------

    def _too_large(self, *, url: bool) -> Rejection:
        limit = self._limits.head
        if url:
            return Rejection(414, "too_large", f"the request line has more than {limit} bytes", HEAD_REASON)
        message = f"the headers have more than {limit} bytes, or are more than {self._limits.headers}"
        return Rejection(431, "too_large", message, HEAD_REASON)

    def _reject(self, rejection: Rejection, *, silently: bool = False) -> None:
        """Send a rejection and close; `silently`: only close. Nothing is sent into another response.

        Complete requests before the rejected one are answered first.
        """
        if self._phase == "closing":  # answers to requests before this one are still to be sent
            return
        self._table.log.add(rejection.reason, self.address)
        cycle, answering = self.cycle, self._answering
        is_partial = self._phase == "body"
        if answering is not None and not (is_partial and answering is cycle):
            if is_partial:
                cast(Any, self.pipeline).pop()
            self._rejection, self._phase, self.deadline = rejection, "closing", NEVER
            return
        if answering is not None:
            silently = silently or answering.response_started
            answering.disconnected = True  # its handler may wait for the rest of the body
            answering.message_event.set()
            self._answering = None
        if silently:
            self._close()
        else:
            self._send_rejection(rejection)

    def _send_rejection(self, rejection: Rejection) -> None:
        self._rejection, self._phase, self._unparsed, self._unsent = None, "closing", 0, 0
        self.deadline = self.loop.time() + LINGER_SECONDS
        self.flow.resume_reading()
        self.transport.write(rejection.encode())
        self.transport.write_eof()


HEAD_REASON = "a request head that was too large (http.head, http.headers)"
INVALID_REQUEST = Rejection(
    400, "bad_request", "the request is not valid HTTP", "a request that was not valid HTTP"
)
