"""An HTTP endpoint: authentication, one handler per method, and errors as JSON."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from starlette.types import Receive, Scope, Send

from dragoman import identity
from dragoman.errors import DragomanError, HostFenced, MethodNotAllowed, Unavailable, UnknownAddress
from dragoman.http.asgi_exchange import (
    DEFAULT_BODY_LIMITS,
    BodyLimits,
    ErrorHandler,
    Exchange,
    Handler,
    handle,
)
from dragoman.http.key_revocation import KeyValidity
from dragoman.operations.authorization import require_scope
from dragoman.server.auth import Auth
from dragoman.server.browser_sessions import BrowserAuth
from dragoman.server.http.request_log import assign_request_id
from dragoman.server.token_bounds import require_within_bounds

log = logging.getLogger(__name__)

TokenMethods: TypeAlias = Mapping[str, Literal["path", "handler"]]
"""Methods that session tokens may use: "path" compares the session in the path with the token's bounds here,
"handler" leaves the check to the handler, because the session is in the body or follows from something else.
"""
MAX_SHOWN = 1_000  # characters of a path in an error
NO_TOKENS: TokenMethods = MappingProxyType({})
RequiredScope: TypeAlias = identity.Scope | None


class HttpEndpoint:
    """The ASGI app at one path: authenticates the caller and calls the handler of the method.

    `scope` is the scope that a key needs; `on_error` replaces the JSON error response. A request ends
    when its key does.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        auth: Auth | BrowserAuth | None = None,
        scope: RequiredScope = None,
        on_error: ErrorHandler | None = None,
        body_limits: BodyLimits = DEFAULT_BODY_LIMITS,
        tokens: TokenMethods = NO_TOKENS,
    ) -> None:
        self._handlers = handlers
        self._auth = auth
        self._scope = scope
        self._on_error = on_error or send_error
        self._body_limits = body_limits
        self._tokens = tokens

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        exchange = Exchange(scope, receive, send)
        exchange.request_id = assign_request_id(exchange.headers)
        return handle(exchange, self._dispatch, on_error=self._on_error)

    async def _dispatch(self, exchange: Exchange) -> None:
        handler = self._handlers.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            exchange.response_headers |= {"allow": ", ".join(sorted(self._handlers))}
            raise MethodNotAllowed(f"{exchange.method} is not for {exchange.path!r}")
        if self._auth is None:
            await handler(exchange)
            return
        exchange.identity = await self._auth.identify_request(
            exchange, admits_tokens=exchange.method in self._tokens
        )
        if exchange.identity.bounds is not None and self._tokens[exchange.method] == "path":
            require_within_bounds(exchange.identity, exchange.path_params.get("id"))
        if self._scope is not None:
            require_scope(exchange.identity, self._scope)
        exchange.body_limits = self._body_limits
        identity.door.set(identity.door_of(exchange.path))
        with KeyValidity(exchange, self._auth.work):
            await handler(exchange)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with a 404 where nothing is mounted."""
    if scope["type"] != "http":
        return
    exchange = Exchange(scope, receive, send)
    await send_error(exchange, unknown_address(exchange))


def unknown_address(exchange: Exchange) -> UnknownAddress:
    """Return the error of a request to an address that the hub does not have."""
    hint = "the addresses are listed at /docs and /openapi.json"
    return UnknownAddress(f"nothing at {exchange.path[:MAX_SHOWN]!r}", hint=hint)


async def reject_websocket(_scope: Scope, receive: Receive, send: Send) -> None:
    """Close a WebSocket where none is served."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def send_error(exchange: Exchange, error: DragomanError) -> None:
    """Respond with an error's JSON. Raises it when the response has begun."""
    if exchange.response_started:
        log.error("%s %s failed after its answer began: %s", exchange.method, exchange.path, error.message)
        raise error
    headers = {"www-authenticate": 'Bearer realm="dragoman"'} if error.status == 401 else {}
    if isinstance(error, Unavailable | HostFenced):
        headers["retry-after"] = "1"
    await exchange.respond(error.status, {"error": error.to_json()}, headers=headers)
