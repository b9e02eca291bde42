"""The stdio transport: JSON-RPC messages to and from a child process, one a line. Other lines are dropped and
logged.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from dragoman.mcp.client.jsonrpc import UnreadableMessage, error_for_unreadable, parse_messages
from dragoman.mcp.client.process import McpServerProcess
from dragoman.operations.sanitize import sanitize_text
from dragoman.redaction import Redactor

log = logging.getLogger(__name__)

CHUNK_BYTES = 262_144
PREVIEW_CHARS = 120
MAX_REPORTED = 20

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


class LineBuffer:
    """The line that is being read, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self.too_long = False

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._limit:
            self._chunks = [self._chunks[0] if self._chunks else chunk[:CHUNK_BYTES], chunk[-CHUNK_BYTES:]]
            self.too_long = True
        elif chunk:
            self._chunks.append(chunk)

    def take(self) -> bytes:
        """Return the bytes; of a line over the limit, its start and its end."""
        whole = b"".join(self._chunks)
        self._chunks, self._size = [], 0
        return whole


@asynccontextmanager
async def connect_stdio(
    process: McpServerProcess, *, limit: int, redactor: Redactor
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Open the streams of a process's messages; stop the process at the end. Longer lines are refused."""
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with arrived, incoming, outgoing, leaving, asyncio.TaskGroup() as group:
            reading = group.create_task(read_messages(process, arrived, limit=limit, redactor=redactor))
            writing = group.create_task(write_messages(process.writer, leaving))
            try:
                yield incoming, outgoing
            finally:
                reading.cancel()
                writing.cancel()
    finally:
        await process.stop()


async def read_messages(
    process: McpServerProcess,
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    *,
    limit: int,
    redactor: Redactor,
) -> None:
    complaints = JunkLog(process.name, redactor)
    async with incoming:
        async for line in read_lines(process.reader, limit=limit):
            found = parse_line(line, limit)
            for message in [each for each in found if isinstance(each, SessionMessage)]:
                await incoming.send(message)
            for junk in [each for each in found if isinstance(each, str)]:
                complaints.add(junk)


class JunkLog:
    """Logs the first lines that are not messages; a server that prints to its output would fill the log."""

    def __init__(self, name: str, redactor: Redactor) -> None:
        self._name = name
        self._redactor = redactor
        self._count = 0

    def add(self, junk: str) -> None:
        self._count += 1
        if self._count <= MAX_REPORTED:
            log.warning(
                "MCP server %s wrote a line that is not a message: %s", self._name, self._redactor(junk)
            )


async def read_lines(reader: StreamReader, *, limit: int) -> AsyncIterator[LineBuffer]:
    line = LineBuffer(limit)
    while piece := await reader.read(CHUNK_BYTES):
        *ended, rest = piece.split(b"\n")
        for part in ended:
            line.add(part)
            yield line
            line = LineBuffer(limit)
        line.add(rest)


def parse_line(line: LineBuffer, limit: int) -> list[SessionMessage | str]:
    """Return the messages of a line, and descriptions of what is not one."""
    data = line.take()
    if line.too_long:
        reason = f"its response has more than {limit:,} bytes, the limit"
        return [error_for_unreadable(data, reason) or f"a line of more than {limit:,} bytes"]
    if not data.strip():
        return []
    shown = sanitize_text(data[:PREVIEW_CHARS].decode(errors="replace"), PREVIEW_CHARS)
    return [
        f"{shown!r}: {each.reason}" if isinstance(each, UnreadableMessage) else each
        for each in parse_messages(data)
    ]


async def write_messages(writer: StreamWriter, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Write each message as a line. Ends when the process no longer reads."""
    async with outgoing:
        try:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                await writer.drain()
        except (ConnectionError, RuntimeError):
            return
