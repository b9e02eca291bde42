"""One HTTP request and its response over plain ASGI.

Every HTTP surface of the hub uses it: the API, the gateway and `/mcp`. It reads the parts of a request that
they need (headers, query, body up to a limit), writes responses, and records whether a response has started,
after which an error can no longer be sent as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qsl, quote, unquote

import msgspec
from starlette.types import Message, Receive, Scope, Send

from dragoman.errors import BadRequest, DragomanError, KeyEnded, TooLarge, release_frames
from dragoman.identity import LOCAL, Identity
from dragoman.json_decoding import MAX_DIGITS, decode_json, parse_digits
from dragoman.json_limits import MAX_VALUES, JsonShape, may_exceed
from dragoman.large_json import SMALL, encode_large, measure, weigh
from dragoman.offload import offload

log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()


PRIVATE_JSON = {"content-type": "application/json", "cache-control": "no-store"}
RESPONSE_HEADERS = (
    "dragoman.response_headers"  # key of an ASGI scope: response headers, such as those of CORS
)
CountReceiving: TypeAlias = Callable[[Identity], AbstractContextManager[object]]
WHOLE_RESPONSE = "dragoman.response"
"""The type of an ASGI message with a whole response: `status`, `headers` as texts by name, `body`.

A server that accepts it lists it in the scope's `extensions`. It halves the work of a response.
"""
_nothing: nullcontext[None] = nullcontext()


def _count_nothing(_: Identity) -> AbstractContextManager[object]:
    return _nothing


class BodyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a request body: `max_values` in its JSON; `count` counts the bodies that a caller sends."""

    count: CountReceiving = _count_nothing
    max_values: int = MAX_VALUES


DEFAULT_BODY_LIMITS = BodyLimits()


class ClientDisconnected(Exception):
    """The client closed the connection before it had sent the whole request."""


SKIMMED_SLICE = 8_192  # bytes between two turns of the event loop


