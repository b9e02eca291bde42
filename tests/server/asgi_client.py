"""A client of an ASGI app in this process: it sends bodies in pieces, as a server passes them on.

It also measures how long the event loop is held meanwhile (`tests/loop_lag.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message

from tests.loop_lag import LoopWatch

PIECE = 256_000
ENDS = tuple(f'"type":"{kind}"' for kind in ("response.completed", "response.failed", "error", "done"))


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
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        query: bytes = b"",
    ) -> tuple[int, bytes]:
        """As `post`, with any method, further headers and a query."""
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
        defaults = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "accept": accept,
            "a2a-version": "1.0",
        }
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
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

    async def ask_socket(self, path: str, text: str) -> str:
        """Send a message on a WebSocket; return the first of the answers that ends a request, or the last."""
        inbox: asyncio.Queue[Message] = asyncio.Queue()
        outbox: asyncio.Queue[Message] = asyncio.Queue()
        scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")],
            "server": ("127.0.0.1", 80),
            "subprotocols": [],
        }
        inbox.put_nowait({"type": "websocket.connect"})
        inbox.put_nowait({"type": "websocket.receive", "text": text})
        serving = asyncio.ensure_future(self._app(scope, inbox.get, outbox.put))
        try:
            while True:
                message = await outbox.get()
                answer: str = message.get("text", "")
                if message["type"] == "websocket.close" or any(end in answer[:200] for end in ENDS):
                    return answer
        finally:
            inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
            await serving
