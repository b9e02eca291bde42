"""WebSockets of an ASGI server: text messages, refusals, and keys of clients that cannot set headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError, WireError
from dragoman.http.asgi_exchange import read_headers

SUBPROTOCOL = "dragoman"
KEY_PREFIX = "dragoman.key."
"""Browsers cannot set headers of a WebSocket: a page offers `dragoman` and its key as subprotocols."""


class SocketClosed(Exception):
    """The WebSocket is closed. `code` is the close code of the other side, if it is known."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(code)
        self.code = code


class Socket(Protocol):
    """A WebSocket; receive() and send() raise SocketClosed when it is closed."""

    async def receive(self) -> str: ...

    async def send(self, text: str) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class AsgiSocket:
    """A WebSocket of an ASGI server."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = read_socket_headers(scope)
        """Headers by lower-case name, with the key of a page as `authorization`."""
        self._subprotocol = SUBPROTOCOL if SUBPROTOCOL in offered_protocols(scope) else None
        self._receive = receive
        self._send = send

    @property
    def has_credentials(self) -> bool:
        """Whether the headers hold a key."""
        return "authorization" in self.headers or "x-api-key" in self.headers

    async def accept(self) -> None:
        """Accept the connection. Raises SocketClosed if it is closed already."""
        await self._receive()
        await self._send_message({"type": "websocket.accept", "subprotocol": self._subprotocol})

    async def receive(self) -> str:
        """Return the next message. Raises WireError if it is not text."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise SocketClosed(message.get("code"))
        text = message.get("text")
        if not isinstance(text, str):
            raise WireError("messages are JSON in text messages, not in binary ones")
        return text

    async def send(self, text: str) -> None:
        """Send a message; waits while the other side does not read."""
        await self._send_message({"type": "websocket.send", "text": text})

    async def close(self, code: int, reason: str) -> None:
        """Close the WebSocket."""
        await self._send_message({"type": "websocket.close", "code": code, "reason": reason})

    async def refuse(self, error: DragomanError) -> None:
        """Respond to the upgrade request with an HTTP error. Raises SocketClosed."""
        await self._receive()
        headers = [(b"content-type", b"application/json")]
        body = msgspec.json.encode({"error": error.to_json()})
        await self._send_message(
            {"type": "websocket.http.response.start", "status": error.status, "headers": headers}
        )
        await self._send_message({"type": "websocket.http.response.body", "body": body})

    async def _send_message(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except (OSError, RuntimeError) as error:  # servers raise these for a closed socket
            raise SocketClosed from error


def offered_protocols(scope: Scope) -> Sequence[str]:
    """Return the subprotocols that the client offers."""
    return [name.strip() for name in scope.get("subprotocols", ())]


def read_socket_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of an upgrade request, with a key among the subprotocols as `authorization`."""
    headers = read_headers(scope)
    for name in offered_protocols(scope):
        if name.startswith(KEY_PREFIX):
            headers.setdefault("authorization", f"Bearer {name.removeprefix(KEY_PREFIX)}")
    return headers
