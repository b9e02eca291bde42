"""One HTTP exchange on plain ASGI: the request's parts, and the ways to answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.types import Receive, Scope, Send

from dragoman import identity
from dragoman.errors import BadRequest, DragomanError, TooLarge, Unavailable
from dragoman.identity import LOCAL, Identity
from dragoman.operations.access import require_scope
from dragoman.server.auth import Auth
from dragoman.server.request_log import assign_request_id

log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()


class ClientDisconnected(Exception):
    """The client closed the connection before it had sent its request."""


class Exchange:
    """A request under way and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        path: str = scope["path"]
        self.path = unquote(path) if "%" in path else path
        self.path_params = {name: unquote(value) for name, value in scope.get("path_params", {}).items()}
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.identity: Identity = LOCAL
        self.local_address: str | None = (scope.get("server") or (None,))[0]
        self.response_started = False
        self.request_id = ""
        self.response_headers: dict[str, str] = {}  # headers of every answer, an error too
        self._query: bytes = scope.get("query_string", b"")

    @property
    def query(self) -> dict[str, str]:
        """The query's fields; the last one wins."""
        if not self._query:
            return {}
        return dict(parse_qsl(self._query.decode("latin-1"), keep_blank_values=True))

    async def read_body(self, limit: int) -> bytes:
        """The whole body. Raises TooLarge above `limit` bytes."""
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise TooLarge(f"the body has {declared} bytes, {limit} are allowed")
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > limit:
                raise TooLarge(f"the body is over {limit} bytes")
            if not message.get("more_body"):
                return b"".join(pieces)

    async def read_json(self, limit: int) -> Any:
        """The body as a JSON value; an empty one is an empty object."""
        raw = await self.read_body(limit)
        try:
            return msgspec.json.decode(raw or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is no JSON: {error}") from None
        except RecursionError:
            raise BadRequest("the body is nested deeper than anybody can read") from None

    async def respond(
        self, status: int, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a JSON value, or bytes as they are, or nothing."""
        payload = body if isinstance(body, bytes) else b"" if body is None else _encoder.encode(body)
        fields = {"content-length": str(len(payload)), **self.response_headers, **(headers or {})}
        if payload and "content-type" not in fields:
            fields["content-type"] = "application/json"
        if status == 204:
            del fields["content-length"]
        await self.start_response(status, fields)
        await self.send({"type": "http.response.body", "body": payload})

    async def start_response(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head."""
        self.response_started = True
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": fields})


RequiredScope: TypeAlias = identity.Scope | None
Handler = Callable[[Exchange], Awaitable[None]]
ErrorHandler = Callable[[Exchange, DragomanError], Awaitable[None]]


class HttpEndpoint:
    """An address: a handler a method. Knows who is asking, and answers errors as JSON.

    `scope` is what a key must be for; `fail` answers errors in words of its own.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        auth: Auth | None = None,
        scope: RequiredScope = None,
        on_error: ErrorHandler | None = None,
    ) -> None:
        self._handlers = handlers
        self._auth = auth
        self._scope = scope
        self._on_error = on_error or _send_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        exchange.request_id = assign_request_id(exchange.headers)
        try:
            handler = self._handlers.get("GET" if exchange.method == "HEAD" else exchange.method)
            if handler is None:
                await _method_not_allowed(exchange, sorted(self._handlers))
                return
            if self._auth is not None:
                exchange.identity = await self._auth.identify(exchange.headers, at=exchange.local_address)
                if self._scope is not None:
                    require_scope(exchange.identity, self._scope)
            await handler(exchange)
        except ClientDisconnected:
            log.debug("%s %s: the client left early", exchange.method, exchange.path)
        except DragomanError as error:
            await self._on_error(exchange, error)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            await self._on_error(exchange, DragomanError("an internal error of the hub; its log says more"))


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer where no door is."""
    if scope["type"] != "http":
        return
    exchange = Exchange(scope, receive, send)
    hint = "the addresses are listed at /docs and /openapi.json"
    await exchange.respond(
        404, {"error": {"code": "not_found", "message": f"nothing at {exchange.path!r}", "hint": hint}}
    )


async def reject_websocket(_scope: Scope, receive: Receive, send: Send) -> None:
    """Turn a WebSocket away where none is taken."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def _method_not_allowed(exchange: Exchange, allowed: Sequence[str]) -> None:
    body = {
        "error": {"code": "method_not_allowed", "message": f"{exchange.method} is not for {exchange.path!r}"}
    }
    await exchange.respond(405, body, headers={"allow": ", ".join(allowed)})


async def _send_error(exchange: Exchange, error: DragomanError) -> None:
    if exchange.response_started:
        log.error("%s %s failed after its answer began: %s", exchange.method, exchange.path, error.message)
        raise error
    headers = {"www-authenticate": 'Bearer realm="dragoman"'} if error.status == 401 else {}
    if isinstance(error, Unavailable):
        headers["retry-after"] = "1"
    await exchange.respond(error.status, {"error": error.to_json()}, headers=headers)
