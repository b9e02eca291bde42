"""Serves the chat page with the hub behind it at /api; can drop a connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from tests.clients.http1 import READ, Request, Server, Wire

KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript"}


class Pages:
    """One page and one hub on one origin."""

    def __init__(self, folder: Path, hub: str) -> None:
        self._folder = folder
        self._hub = urlsplit(hub)
        self._cut: int | None = None
        self._server = Server(self._respond)
        self.url = self._server.url

    def lose_after(self, frames: int) -> None:
        """Lose the connection of the next chat turn when so many frames have passed."""
        self._cut = frames

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    async def _respond(self, wire: Wire, request: Request) -> None:
        path = request.path.partition("?")[0]
        if path.startswith("/api/"):
            await self._forward(wire, request)
            return
        file = self._folder / (path.strip("/") or "index.html")
        if file.parent != self._folder or not file.is_file():
            await wire.send(404, "no such page")
            return
        await wire.send(200, file.read_bytes(), kind=KINDS[file.suffix])

    async def _forward(self, wire: Wire, request: Request) -> None:
        """Relay one request; the connection ends with it, on both sides."""
        assert self._hub.hostname is not None
        reader, writer = await asyncio.open_connection(self._hub.hostname, self._hub.port)
        lines = [line for line in request.head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        writer.write(b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + request.body)
        pump = asyncio.ensure_future(self._pump(reader, wire, self._take_cut(request)))
        watch = asyncio.ensure_future(wire.left())
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.cancel()
            watch.cancel()
            await asyncio.gather(pump, watch, return_exceptions=True)
            writer.transport.abort()
        await wire.close()

    def _take_cut(self, request: Request) -> int | None:
        if request.method != "POST" or request.path != "/api/chat":
            return None
        cut, self._cut = self._cut, None
        return cut

    async def _pump(self, reader: asyncio.StreamReader, wire: Wire, cut: int | None) -> None:
        passed = 0
        while data := await reader.read(READ):
            await wire.write(data)
            passed += data.count(b"data:")
            if cut is not None and passed >= cut:
                return
