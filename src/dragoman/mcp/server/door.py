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
from dragoman.mcp.server import stateless
from dragoman.mcp.server.engine import Build, Engine, load
from dragoman.mcp.server.origins import Origins
from dragoman.mcp.server.server import Served
from dragoman.operations.identity import Identity

log = logging.getLogger(__name__)

BODY = 4_000_000
INVALID_REQUEST = -32600
METHODS = "POST, GET, DELETE, OPTIONS"
EXPOSED = "mcp-session-id, mcp-protocol-version, www-authenticate"
Identify: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Identity]]
Fields: TypeAlias = dict[str, str]


class Left(Exception):
    """The client left before it had sent its request."""


class McpDoor:
    """Serves MCP over Streamable HTTP at whatever address it is mounted; close() it with the hub.

    `identify` tells from the headers who asks, or raises Unauthorized. `hosts` and `origins` are those of
    `Origins`, `body` is the most bytes of a request. `build` takes the place of what makes the SDK's server.
    """

    def __init__(
        self,
        server: Served,
        *,
        identify: Identify,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        body: int = BODY,
        build: Build | None = None,
    ) -> None:
        self._identify = identify
        self._origins = Origins(hosts=hosts, origins=origins)
        self._body = body
        self._stateless = stateless.Stateless(server)
        self._engine = Engine(build or partial(load, server), body=body)

    async def drain(self, seconds: float) -> None:
        """Give the calls under way so many seconds to end by themselves."""
        await asyncio.gather(self._stateless.drain(seconds), self._engine.drain(seconds))

    async def close(self) -> None:
        """End all sessions, and abort what is under way."""
        await self._stateless.close()
        await self._engine.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        headers = read_headers(scope)
        begun = Begun(send, self._shared(headers))
        try:
            await self._answer(scope, receive, begun, headers=headers)
        except Left:
            log.debug("the client left early")
        except DragomanError as error:
            await refuse(begun, error)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            await refuse(begun, DragomanError("an internal error of the hub; its log says more"))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, *, headers: Fields) -> None:
        address = scope.get("server")
        self._origins.check(headers, at=address[0] if address else None)
        if scope["method"] == "OPTIONS":
            await answer(send, 204, headers={"allow": METHODS})
            return
        identity = await self._identify(headers)
        if not identity.may("operations"):
            raise Forbidden(
                "this needs a key with the scope 'operations'",
                hint=f"`dragoman keys change {identity.key_id} --scope operations` gives it",
            )
        if scope["method"] != "POST":
            await self._engine.serve(scope, receive, send, identity=identity, single=False)
            return
        await self._post(scope, receive, send, headers=headers, identity=identity)

    async def _post(
        self, scope: Scope, receive: Receive, send: Send, *, headers: Fields, identity: Identity
    ) -> None:
        body = await read_body(receive, headers, limit=self._body)
        request = stateless.read(headers, body)
        if request is not None:
            await self._stateless.serve(request, receive=receive, send=send, identity=identity)
            return
        single = "mcp-session-id" not in headers and b'"initialize"' not in body
        await self._engine.serve(scope, replayed(body, receive), send, identity=identity, single=single)

    def _shared(self, headers: Fields) -> Fields:
        """The headers of every answer: those that let a page read it, where its origin is admitted."""
        origin = headers.get("origin")
        if origin is None or not self._origins.admits(origin):
            return {}
        asked = headers.get("access-control-request-headers", "")
        granted = {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED,
            "vary": "Origin",
        }
        preflight = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": asked,
            "access-control-max-age": "600",
        }
        return {**granted, **preflight} if asked else granted


class Begun:
    """Sends, with further headers; knows whether the answer has begun."""

    def __init__(self, send: Send, shared: Fields) -> None:
        self._send = send
        self._shared = [(name.encode(), value.encode("latin-1")) for name, value in shared.items()]
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message = {**message, "headers": [*message.get("headers", ()), *self._shared]}
        await self._send(message)


async def answer(send: Send, status: int, *, headers: Fields, body: bytes = b"") -> None:
    """A whole answer."""
    fields = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Begun, error: DragomanError) -> None:
    """Answer with an error: as JSON-RPC has it, with the hub's own error inside."""
    if send.begun:
        raise error
    told = {"code": INVALID_REQUEST, "message": error.message, "data": error.to_json()}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": told})
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if error.status == 401:
        headers["www-authenticate"] = 'Bearer realm="dragoman"'
    if isinstance(error, Forbidden) and "scope" in error.message:
        headers["www-authenticate"] = 'Bearer error="insufficient_scope", scope="operations"'
    await answer(send, error.status, headers=headers, body=body)


def read_headers(scope: Scope) -> Fields:
    """The headers by small-letter name; one that is there twice has both values, with a comma."""
    fields: Fields = {}
    for name, value in scope["headers"]:
        key, said = name.decode("latin-1"), value.decode("latin-1")
        fields[key] = f"{fields[key]}, {said}" if key in fields else said
    return fields


async def read_body(receive: Receive, headers: Fields, *, limit: int) -> bytes:
    """The whole body. TooLarge, Left."""
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"the body has {declared} bytes, {limit} are allowed")
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Left
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise TooLarge(f"the body is over {limit} bytes")
        if not message.get("more_body"):
            return b"".join(pieces)


def replayed(body: bytes, receive: Receive) -> Receive:
    """What gives the body that was read, and then what comes after it."""
    left: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again
