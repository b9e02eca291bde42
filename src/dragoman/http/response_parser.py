"""A response as its bytes come in: status, headers, body. Pure: no socket, no clock.

Source: RFC 9112, read by httptools (llhttp) in its strict mode.
"""

from __future__ import annotations

import httptools

from dragoman.errors import WireError

HEAD_LIMIT = 64 * 1024


class ResponseParser:
    """The response to one request: `feed` what is read, `connection_closed` when the server closes,
    `take_body` the body so far.

    `status` is 0 until the head is complete, `buffered` counts the bytes of body that wait to be taken.
    `bodiless`: no body follows whatever the head says, as after HEAD and CONNECT.
    """

    def __init__(self, *, no_body: bool = False) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.buffered = 0
        self.complete = False
        self.any_received = False  # any byte at all
        self.extra_data = False  # bytes beyond the end
        self.keep_alive = False  # the server will take another request on this connection
        self._no_body = no_body
        self._until_close = False  # the body ends with the connection
        self._interim = False  # within a 1xx response
        self._chunks: list[bytes] = []
        self._overhead = 0  # bytes since the last piece of body: head, chunk sizes, trailers
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def __repr__(self) -> str:
        return f"Incoming(status={self.status}, complete={self.complete})"

    def feed(self, data: bytes) -> None:
        """Read on. WireError when this is not HTTP, or when there is too much of it besides the body."""
        parser = self._parser
        if parser is None:
            self.extra_data = True
            return
        self.any_received = True
        self._overhead += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise parse_error(error) from None
            self.extra_data = True
        if self._overhead > HEAD_LIMIT and not self.complete:
            raise WireError(f"sent more than {HEAD_LIMIT} bytes without a byte of body")

    def connection_closed(self, *, cleanly: bool) -> None:
        """The connection is closed. WireError when something is missing."""
        if self.complete:
            return
        if not self.status:
            raise WireError("closed the connection before it answered")
        if not (self._until_close and cleanly):
            raise WireError("closed the connection in the middle of its answer")
        self.complete = True
        self._parser = None

    def take_body(self) -> bytes:
        """All of the body that has come since the last time, as one piece."""
        chunks = self._chunks
        self._chunks = []
        self.buffered = 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # ---- what the parser tells -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.extra_data = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:  # a trailer
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers = self.headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        if self._parser is None:
            return
        status = self._parser.get_status_code()
        if status == 101 or status < 100:
            raise WireError(f"answered with status {status}, which nobody asked for")
        if status < 200:
            self._interim = True
            self.headers = {}
            return
        headers = self.headers
        if sum(map(len, headers)) + sum(map(len, headers.values())) > HEAD_LIMIT:
            raise WireError(f"sent more than {HEAD_LIMIT} bytes of headers")
        self.status = status
        chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._until_close = not chunked and "content-length" not in headers
        if self._no_body:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        if self.complete:
            self.extra_data = True
            return
        self._overhead = 0
        self._chunks.append(body)
        self.buffered += len(body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self._parser is not None:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()
            self._parser = None


def parse_error(error: Exception) -> WireError:
    """What a callback of ours found wrong, or that the parser understood nothing."""
    found = error.__context__
    return found if isinstance(found, WireError) else WireError("sent something that is not HTTP")