class BodySkimmer(Protocol):
    """Reads the bytes of a body as they arrive, and stores only the parts that are needed."""

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes."""

    def body(self) -> bytes:
        """Return the stored parts, after the last bytes."""


class Exchange:
    """A request and its response. `send` writes ASGI messages as they are."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.send = send
        self.method: str = scope["method"]
        self.scheme: str = scope.get("scheme", "http")
        self.root_path: str = scope.get("root_path", "")
        path: str = scope["path"]
        self.path = unquote(path) if "%" in path else path
        self.raw_path = path
        """The path as it was sent: a slash in an id is `%2F` there."""
        params = scope.get("path_params")
        self.path_params = {name: unquote(value) for name, value in params.items()} if params else {}
        self.headers = read_headers(scope)
        self.identity: Identity = LOCAL
        self.local_address: str | None = (scope.get("server") or (None,))[0]
        self.response_started = False
        self.request_id = ""
        self.response_headers: dict[str, str] = dict(scope.get(RESPONSE_HEADERS, ()))
        """Headers of every response of this exchange, including errors."""
        self.on_key_ended: Callable[[KeyEnded], None] | None = None
        """Called when the caller's key ends; without it the handler is cancelled. See `KeyValidity`."""
        self.body_limits = DEFAULT_BODY_LIMITS
        self.receive: Receive = receive
        """Returns the next ASGI message of the client."""
        self._send_whole = send if WHOLE_RESPONSE in (scope.get("extensions") or ()) else None
        self._query: bytes = scope.get("query_string", b"")

    @property
    def synthetic_scope(self) -> Scope:
        """An ASGI scope like that of this request, for an exchange without a connection."""
        headers = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in self.headers.items()]
        return {"type": "http", "method": self.method, "path": self.path, "headers": headers}

    @property
    def query(self) -> dict[str, str]:
        """The query parameters; of a repeated one, the last value."""
        if not self._query:
            return {}
        return dict(parse_qsl(self._query.decode("latin-1"), keep_blank_values=True))

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` when `receive` reports that the client has disconnected."""
        receive_message = self.receive

        async def receive() -> Message:
            message = await receive_message()
            if message["type"] == "http.disconnect":
                callback()
            return message

        self.receive = receive

    def read_body(self, limit: int, *, max_values: int | None = None) -> Awaitable[bytes]:
        """Read the whole body of a JSON request. Checks its size and shape, but not its syntax.

        `limit` is in bytes; `max_values` replaces that of `body_limits`. Raises TooLarge for too many bytes
        or values, BadRequest when it is nested too deeply or compressed, ClientDisconnected.
        """
        self._check_head(limit)
        return self._receive_body(limit, max_values or self.body_limits.max_values)

    def _check_head(self, limit: int) -> None:
        encoding = self.headers.get("content-encoding", "identity")
        if encoding != "identity":
            text = f"the request body is encoded as {encoding!r:.40}, which is not decoded here"
            raise BadRequest(text, hint="send it without Content-Encoding")
        declared = self.headers.get("content-length", "")
        if (parse_digits(declared) or 0) > limit or len(declared) > MAX_DIGITS:
            raise TooLarge(f"the request body has {declared:.30} bytes; {limit} are allowed")

    async def _receive_body(self, limit: int, max_values: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        shape: JsonShape | None = None  # a short body in one chunk needs none
        with self.body_limits.count(self.identity):
            while True:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise TooLarge(f"the request body has more than {limit} bytes")
                more = message.get("more_body")
                if shape is not None or more or may_exceed(chunk):
                    shape = shape or JsonShape(max_values=max_values)
                    shape.feed(chunk)
                if not more:
                    return chunk if size == len(chunk) else b"".join(chunks)

    async def read_skimmed(self, limit: int, skimmer: BodySkimmer, *, max_values: int) -> bytes:
        """Read a body; return the parts that the skimmer stores.

        Raises the errors of `read_body` and of the skimmer.
        """
        self._check_head(limit)
        shape = JsonShape(max_values=max_values)
        size = 0
        with self.body_limits.count(self.identity):
            while True:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > limit:
                    raise TooLarge(f"the request body has more than {limit} bytes")
                for start in range(0, len(chunk), SKIMMED_SLICE):
                    piece = chunk[start : start + SKIMMED_SLICE]
                    shape.feed(piece)
                    skimmer.feed(piece)
                    await asyncio.sleep(0)
                if not message.get("more_body"):
                    return skimmer.body()

    async def read_chunks(self, limit: int, *, size: int) -> AsyncIterator[bytes]:
        """Yield a body of any kind in chunks of at least `size` bytes, except for the last.

        Raises TooLarge, ClientDisconnected.
        """
        self._check_head(limit)
        parts: list[bytes] = []
        total = waiting = 0
        more = True
        with self.body_limits.count(self.identity):
            while more:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                parts.append(message.get("body", b""))
                waiting += len(parts[-1])
                total += len(parts[-1])
                if total > limit:
                    raise TooLarge(f"the request body has more than {limit} bytes")
                more = message.get("more_body", False)
                if waiting >= size or not more:
                    yield b"".join(parts)
                    parts, waiting = [], 0

    async def read_json(self, limit: int) -> Any:
        """Read the body as JSON; an empty body is an empty object. Raises BadRequest, TooLarge."""
        raw = await self.read_body(limit)
        try:
            return await offload(weigh(raw), lambda: decode_json(raw or b"{}"))
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BadRequest(f"the request body is not valid JSON: {error}") from None
        except RecursionError:
            raise BadRequest("the request body is nested too deeply") from None

    async def respond(
        self, status: int, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole response: a value as JSON, bytes as they are, None as an empty body.

        A body without a `content-type` is JSON, and is not stored by caches unless its headers allow it.
        """
        payload = body if isinstance(body, bytes) else b"" if body is None else await encode_response(body)
        fields = dict(headers or ())
        if payload and "content-type" not in fields:
            fields = {**PRIVATE_JSON, **fields}
        if self._send_whole is self.send:  # `send` was not replaced by one that needs the usual messages
            self.response_started = True
            whole = {"status": status, "headers": self._response_fields(fields), "body": payload}
            await self.send({"type": WHOLE_RESPONSE, **whole})
            return
        if status != 204:
            fields["content-length"] = str(len(payload))
        await self.start_response(status, fields)
        await self.send({"type": "http.response.body", "body": payload})

    async def start_response(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers, with `response_headers` among them."""
        self.response_started = True
        fields = self._response_fields(headers)
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})

    def _response_fields(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers of a response, with `response_headers` among them."""
        own = self.response_headers
        if not own:
            return headers
        fields = {**own, **headers}
        if "vary" in headers and "vary" in own:
            fields["vary"] = f"{headers['vary']}, {own['vary']}"
        return fields

    async def send_chunk(self, chunk: bytes) -> None:
        """Send a part of a streamed body; more follows."""
        await self.send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def send_from_app(self, message: Message) -> None:
        """Send a message of another ASGI app that answers this exchange; adds `response_headers`."""
        if message["type"] == "http.response.start":
            self.response_started = True
            extra = [
                (name.encode(), value.encode("latin-1")) for name, value in self.response_headers.items()
            ]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await self.send(message)


async def encode_response(body: Any) -> bytes:
    """Encode a value as JSON; a large one in a thread."""
    size = measure(body)
    return await offload(size, partial(_encoder.encode if size <= SMALL else encode_large, body))


def header_value(text: str) -> str:
    """Return a client's text as the value of a header, percent-encoded unless it is printable ASCII."""
    return text if text.isascii() and text.isprintable() else quote(text, safe="/:,")


Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]
ErrorHandler: TypeAlias = Callable[[Exchange, DragomanError], Awaitable[None]]


async def handle(exchange: Exchange, handler: Handler, *, on_error: ErrorHandler) -> None:
    """Run a request's handler and turn its exceptions into responses.

    An unexpected exception is logged with its traceback. The response omits its text, which may hold secrets.
    """
    try:
        await handler(exchange)
    except ClientDisconnected as error:
        log.debug("%s %s: the client disconnected early", exchange.method, exchange.path)
        release_frames(error)
    except DragomanError as error:
        await on_error(exchange, error)
        release_frames(error)
    except Exception as error:
        log.exception("%s %s failed", exchange.method, exchange.path)
        await on_error(exchange, DragomanError("internal error of the hub; see its log"))
        release_frames(error)


def read_headers(scope: Scope) -> dict[str, str]:
    """Return the headers by lower-case name; values of a repeated one are joined (RFC 9110 section 5.3)."""
    pairs = scope["headers"]
    headers = {name.decode("latin-1"): value.strip(b" \t").decode("latin-1") for name, value in pairs}
    if len(headers) < len(pairs):
        joined: dict[bytes, list[bytes]] = {}
        for name, value in pairs:
            joined.setdefault(name, []).append(value.strip(b" \t"))
        return {name.decode("latin-1"): b", ".join(all).decode("latin-1") for name, all in joined.items()}
    return headers
