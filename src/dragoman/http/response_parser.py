"""Parse an HTTP/1.1 response from its bytes: status, headers, body. No I/O, no clock.

Source: RFC 9112, parsed by httptools (llhttp) in strict mode.
"""

from __future__ import annotations

from collections.abc import Callable

import httptools

from dragoman.errors import WireError

HEAD_LIMIT = 64 * 1024  # bytes
MAX_TAKE = 32 * 1024  # bytes of a body that `take_body` returns at once


class ResponseParser:
    """The response to one request.

    Call `feed` with received bytes, `connection_closed` when the server closes, and `take_body` for the body
    so far, at most `MAX_TAKE` bytes at once. `status` is 0 until the head is complete; `buffered` counts the
    body bytes that were not taken. `no_body`: no body follows whatever the head says (HEAD, CONNECT).
    """

    def __init__(self, *, no_body: bool = False) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.buffered = 0
        self.complete = False
        self.any_received = False  # any byte of the response
        self.extra_data = False  # bytes after the end of the response
        self.keep_alive = False  # the server accepts another request on this connection
        self.on_read: Callable[[bytes], bool] | None = None  # see `Response.on_read`
        self._no_body = no_body
        self._until_close = False  # the body ends when the connection closes
        self._interim = False  # within a 1xx response
        self._chunks: list[bytes | memoryview] = []
        self.on_body = self._chunks.append  # called by httptools, up to a hundred times for one read
        self._end = 0  # the number of chunks when the response was complete
        self._overhead = 0  # bytes since the last body data: head, chunk sizes, trailers
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def __repr__(self) -> str:
        return f"ResponseParser(status={self.status}, complete={self.complete})"

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. Raises WireError if they are not HTTP or have too much framing overhead."""
        parser = self._parser
        if parser is None:
            self.extra_data = True
            return
        self.any_received = True
        self._overhead += len(data)
        chunks = self._chunks
        before = len(chunks)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise parse_error(error) from None
            self.extra_data = True
        finally:
            if len(chunks) == before + 1 and not self.complete:
                self._overhead = 0
                self.buffered += len(chunks[-1])
            elif len(chunks) > before:
                self._count_body(before)
        if self._overhead > HEAD_LIMIT and not self.complete:
            raise WireError(f"sent more than {HEAD_LIMIT} bytes without any body data")

    def connection_closed(self, *, cleanly: bool) -> None:
        """Handle the end of the connection. Raises WireError if the response is incomplete."""
        if self.complete:
            return
        if not self.status:
            raise WireError("closed the connection before it responded")
        if not (self._until_close and cleanly):
            raise WireError("closed the connection in the middle of its response")
        self.complete = True
        self._parser = None

    def take_body(self) -> bytes:
        """Return the body received since the last call; at most `MAX_TAKE` bytes, the rest later."""
        if self.buffered > MAX_TAKE:
            return self._take_part()
        chunks = self._chunks
        self.buffered = 0
        first = chunks[0] if len(chunks) == 1 else None
        body = first if type(first) is bytes else b"".join(chunks)
        chunks.clear()
        return body

    def hand_over(self) -> bool:
        """Call `on_read` with the body so far, if that is short; return whether it has handled it.

        Not at the end of the body, of which the reader has to learn: nothing else would wake it up.
        """
        if self.on_read is None or self.complete or not 0 < self.buffered <= MAX_TAKE:
            return False
        data = self.take_body()
        if self.on_read(data):
            return True
        self._chunks.append(data)
        self.buffered = len(data)
        return False

    def _count_body(self, before: int) -> None:
        """Count the chunks after the first `before`; drop those after the end of the response."""
        chunks = self._chunks
        if self.complete and len(chunks) > self._end:
            self.extra_data = True
            del chunks[self._end :]
        if added := chunks[before:]:
            self._overhead = 0
            self.buffered += sum(map(len, added))

    def _take_part(self) -> bytes:
        """Return the first `MAX_TAKE` bytes of a long body."""
        chunks, part, size = self._chunks, list[bytes | memoryview](), 0
        for at, chunk in enumerate(chunks):
            if size + len(chunk) > MAX_TAKE:
                part.append(chunk[: MAX_TAKE - size])
                # A view: a copy of the rest for each part would cost the square of its length.
                chunks[: at + 1] = [memoryview(chunk)[MAX_TAKE - size :]]
                break
            part.append(chunk)
            size += len(chunk)
        self.buffered -= MAX_TAKE
        return b"".join(part)

    # ---- httptools callbacks -------------------------------------------------------------------------------

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
            raise WireError(f"answered with status {status}, which was not requested")
        if status < 200:
            self._interim = True
            self.headers = {}
            return
        headers = self.headers
        is_long = self._overhead > HEAD_LIMIT  # it may include bytes after the head
        if is_long and sum(map(len, headers)) + sum(map(len, headers.values())) > HEAD_LIMIT:
            raise WireError(f"sent more than {HEAD_LIMIT} bytes of headers")
        self.status = status
        chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._until_close = not chunked and "content-length" not in headers
        if self._no_body:
            self.on_message_complete()

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self._parser is not None:
            self.complete = True
            self._end = len(self._chunks)
            self.keep_alive = self._parser.should_keep_alive()
            self._parser = None


def parse_error(error: Exception) -> WireError:
    """Return the WireError that one of our callbacks raised, else one for invalid data."""
    cause = error.__context__
    return cause if isinstance(cause, WireError) else WireError("sent something that is not HTTP")
