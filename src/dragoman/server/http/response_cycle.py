"""Sends responses: uvicorn's cycle, for HTTP/1.0 clients too and with less work, and a transport that joins
writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from dragoman.flag import Flag
from dragoman.http.asgi_exchange import WHOLE_RESPONSE
from dragoman.http.disconnect import DisconnectSource

SCOPE_EXTENSIONS: Mapping[str, Mapping[str, object]] = {WHOLE_RESPONSE: {}}
BODYLESS = (204, 304)  # statuses
HEAD_BYTES = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])  # of RFC 9110, with obs-text
LINE_END = b"\r\n"


class CorkedTransport:
    """A transport that collects writes and sends them at the end of the loop iteration.

    Each write is a system call, and those are expensive: head and body are sent together.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer: list[bytes] = []
        self.is_closing = transport.is_closing  # not by `__getattr__`: every request asks

    def write(self, data: bytes) -> None:
        """See asyncio.Transport."""
        if not self._buffer:
            self._loop.call_soon(self._flush)
        self._buffer.append(data)

    def write_through(self, data: bytes) -> None:
        """Write at once, unless other writes of this iteration are waiting."""
        if self._buffer or self.is_closing():
            self.write(data)
        else:
            self._transport.write(data)

    def write_eof(self) -> None:
        """See asyncio.Transport: buffered writes are sent first."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """See asyncio.Transport: buffered writes are sent first."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        buffer, self._buffer = self._buffer, []
        if buffer and not self._transport.is_closing():
            self._transport.write(buffer[0] if len(buffer) == 1 else b"".join(buffer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LeanFlowControl(FlowControl):
    """uvicorn's, with a `Flag` in place of an `asyncio.Event`, which takes 0.8 KiB per connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._is_writable_event = cast(asyncio.Event, Flag())
        self._is_writable_event.set()


class ResponseCycle(RequestResponseCycle, DisconnectSource):
    """Sends one response.

    uvicorn sends chunks also to clients of HTTP/1.0, which know none: here the end of the connection ends
    such a response (RFC 9112, §6.3). A message `WHOLE_RESPONSE` is a response with its body.
    """

    _on_disconnect: Callable[[], None] | None = None

    async def receive(self) -> Any:
        """See ASGI; as uvicorn does, but without another coroutine when something has arrived."""
        if not self.waiting_for_100_continue and cast(Flag, self.message_event).take():
            self.flow.resume_reading()
            if self.disconnected or self.response_complete:
                return {"type": "http.disconnect"}
            body, self.body = bytes(self.body), bytearray()
            return {"type": "http.request", "body": body, "more_body": self.more_body}
        return await super().receive()

    def watch_disconnect(self, callback: Callable[[], None] | None) -> bool:
        """See `DisconnectSource`."""
        event = cast(Flag, self.message_event)
        if callback is None:
            event.on_set = self._on_disconnect = None
            return False
        if self.more_body or self.disconnected or self.response_complete or event.is_set():
            return False
        self.flow.resume_reading()  # otherwise a closed connection is not noticed
        self._on_disconnect = callback
        event.on_set = self._call_if_disconnected
        return True

    def _call_if_disconnected(self) -> None:
        if self.disconnected and self._on_disconnect is not None:
            self._on_disconnect()

    async def send(self, message: Mapping[str, Any]) -> None:
        """See ASGI. Raises RuntimeError for messages in another order, and for invalid headers."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == WHOLE_RESPONSE and not self.response_started:
            self._send_whole(message["status"], headers=message["headers"], body=message["body"])
        elif kind == "http.response.body" and self.response_started and not self.response_complete:
            body, more = message.get("body", b""), message.get("more_body", False)
            if more and body and self.chunked_encoding:  # a call less for the chunks of a stream
                self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            else:
                self._send_body(body, more=more)
        elif kind == "http.response.start" and not self.response_started:
            self._send_head(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"the response messages are out of order: {kind}")

    @property
    def is_writable(self) -> bool:
        """Whether `write_chunk` can send a part of a streamed body now, without waiting."""
        return self.chunked_encoding is True and not (
            self.flow.write_paused or self.disconnected or self.response_complete
        )

    def write_chunk(self, body: bytes) -> None:
        """Send a part of a streamed body; more follows. Only while `is_writable`."""
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        self.transport.write_through(chunk)  # type: ignore[attr-defined]  # it is a CorkedTransport

    def _send_whole(self, status: int, *, headers: Mapping[str, str], body: bytes) -> None:
        """Send a head and its body in one write. The server writes the length."""
        fields = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if status != 204:
            fields.append(f"content-length: {len(body)}\r\n")
        if not self.keep_alive:
            fields.append("connection: close\r\n")
        defaults = [b"%b: %b\r\n" % header for header in self.default_headers]
        head = b"".join([STATUS_LINE[status], *defaults, "".join(fields).encode("latin-1"), LINE_END])
        if head.translate(None, HEAD_BYTES) != LINE_END * (len(defaults) + len(fields) + 2):
            raise RuntimeError("a header has characters that HTTP does not allow")
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.access_log:
            self._log(status)
        self.transport.write(head if self.scope["method"] == "HEAD" else head + body)
        self._complete()

    def _send_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines, says_close = [STATUS_LINE[status].rstrip()], False
        for name, value in (*self.default_headers, *headers):
            lines.append(b"%b: %b" % (name, value))
            if name == b"content-length":
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, says_close = False, True
        self._choose_framing(status, lines)
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close")
        if b"".join(lines).translate(None, HEAD_BYTES):
            raise RuntimeError("a header has characters that HTTP does not allow")
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.access_log:
            self._log(status)
        self.transport.write(LINE_END.join([*lines, b"", b""]))

    def _log(self, status: int) -> None:
        scope = self.scope
        client, path = get_client_addr(scope), get_path_with_query_string(scope)
        form = '%s - "%s %s HTTP/%s" %d'  # as uvicorn's, whose formatter may read it
        self.access_logger.info(form, client, scope["method"], path, scope["http_version"], status)

    def _choose_framing(self, status: int, lines: list[bytes]) -> None:
        """Choose how a body of unknown length ends."""
        if self.chunked_encoding is not None:
            return
        if self.scope["method"] == "HEAD" or status in BODYLESS:
            self.chunked_encoding = False
        elif self.scope["http_version"] == "1.0":
            self.keep_alive = False
        else:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked")

    def _send_body(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        else:
            self.transport.write(self._frame(body, more=more))
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("the response is shorter than its content-length")
        self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _frame(self, body: bytes, *, more: bool) -> bytes:
        if self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self.chunked_encoding is False:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the response is longer than its content-length")
        return body


def cycle_of(send: Callable[..., object]) -> ResponseCycle | None:
    """Return the cycle whose method `send` is; None for another callable, which may change what is sent."""
    cycle = getattr(send, "__self__", None)
    return cycle if isinstance(cycle, ResponseCycle) else None
