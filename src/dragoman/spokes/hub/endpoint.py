"""The WebSocket endpoint `/api/spoke`, with its authentication."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from dragoman.active_work import ActiveWork
from dragoman.errors import DragomanError, Forbidden, Unauthorized, Unavailable, WireError
from dragoman.http.exchange import read_headers
from dragoman.identity import Identity
from dragoman.operations.access import require_scope
from dragoman.operations.outcome import to_failure
from dragoman.spokes.hub.connection import Socket, SocketClosed, send_and_close
from dragoman.spokes.hub.server import SpokeServer
from dragoman.spokes.protocol import (
    HELLO_BYTES,
    HelloFrame,
    RefusedFrame,
    SpokeFailure,
    check_version,
    close_code,
    decode_from_spoke,
)

log = logging.getLogger(__name__)
Headers = Mapping[str, str]


class CheckHost(Protocol):
    """Raises an error when `Host` is not a name of this hub; `at` is the address of the request."""

    def __call__(self, headers: Headers, *, at: str | None) -> None: ...


Identify = Callable[[Headers], Awaitable[Identity]]


class AsgiSocket:
    """A WebSocket of an ASGI server."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def accept(self) -> None:
        """Accept the connection. Raises SocketClosed if it is closed already."""
        await self._receive()
        await self._send_message({"type": "websocket.accept"})

    async def receive(self) -> str:
        """Return the next message. Raises WireError if it is not text."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise SocketClosed(message.get("code"))
        text = message.get("text")
        if not isinstance(text, str):
            raise WireError("the spoke protocol is JSON in text messages, not in binary ones")
        return text

    async def send(self, text: str) -> None:
        """Send a message; waits while the other side does not read."""
        await self._send_message({"type": "websocket.send", "text": text})

    async def close(self, code: int, reason: str) -> None:
        """Close the WebSocket."""
        await self._send_message({"type": "websocket.close", "code": code, "reason": reason})

    async def refuse(self, status: int, error: DragomanError) -> None:
        """Respond to the upgrade request with an HTTP error."""
        await self._receive()
        headers = [(b"content-type", b"application/json")]
        body = msgspec.json.encode({"error": error.to_json()})
        await self._send_message(
            {"type": "websocket.http.response.start", "status": status, "headers": headers}
        )
        await self._send_message({"type": "websocket.http.response.body", "body": body})

    async def _send_message(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:  # how servers say that it is closed
            raise SocketClosed from error


class SpokeEndpoint:
    """The ASGI app that accepts WebSockets of spokes."""

    def __init__(
        self, server: SpokeServer, *, identify: Identify, check_host: CheckHost | None = None
    ) -> None:
        """`identify` returns the identity for headers, or raises Unauthorized or Unavailable.

        `check_host` raises an error when a request was sent to a name that is not the hub's.
        """
        self._check_host = check_host
        self.work = ActiveWork()
        """Where connections are registered, to end when their key does."""
        self._server = server
        self._identify = identify
        self._unauthenticated = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = AsgiSocket(receive, send)
        headers = read_headers(scope)
        try:
            if self._check_host is not None:
                self._check_host(headers, at=(scope.get("server") or (None,))[0])
            self._check_origin(headers)
            identity = await self._authenticate(headers) if has_credentials(headers) else None
        except DragomanError as error:
            await self._reject(socket, error)
            return
        try:
            await socket.accept()
            await self._serve(socket, headers, identity=identity)
        except SocketClosed:
            return
        except Exception:
            log.exception("the connection of a spoke failed")

    def _check_origin(self, headers: Headers) -> None:
        """Refuse pages of other sites: browsers let them open WebSockets, and send an Origin."""
        origin = headers.get("origin")
        if origin is not None and origin not in self._server.settings.origins:
            raise Forbidden(
                f"pages of {origin[:200]!r} may not connect as spokes",
                hint="`cors.origins` of the hub's configuration names those that may",
            )
        if self._unauthenticated >= self._server.settings.max_unauthenticated and not has_credentials(
            headers
        ):
            raise Unavailable("too many unauthenticated connections; try again later")

    async def _authenticate(self, headers: Headers) -> Identity:
        identity = await self._identify(headers)
        require_scope(identity, "spoke", "admin")
        return identity

    async def _serve(self, socket: Socket, headers: Headers, *, identity: Identity | None) -> None:
        try:
            hello = await self._receive_hello(socket, 0 if identity else 1)
            by_header = identity is not None or hello.token is None
            signed = headers if by_header else {"authorization": f"Bearer {hello.token}"}
            caller = identity or await self._authenticate(signed)
        except DragomanError as error:
            await send_refusal(socket, error)
            return
        checking = asyncio.create_task(self._recheck_key(socket, signed))
        try:
            with self.work.track(caller, lambda error: self._server.disconnect(socket, error.message)):
                await self._server.serve(socket, hello, identity=caller)
        except DragomanError as error:
            await send_refusal(socket, error)
        finally:
            checking.cancel()

    async def _receive_hello(self, socket: Socket, unauthenticated: int) -> HelloFrame:
        """Return the first message; `unauthenticated` is 1 while the spoke is not authenticated."""
        self._unauthenticated += unauthenticated
        try:
            async with asyncio.timeout(self._server.settings.hello_timeout):
                text = await socket.receive()
        except TimeoutError:
            raise WireError("the spoke did not send its hello in time") from None
        finally:
            self._unauthenticated -= unauthenticated
        if len(text) > HELLO_BYTES:
            raise WireError(f"a hello is at most {HELLO_BYTES} bytes")
        check_version(text)
        hello = decode_from_spoke(text)
        if not isinstance(hello, HelloFrame):
            raise WireError("the first message of a spoke must be its hello")
        return hello

    async def _recheck_key(self, socket: Socket, headers: Headers) -> None:
        """Disconnect the spoke when its key may no longer connect, also for another reason than its end."""
        while True:
            await asyncio.sleep(self._server.settings.heartbeat)
            try:
                await self._authenticate(headers)
            except (Unauthorized, Forbidden) as error:
                self._server.disconnect(socket, error.message)
                return
            except DragomanError as error:
                log.debug("the key of a spoke cannot be checked now: %s", error.message)

    async def _reject(self, socket: AsgiSocket, error: DragomanError) -> None:
        try:
            await socket.refuse(error.status, error)
        except SocketClosed:
            return


def has_credentials(headers: Headers) -> bool:
    """Return whether the headers hold a key."""
    return "authorization" in headers or "x-api-key" in headers


async def send_refusal(socket: Socket, error: DragomanError) -> None:
    """Send the reason and close."""
    log.info("a spoke was refused: %s", error.message)
    failure = SpokeFailure.from_call_failure(to_failure(error))
    await send_and_close(
        socket, RefusedFrame(error=failure), code=close_code(error.code), reason=error.message
    )
