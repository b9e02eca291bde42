"""MCP over this process's stdin and stdout, where nothing else may be written."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

from dragoman.mcp.sdk_import import import_sdk_module
from dragoman.mcp.server.sdk_server import build_sdk_server
from dragoman.mcp.server.server import McpServer

MAX_LINE_BYTES = 64_000_000


async def serve_stdio(server: McpServer) -> None:
    """Serve the tools until stdin ends. What operations print goes to stderr."""
    built = await asyncio.to_thread(build_sdk_server, server)
    stdio = await asyncio.to_thread(import_sdk_module, "mcp.server.stdio")
    async with stdio.stdio_server() as (read, write):
        await built.run(read, write, built.create_initialization_options())


async def read_lines() -> AsyncIterator[bytes]:
    """Yield the lines of stdin until it ends."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        """Read lines, in a daemon thread: a read that waits for input cannot be interrupted."""
        while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
            loop.call_soon_threadsafe(queue.put_nowait, line)
        loop.call_soon_threadsafe(queue.put_nowait, b"")

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while line := await queue.get():
        if line.strip():
            yield line


def stdout_writer() -> Callable[[bytes], Awaitable[None]]:
    """Return a function that writes lines to stdout, one at a time.

    What else is written to stdout goes to stderr from now on, as `print` in an operation.
    """
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lock = asyncio.Lock()

    def put(line: bytes) -> None:
        stdout.write(line + b"\n")
        stdout.flush()

    async def write(line: bytes) -> None:
        async with lock:
            await asyncio.to_thread(put, line)

    return write
