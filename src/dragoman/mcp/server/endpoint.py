"""The `/mcp` endpoint: access checks, CORS, and the choice between the SDK and the stateless path."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError, Forbidden, KeyEnded
from dragoman.http.asgi_exchange import DEFAULT_BODY_LIMITS, Exchange, handle
from dragoman.http.in_flight import InFlightRequests
from dragoman.http.key_revocation import KeyValidity
from dragoman.http.origin_policy import OriginPolicy
from dragoman.identity import Identity, door
from dragoman.json_decoding import DECODE_ERRORS, decode_json, mend_json
from dragoman.large_json import weigh
from dragoman.mcp.server import sdk_server
from dragoman.mcp.server.limits import McpLimits
from dragoman.mcp.server.sdk_server import BuildSdkServer, SdkServer
from dragoman.mcp.server.server import ToolServer
from dragoman.mcp.server.stateless import StatelessCalls, parse_tool_call
from dragoman.offload import offload
from dragoman.operations.authorization import require_scope
from dragoman.revocable_work import ActiveWork

DEFAULT_LIMITS = McpLimits()
INVALID_REQUEST, PARSE_ERROR = -32600, -32700
NOT_JSON = "the request is not valid JSON (which has no NaN, infinities and numbers too large for a float)"
METHODS = "POST, GET, DELETE, OPTIONS"
EXPOSED_HEADERS = "mcp-session-id, mcp-protocol-version, www-authenticate"
Identify: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Identity]]


class McpEndpoint:
    """The ASGI app that serves MCP over Streamable HTTP, at any path. Call close() at the end.

    `identify` returns the caller's identity for the headers of a request, or raises Unauthorized. `hosts` and
    `origins` are those of `OriginPolicy`. `build_sdk_server` replaces the function that builds the SDK's
    server.
    """

    def __init__(
        self,
        tool_server: ToolServer,
        *,
        identify: Identify,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        limits: McpLimits = DEFAULT_LIMITS,
        build_sdk_server: BuildSdkServer | None = None,
    ) -> None:
        self.body_limits = DEFAULT_BODY_LIMITS
        self._identify = identify
        self.work = ActiveWork()
        """Where requests and sessions are registered, to end when their key does."""
        self._origin_policy = OriginPolicy(hosts=hosts, origins=origins)
        self._body_limit = limits.body
        self._in_flight = InFlightRequests()
        self._stateless = StatelessCalls(tool_server, in_flight=self._in_flight)
        self._sdk_server = SdkServer(
            build_sdk_server or partial(sdk_server.build_sdk_server, tool_server),
            in_flight=self._in_flight,
            work=self.work,
            limits=limits,
        )

    async def drain(self, seconds: float) -> None:
        """Give the calls in flight up to `seconds` to end, then abort the rest."""
        await self._in_flight.drain(seconds)

    async def close(self) -> None:
        """Abort the calls in flight and end all sessions."""
        await self._in_flight.drain(0)
        await self._sdk_server.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # uvicorn keeps spaces around header values, and the SDK compares them exactly. `last-event-id` is
        # dropped because streams cannot be resumed here: the SDK would send such a client nothing.
        headers = [
            (name, value.strip(b" \t")) for name, value in scope["headers"] if name != b"last-event-id"
        ]
        scope = {**scope, "headers": headers}
        exchange = Exchange(scope, receive, send)
        exchange.response_headers = self._cors_headers(exchange.headers)
        await handle(exchange, partial(self._handle, scope), on_error=send_error)

    async def _handle(self, scope: Scope, exchange: Exchange) -> None:
        self._origin_policy.check(exchange.headers, local_address=exchange.local_address)
        if exchange.method == "OPTIONS":
            await exchange.respond(204, headers={"allow": METHODS})
            return
        exchange.identity = await self._identify(exchange.headers)
        require_scope(exchange.identity, "operations")
        exchange.body_limits = self.body_limits
        door.set("mcp")
        try:
            with KeyValidity(exchange, self.work):
                await self._serve(scope, exchange)
        except KeyEnded as error:
            if not exchange.response_started:
                raise
            # A stream of notifications: MCP has no message that says why it ends.
            comment = b": %s\r\n\r\n" % error.message.encode()
            await exchange.send({"type": "http.response.body", "body": comment})

    async def _serve(self, scope: Scope, exchange: Exchange) -> None:
        if exchange.method != "POST":
            await self._sdk_server.serve(scope, exchange, stateless=False)
            return
        body = await exchange.read_body(self._body_limit)
        size = weigh(body)
        mended = await offload(size, partial(mend_json, body))
        body = mended or body
        request = await offload(size, lambda: parse_tool_call(exchange.headers, body))
        if request is not None:
            await self._stateless.serve(request, exchange)
            return
        try:
            head = await offload(size, partial(read_head, body))
        except DECODE_ERRORS:
            await exchange.respond(400, rpc_error(PARSE_ERROR, NOT_JSON))
            return
        if head.problem is not None:
            await exchange.respond(400, rpc_error(INVALID_REQUEST, head.problem))
            return
        stateless = "mcp-session-id" not in exchange.headers and head.method != "initialize"
        await self._sdk_server.serve(
            scope, exchange, body=body, request_id=head.request_id, stateless=stateless
        )

    def _cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that let a page of an allowed origin read the response."""
        origin = headers.get("origin")
        if origin is None or not self._origin_policy.allows(origin):
            return {}
        cors = {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED_HEADERS,
            "vary": "Origin",
        }
        requested = headers.get("access-control-request-headers", "")
        if requested:
            cors["access-control-allow-methods"] = METHODS
            cors["access-control-allow-headers"] = requested
            cors["access-control-max-age"] = "600"
        return cors


class RpcHead(Struct, frozen=True):
    """The method of a message, its id if it is a request, and why it is invalid, if it is."""

    method: str | None = None
    request_id: str | int | None = None
    problem: str | None = None


def read_head(body: bytes) -> RpcHead:
    """Read the head of a message. Raises one of DECODE_ERRORS if the body is not JSON.

    This rejects what the SDK accepts and cannot answer: NaN and infinities, which no later step can encode,
    and requests with an invalid id, which it treats as notifications.
    """
    message = decode_json(body)
    if isinstance(message, list):
        return RpcHead(problem="batches are not supported: send each message in a request of its own")
    if not isinstance(message, dict):
        return RpcHead(problem="a message is a JSON object")
    method = message.get("method")
    if not isinstance(method, str) or "id" not in message:
        return RpcHead(method=method if isinstance(method, str) else None)
    id = message["id"]
    if isinstance(id, bool) or not isinstance(id, str | int):
        return RpcHead(problem="the id of a request is a string or an integer")
    return RpcHead(method, id)


def rpc_error(code: int, message: str, **fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, **fields}}


async def send_error(exchange: Exchange, error: DragomanError) -> None:
    """Respond with a JSON-RPC error whose data is the hub's own error."""
    if exchange.response_started:
        raise error
    body = rpc_error(INVALID_REQUEST, error.message, data=error.to_json())
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if error.status == 401:
        headers["www-authenticate"] = 'Bearer realm="dragoman"'
    if isinstance(error, Forbidden) and error.scope is not None:
        headers["www-authenticate"] = f'Bearer error="insufficient_scope", scope="{error.scope}"'
    await exchange.respond(error.status, body, headers=headers)
