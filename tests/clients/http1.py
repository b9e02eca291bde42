"""The HTTP/1.1 of the test servers; it notices when a peer disconnects."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")
READ = 65536
LIMIT = 120.0


class Gone(Exception):
    """The other side closed the connection."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    head: bytes = b""


class Wire:
    """One connection: requests in, answers out, kept alive between them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""

    async def request(self) -> Request | None:
        """The next request; None when the other side is done."""
        while b"\r\n\r\n" not in self._buffer:
            if not await self._fill():
                return None
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, value = line.split(":", 1)
            headers[name.strip().lower()] = value.strip()
        size = int(headers.get("content-length", 0))
        while len(self._buffer) < size:
            if not await self._fill():
                return None
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        method, path, _ = first.split(" ", 2)
        return Request(method, path, headers, body, head)

    async def left(self) -> None:
        """Return when the other side has closed; what it sends meanwhile is kept for later."""
        try:
            while await self._fill():
                pass
        except ConnectionError:
            pass

    async def send(
        self, status: int, body: Any, headers: dict[str, str] | None = None, kind: str = ""
    ) -> None:
        """A whole answer: bytes and text as they are, anything else as JSON."""
        kind = kind or ("text/html" if isinstance(body, str) else "application/json")
        if isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, bytes):
            body = json.dumps(body).encode()
        all_headers = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
        await self.write(head(status, all_headers) + body)

    async def begin(self) -> None:
        """The head of an event stream."""
        kind = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        await self.write(head(200, kind))

    async def event(self, data: str) -> None:
        """One event of the stream."""
        payload = f"data: {data}\n\n".encode()
        await self.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    async def end(self) -> None:
        """The proper end of a stream."""
        await self.write(b"0\r\n\r\n")

    async def reset(self) -> None:
        """Cut the connection as a crash would."""
        self.abort()
        raise Gone

    async def close(self) -> None:
        """Send what is written and hang up."""
        self._writer.close()
        await self._writer.wait_closed()
        raise Gone

    async def write(self, data: bytes) -> None:
        if self._writer.transport.is_closing():
            raise Gone
        self._writer.write(data)
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _fill(self) -> bool:
        data = await self._reader.read(READ)
        self._buffer += data
        return bool(data)


class Server:
    """Serves on a thread of its own until closed; `respond(wire, request)` answers each request."""

    def __init__(self, respond: Callable[[Wire, Request], Awaitable[None]], port: int = 0) -> None:
        self._respond = respond
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Stop serving and cut what is open."""
        self._run(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT)

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader, writer)
        try:
            while request := await wire.request():
                await self._respond(wire, request)
        except (Gone, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            wire.abort()


def head(status: int, headers: dict[str, str]) -> bytes:
    """The status line and the headers."""
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
