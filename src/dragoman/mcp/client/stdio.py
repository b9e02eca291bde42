"""Stdio: messages to and from a child process, one JSON a line. Junk between them is dropped and reported."""

from __future__ import annotations

import asyncio
import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from dragoman.mcp.client.blot import Blot
from dragoman.mcp.client.child import Child
from dragoman.mcp.client.frames import Unreadable, failed, read_line
from dragoman.operations.cleaning import clean

log = logging.getLogger(__name__)

PIECE = 262_144
SHOWN = 120
TOLD = 20

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


class Line:
    """The line that is being read: its bytes up to the limit, and whether there were more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self.over = False

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._pieces = [self._pieces[0] if self._pieces else piece[:PIECE], piece[-PIECE:]]
            self.over = True
        elif piece:
            self._pieces.append(piece)

    def take(self) -> bytes:
        """The bytes; of a line that is over the limit only its beginning and its end."""
        whole = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return whole


@asynccontextmanager
async def lines_of(child: Child, *, limit: int, blot: Blot) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The streams of a child's messages; the child is stopped in the end. Lines over `limit` are refused."""
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with arrived, incoming, outgoing, leaving, asyncio.TaskGroup() as group:
            reading = group.create_task(read(child, arrived, limit=limit, blot=blot))
            writing = group.create_task(write(child.writer, leaving))
            try:
                yield incoming, outgoing
            finally:
                reading.cancel()
                writing.cancel()
    finally:
        await child.stop()


async def read(
    child: Child,
    arrived: MemoryObjectSendStream[SessionMessage | Exception],
    *,
    limit: int,
    blot: Blot,
) -> None:
    complaints = Complaints(child.name, blot)
    async with arrived:
        async for line in lines(child.reader, limit=limit):
            found = messages_in(line, limit)
            for message in [each for each in found if isinstance(each, SessionMessage)]:
                await arrived.send(message)
            for junk in [each for each in found if isinstance(each, str)]:
                complaints.add(junk)


class Complaints:
    """Logs what is no message: the first lines, for a server that chats on its output would fill the log."""

    def __init__(self, name: str, blot: Blot) -> None:
        self._name = name
        self._blot = blot
        self._count = 0

    def add(self, junk: str) -> None:
        self._count += 1
        if self._count <= TOLD:
            log.warning(
                "MCP server %s wrote what is no message to its output: %s", self._name, self._blot(junk)
            )


async def lines(reader: StreamReader, *, limit: int) -> AsyncIterator[Line]:
    line = Line(limit)
    while piece := await reader.read(PIECE):
        *ended, rest = piece.split(b"\n")
        for part in ended:
            line.add(part)
            yield line
            line = Line(limit)
        line.add(rest)


def messages_in(line: Line, limit: int) -> list[SessionMessage | str]:
    """What a line says: messages, and what of it is none."""
    data = line.take()
    if line.over:
        reason = f"its answer has more than {limit:,} bytes, and that is the most that is taken"
        return [failed(data, reason) or f"a line of more than {limit:,} bytes"]
    if not data.strip():
        return []
    shown = clean(data[:SHOWN].decode(errors="replace"), SHOWN)
    return [f"{shown!r}: {each.reason}" if isinstance(each, Unreadable) else each for each in read_line(data)]


async def write(writer: StreamWriter, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Write each message as a line. Ends when the process no longer reads."""
    async with leaving:
        try:
            async for message in leaving:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                await writer.drain()
        except (ConnectionError, RuntimeError):
            return
