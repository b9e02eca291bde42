"""Raw servers for transport tests: a script of bytes for one connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

LIMIT = 120.0  # seconds that a test may wait for anything


@dataclass
class Received:
    """A request as it came: its first line, its headers in order, its body."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def __getitem__(self, name: str) -> str:
        return ", ".join(value for key, value in self.headers if key.lower() == name)

    @property
    def names(self) -> list[str]:
        return [name.lower() for name, _ in self.headers]


@dataclass
class Peer:
    """The server's end of one connection; `number` counts the server's connections from 1."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> Received:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        pairs = [line.split(": ", 1) for line in lines]
        return Received(line, [(name, value) for name, value in pairs])

    async def request(self) -> Received:
        received = await self.head()
        received.body = await self.reader.readexactly(int(received["content-length"] or 0))
        return received

    async def send(self, data: bytes) -> None:
        if self.writer.is_closing():  # to write then is a RuntimeError of uvloop
            raise ConnectionResetError("the client has closed the connection")
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Return when the client has closed its end."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


@dataclass
class Server:
    port: int = 0
    connections: int = 0
    closed: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        self.closed += 1
        self._change.set()

    async def wait_closed(self, connections: int, *, within: float = LIMIT) -> None:
        """Return when so many connections have ended, by the client's doing or the script's."""
        async with asyncio.timeout(within):
            while self.closed < connections:
                self._change.clear()
                await self._change.wait()


Answer: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def accepting(answer: Answer, *, limit: int = 65_536) -> AsyncIterator[int]:
    """Run `answer` for each connection to the port that is yielded, and close them all at the end."""
    tasks: set[asyncio.Future[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(answer(reader, writer))
        task.add_done_callback(lambda _: writer.close())
        tasks.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=limit)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed lets its socket go


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run the script for each connection; an assertion that fails in it fails the test."""
    state = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await script(Peer(state.connections, reader, writer))
        finally:
            state.end()
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        task.add_done_callback(lambda _: writer.close())  # also when it was cancelled before it began
        state.tasks.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    state.port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(LIMIT):
            yield state
    finally:
        server.close()
        running = [task for task in state.tasks if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed lets its socket go
    for task in state.tasks - set(running):
        task.result()


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections, and that no other process gets meanwhile: nobody listens there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def ok(body: bytes, *headers: str) -> bytes:
    """A response of a known length."""
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 200 OK\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def answering(*answers: bytes) -> Script:
    """Each request of a connection gets the next answer; after the last one the connection ends."""

    async def script(peer: Peer) -> None:
        for answer in answers:
            await peer.request()
            await peer.send(answer)

    return script


def holding(answer: bytes) -> Script:
    """Answers one request, then waits for the client to go."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.gone()

    return script


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
