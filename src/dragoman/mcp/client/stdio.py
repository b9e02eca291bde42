"""The stdio transport: JSON-RPC messages to and from a child process, one per line.

Other lines are dropped and logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from dragoman.mcp.client.flood import FloodMeter
from dragoman.mcp.client.jsonrpc import (
    UnreadableMessage,
    decode_messages,
    error_for_unreadable,
)
from dragoman.mcp.client.large_messages import MessageBodies
from dragoman.mcp.client.process import McpServerProcess
from dragoman.operations.sanitize import sanitize_text
from dragoman.redaction import Redactor

log = logging.getLogger(__name__)

CHUNK_BYTES = 262_144
PREVIEW_CHARS = 120
MAX_REPORTED = 20
HEAD_BYTES = 300
JUNK = "lines that are not messages"
# A request or notification, recognized without decoding the line: "method" comes before any result.
REQUEST_PATTERN = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:\s*[^,{\["]{0,20}\s*,\s*)?"method"\s*:\s*"([\w/$.-]{1,60})"'
)

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


class LineBuffer:
    """The line that is being read, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self.size = 0
        self.too_long = False

    @property
    def start(self) -> bytes:
        """The first bytes of the line."""
        return self._chunks[0] if self._chunks else b""

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self._limit:
            self._chunks = [self._chunks[0] if self._chunks else chunk[:CHUNK_BYTES], chunk[-CHUNK_BYTES:]]
            self.too_long = True
        elif chunk:
            self._chunks.append(chunk)

    def take(self) -> bytes:
        """Return the bytes; of a line over the limit, its start and its end."""
        whole = b"".join(self._chunks)
        self._chunks, self.size = [], 0
        return whole


@asynccontextmanager
async def connect_stdio(
    process: McpServerProcess, *, limit: int, redactor: Redactor, meter: FloodMeter, bodies: MessageBodies
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Open the streams of a process's messages; stop the process at the end.

    A line longer than `limit` bytes becomes the error of the request that it answers.
    """
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with arrived, incoming, outgoing, leaving, asyncio.TaskGroup() as group:
            reading = group.create_task(
                read_messages(
                    process, arrived, limit=limit, junk_log=JunkLog(process.name, redactor), meter=meter
                )
            )
            writing = group.create_task(write_messages(process.writer, leaving, bodies=bodies))
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
    junk_log: JunkLog,
    meter: FloodMeter,
) -> None:
    async with incoming:
        async for line in read_lines(process.reader, limit=limit):
            await meter.pause()
            if is_above_rate(line, meter):
                continue
            parsed = await parse_line(line, limit)
            for message in [each for each in parsed if isinstance(each, SessionMessage)]:
                await incoming.send(message)
            junk_log.add([each for each in parsed if isinstance(each, str) and meter.admit(JUNK)])


def is_above_rate(line: LineBuffer, meter: FloodMeter) -> bool:
    """Return whether a line is unrequested and above the rate; it is then counted as dropped."""
    kind = unrequested_kind(line.start)
    if kind is None or not meter.is_exhausted():
        return False
    meter.drop(kind, size=line.size)
    return True


def unrequested_kind(start: bytes) -> str | None:
    """Return the kind of a line that answers no request, from its first bytes, or None."""
    head = start[:HEAD_BYTES]
    found = REQUEST_PATTERN.match(head)
    if found is not None:
        return found[1].decode()
    return None if head.lstrip()[:1] in (b"{", b"[", b"") else JUNK


class JunkLog:
    """Logs the first lines that are not messages; a server that prints to its output would fill the log."""

    def __init__(self, name: str, redactor: Redactor) -> None:
        self._name = name
        self._redactor = redactor
        self._count = 0

    def add(self, lines: Iterable[str]) -> None:
        for junk in lines:
            self._count += 1
            if self._count > MAX_REPORTED:
                return
            log.warning(
                "MCP server %s wrote a line that is not a message: %s", self._name, self._redactor(junk)
            )


async def read_lines(reader: StreamReader, *, limit: int) -> AsyncIterator[LineBuffer]:
    line = LineBuffer(limit)
    while chunk := await reader.read(CHUNK_BYTES):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line.add(part)
            yield line
            line = LineBuffer(limit)
        line.add(rest)


async def parse_line(line: LineBuffer, limit: int) -> list[SessionMessage | str]:
    """Return the messages of a line, and a text for each value in it that is not one."""
    data = line.take()
    if line.too_long:
        reason = f"its response has more than {limit:,} bytes, the limit"
        return [error_for_unreadable(data, reason) or f"a line of more than {limit:,} bytes"]
    if not data.strip():
        return []
    shown = sanitize_text(data[:PREVIEW_CHARS].decode(errors="replace"), PREVIEW_CHARS)
    return [
        f"{shown!r}: {each.reason}" if isinstance(each, UnreadableMessage) else each
        for each in await decode_messages(data)
    ]


async def write_messages(
    writer: StreamWriter, outgoing: MemoryObjectReceiveStream[SessionMessage], *, bodies: MessageBodies
) -> None:
    """Write each message as a line. Ends when the process no longer reads."""
    async with outgoing:
        try:
            async for message in outgoing:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                writer.write((bodies.fill_in(line) or line) + b"\n")
                await writer.drain()
        except (ConnectionError, RuntimeError):
            return
