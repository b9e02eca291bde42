"""A client of an ASGI app in this process: it sends bodies in pieces, as a server passes them on.

It also measures how long the event loop is held meanwhile (`tests/loop_lag.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message

from tests.loop_lag import LoopWatch

PIECE = 256_000


class AsgiClient:
    """Sends bodies to an app in pieces, and measures how long the loop does nothing else meanwhile."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.lag = 0.0

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body of the response; `lag` is the longest turn of the loop in seconds."""
        return await self.request("POST", path, body)

    async def get(self, path: str) -> tuple[int, bytes]:
        """As `post`."""
        return await self.request("GET", path, b"")

    async def request(
        self, method: str, path: str, body: bytes, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """As `post`, with any method and further headers."""
        pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)] or [b""]
        sent: list[Message] = []
        answered = asyncio.Event()

        async def receive() -> Message:
            await asyncio.sleep(0)
            if pieces:
                return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        accept = "application/json, text/event-stream"
        defaults = {"host": "127.0.0.1", "content-type": "application/json", "accept": accept}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [
                (name.encode(), value.encode()) for name, value in (defaults | dict(headers or {})).items()
            ],
            "server": ("127.0.0.1", 80),
        }
        watch = LoopWatch()
        try:
            async with watch:
                await self._app(scope, receive, send)
        finally:
            answered.set()
            self.lag = watch.lag
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])
