"""The door `/mcp`: who may come in, and who answers; an ASGI app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from starlette.types import Message, Receive, Scope, Send

from dragoman.errors import DragomanError, Forbidden, TooLarge
from dragoman.http.origin_policy import OriginPolicy
from dragoman.identity import Identity
from dragoman.mcp.server import sdk_server, stateless
from dragoman.mcp.server.sdk_server import BuildSdkServer, SdkServer
from dragoman.mcp.server.server import ToolServer
from dragoman.operations.access import require_scope

log = logging.getLogger(__name__)

BODY_LIMIT = 4_000_000
INVALID_REQUEST = -32600
METHODS = "POST, GET, DELETE, OPTIONS"
EXPOSED_HEADERS = "mcp-session-id, mcp-protocol-version, www-authenticate"
Identify: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Identity]]
HeaderFields: TypeAlias = dict[str, str]


class ClientLeft(Exception):
    """The client left before it had sent its request."""


class McpEndpoint:
    """Serves MCP over Streamable HTTP at whatever address it is mounted; close() it with the hub.

    `identify` tells from the headers who asks, or raises Unauthorized. `hosts` and `origins` are those of
    `OriginPolicy`, `body` is the most bytes of a request. `build` takes the place of what makes the SDK's
    server.
    """

    def __init__(
        self,
        tool_server: ToolServer,
        *,
        identify: Identify,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        body_limit: int = BODY_LIMIT,
        build_sdk_server: BuildSdkServer | None = None,
    ) -> None:
        self._identify = identify
        self._origin_policy = OriginPolicy(hosts=hosts, origins=origins)
        self._body_limit = body_limit
        self._stateless = stateless.StatelessCalls(tool_server)
        self._sdk_server = SdkServer(
            build_sdk_server or partial(sdk_server.build_sdk_server, tool_server), body_limit=body_limit
        )

    async def drain(self, seconds: float) -> None:
        """Give the calls under way so many seconds to end by themselves."""
        await asyncio.gather(self._stateless.drain(seconds), self._sdk_server.drain(seconds))

    async def close(self) -> None:
        """End all sessions, and abort what is under way."""
        await self._stateless.close()
        await self._sdk_server.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        headers = read_headers(scope)
        begun = HeaderSender(send, self._cors_headers(headers))
        try:
            await self._handle(scope, receive, begun, headers=headers)
        except ClientLeft:
            log.debug("the client left early")
        except DragomanError as error:
            await send_error(begun, error)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            await send_error(begun, DragomanError("an internal error of the hub; its log says more"))

    async def _handle(self, scope: Scope, receive: Receive, send: Send, *, headers: HeaderFields) -> None:
        address = scope.get("server")
        self._origin_policy.check(headers, local_address=address[0] if address else None)
        if scope["method"] == "OPTIONS":
            await send_response(send, 204, headers={"allow": METHODS})
            return
        identity = await self._identify(headers)
        require_scope(identity, "operations")
        if scope["method"] != "POST":
            await self._sdk_server.serve(scope, receive, send, identity=identity, stateless=False)
            return
        await self._handle_post(scope, receive, send, headers=headers, identity=identity)

    async def _handle_post(
        self, scope: Scope, receive: Receive, send: Send, *, headers: HeaderFields, identity: Identity
    ) -> None:
        body = await read_body(receive, headers, limit=self._body_limit)
        request = stateless.parse_tool_call(headers, body)
        if request is not None:
            await self._stateless.serve(request, receive=receive, send=send, identity=identity)
            return
        single = "mcp-session-id" not in headers and b'"initialize"' not in body
        await self._sdk_server.serve(
            scope, replay_body(body, receive), send, identity=identity, stateless=single
        )

    def _cors_headers(self, headers: HeaderFields) -> HeaderFields:
        """The headers of every answer: those that let a page read it, where its origin is admitted."""
        origin = headers.get("origin")
        if origin is None or not self._origin_policy.allows(origin):
            return {}
        asked = headers.get("access-control-request-headers", "")
        granted = {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED_HEADERS,
            "vary": "Origin",
        }
        preflight = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": asked,
            "access-control-max-age": "600",
        }
        return {**granted, **preflight} if asked else granted


class HeaderSender:
    """Sends, with further headers; knows whether the answer has begun."""

    def __init__(self, send: Send, headers: HeaderFields) -> None:
        self._send = send
        self._headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        self.response_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.response_started = True
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        await self._send(message)


async def send_response(send: Send, status: int, *, headers: HeaderFields, body: bytes = b"") -> None:
    """A whole answer."""
    fields = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: HeaderSender, error: DragomanError) -> None:
    """Answer with an error: as JSON-RPC has it, with the hub's own error inside."""
    if send.response_started:
        raise error
    told = {"code": INVALID_REQUEST, "message": error.message, "data": error.to_json()}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": told})
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if error.status == 401:
        headers["www-authenticate"] = 'Bearer realm="dragoman"'
    if isinstance(error, Forbidden) and error.scope is not None:
        headers["www-authenticate"] = f'Bearer error="insufficient_scope", scope="{error.scope}"'
    await send_response(send, error.status, headers=headers, body=body)


def read_headers(scope: Scope) -> HeaderFields:
    """The headers by small-letter name; one that is there twice has both values, with a comma."""
    fields: HeaderFields = {}
    for name, value in scope["headers"]:
        key, said = name.decode("latin-1"), value.decode("latin-1")
        fields[key] = f"{fields[key]}, {said}" if key in fields else said
    return fields


async def read_body(receive: Receive, headers: HeaderFields, *, limit: int) -> bytes:
    """The whole body. TooLarge, Left."""
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"the body has {declared} bytes, {limit} are allowed")
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise TooLarge(f"the body is over {limit} bytes")
        if not message.get("more_body"):
            return b"".join(pieces)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """What gives the body that was read, and then what comes after it."""
    left: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again
