"""A reply over HTTP: one JSON message, or a stream of them once there is something to say before the end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.types import Receive, Send

from dragoman.mcp.underway import Underway

PING = b": ping\r\n\r\n"
STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_encoder = msgspec.json.Encoder()


class Reply:
    """An answer that is written as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def add(self, message: dict[str, Any] | None) -> None:
        """A message before the last; without one, a sign of life."""
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM})
        frame = PING if message is None else framed(message)
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def end(self, status: int, message: dict[str, Any]) -> None:
        """The last message; `status` counts when it is the only one."""
        if self._begun:
            await self._send({"type": "http.response.body", "body": framed(message)})
            return
        payload = _encoder.encode(message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": payload})


class Leaving:
    """Watches for the client to leave before it is answered, and then aborts its call."""

    def __init__(self, receive: Receive, call: Underway) -> None:
        self.left = False
        self._receive = receive
        self._call = call
        self._task = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Watch no longer."""
        self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._call.cancel()


def framed(message: dict[str, Any]) -> bytes:
    """A message as a server-sent event."""
    return b"event: message\r\ndata: " + _encoder.encode(message) + b"\r\n\r\n"


def progress(token: str | int, *, count: int, text: str) -> dict[str, Any]:
    """The notification of how far a call is."""
    params = {"progressToken": token, "progress": count, "message": text}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
