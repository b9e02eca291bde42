"""A client of an ASGI app in this process: it sends bodies in pieces, as a server passes them on.

It also measures how long the event loop is held meanwhile: by a callback, or by a thread in a C function.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from starlette.types import ASGIApp, Message

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

    async def request(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """As `post`, with any method."""
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

        headers = {"host": "127.0.0.1", "content-type": "application/json"}
        headers["accept"] = "application/json, text/event-stream"
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "server": ("127.0.0.1", 80),
        }
        self.lag = 0.0
        watching = asyncio.ensure_future(self._watch())
        await asyncio.sleep(0)
        try:
            await self._app(scope, receive, send)
        finally:
            answered.set()
            await asyncio.sleep(0.002)
            watching.cancel()
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])

    async def _watch(self) -> None:
        """Note the longest time between two turns, at most 1 ms of which are meant.

        It is the CPU time of the process, for a thread may hold the interpreter. Threads also run while the
        loop waits for a processor; that is what the time on the clock without that wait leaves out.
        """
        used, passed = time.process_time(), time.perf_counter() - waited_for_processor()
        while True:
            await asyncio.sleep(0.001)
            now_used, now_passed = time.process_time(), time.perf_counter() - waited_for_processor()
            self.lag = max(self.lag, min(now_used - used, now_passed - passed))
            used, passed = now_used, now_passed


def waited_for_processor() -> float:
    """Return the seconds that this thread was ready to run and did not; 0 where Linux does not say."""
    try:
        words = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text("ascii").split()
    except OSError:
        return 0.0
    return int(words[1]) / 1e9
