"""The spokes' door: the WebSocket at `/api/spoke`, and who may come in by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError, Forbidden, Unauthorized, Unavailable, WireError
from dragoman.operations.identity import Identity
from dragoman.operations.outcome import failure_of
from dragoman.spokes.hub.line import Gone, Socket, say_last
from dragoman.spokes.hub.switchboard import Switchboard
from dragoman.spokes.protocol import (
    HELLO_BYTES,
    Failure,
    Hello,
    Refused,
    check_version,
    close_code,
    from_spoke,
)

log = logging.getLogger(__name__)
Headers = Mapping[str, str]
Identify = Callable[[Headers], Awaitable[Identity]]


class AsgiSocket:
    """A WebSocket of an ASGI server."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def accept(self) -> None:
        """Take the connection. Gone when there is none any more."""
        await self._receive()
        await self._tell({"type": "websocket.accept"})

    async def receive(self) -> str:
        """The next message. WireError when it is no text."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise Gone
        text = message.get("text")
        if not isinstance(text, str):
            raise WireError("the spoke protocol is JSON in text messages, not in binary ones")
        return text

    async def send(self, text: str) -> None:
        """Send a message; waits while the other side does not read."""
        await self._tell({"type": "websocket.send", "text": text})

    async def close(self, code: int, reason: str) -> None:
        """Close it."""
        await self._tell({"type": "websocket.close", "code": code, "reason": reason})

    async def refuse(self, status: int, error: DragomanError) -> None:
        """Answer the request for a WebSocket with an HTTP error."""
        await self._receive()
        headers = [(b"content-type", b"application/json")]
        body = msgspec.json.encode({"error": error.to_json()})
        await self._tell({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await self._tell({"type": "websocket.http.response.body", "body": body})

    async def _tell(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:  # how servers say that it is closed
            raise Gone from error


class SpokeDoor:
    """An ASGI app that takes WebSockets of spokes."""

    def __init__(self, switchboard: Switchboard, *, identify: Identify) -> None:
        """`identify` gives the identity behind headers, or raises Unauthorized or Unavailable."""
        self._switchboard = switchboard
        self._identify = identify
        self._unknown = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = AsgiSocket(receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(headers)
            identity = await self._known(headers) if is_signed(headers) else None
        except DragomanError as error:
            await self._turn_away(socket, error)
            return
        try:
            await socket.accept()
            await self._serve(socket, headers, identity=identity)
        except Gone:
            return
        except Exception:
            log.exception("the connection of a spoke failed")

    def _check(self, headers: Headers) -> None:
        """Pages of other sites can open WebSockets too; a browser says so."""
        origin = headers.get("origin")
        if origin is not None and origin not in self._switchboard.settings.origins:
            raise Forbidden(
                f"pages of {origin[:200]!r} may not connect as spokes",
                hint="`cors.origins` of the hub's configuration names those that may",
            )
        if self._unknown >= self._switchboard.settings.unknown and not is_signed(headers):
            raise Unavailable("too many connections have not said who they are; try again later")

    async def _known(self, headers: Headers) -> Identity:
        identity = await self._identify(headers)
        if not identity.may("operations"):
            raise Forbidden("this key is not for operations", hint="a spoke needs the scope `operations`")
        return identity

    async def _serve(self, socket: Socket, headers: Headers, *, identity: Identity | None) -> None:
        try:
            hello = await self._hello(socket, 0 if identity else 1)
            by_header = identity is not None or hello.token is None
            signed = headers if by_header else {"authorization": f"Bearer {hello.token}"}
            known = identity or await self._known(signed)
        except DragomanError as error:
            await refuse(socket, error)
            return
        checking = asyncio.create_task(self._recheck(known, signed))
        try:
            await self._switchboard.attend(socket, hello, identity=known)
        except DragomanError as error:
            await refuse(socket, error)
        finally:
            checking.cancel()

    async def _hello(self, socket: Socket, unknown: int) -> Hello:
        """The first message; `unknown` is 1 while nobody knows who it is."""
        self._unknown += unknown
        try:
            async with asyncio.timeout(self._switchboard.settings.hello):
                text = await socket.receive()
        except TimeoutError:
            raise WireError("the spoke did not say hello in time") from None
        finally:
            self._unknown -= unknown
        if len(text) > HELLO_BYTES:
            raise WireError(f"a hello is at most {HELLO_BYTES} bytes")
        check_version(text)
        hello = from_spoke(text)
        if not isinstance(hello, Hello):
            raise WireError("the first message of a spoke is its hello")
        return hello

    async def _recheck(self, identity: Identity, headers: Headers) -> None:
        """Let go of a spoke whose key is revoked, or has expired."""
        while True:
            await asyncio.sleep(self._switchboard.settings.heartbeat)
            try:
                await self._known(headers)
            except (Unauthorized, Forbidden) as error:
                self._switchboard.dismiss(identity.key_id, error.message)
                return
            except DragomanError as error:
                log.debug("the key of a spoke cannot be checked now: %s", error.message)

    async def _turn_away(self, socket: AsgiSocket, error: DragomanError) -> None:
        try:
            await socket.refuse(error.status, error)
        except Gone:
            return


def is_signed(headers: Headers) -> bool:
    """Whether they hold a key."""
    return "authorization" in headers or "x-api-key" in headers


async def refuse(socket: Socket, error: DragomanError) -> None:
    """Say why, and close."""
    log.info("a spoke was refused: %s", error.message)
    failure = Failure.of(failure_of(error))
    await say_last(socket, Refused(error=failure), code=close_code(error.code), reason=error.message)
