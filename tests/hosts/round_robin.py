"""A proxy in front of several hosts: each request goes to the next one, whichever got the last.

It has one thread of its own, one connection to a host for each request, and knows nothing of sessions. A host
that refuses the connection is passed over, as a load balancer with a health check does; one that dies in
mid-response cuts the client's connection.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from contextlib import suppress

MAX_HEAD = 262_144
PIECE = 65_536
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
CONNECTION = re.compile(rb"(?i)\r\nconnection: *([^\r]*)")


class RoundRobin:
    """The proxy; `url` is its address, `ports` are those of the hosts and may be replaced."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self.served: list[int] = []
        """The port that got each request, in order."""
        self._next = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def close(self) -> None:
        """Stop serving and cut what is open."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD)
        )
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of a client's connection, one after the other."""
        early = b""
        try:
            while True:
                head = early + await reader.readuntil(b"\r\n\r\n")
                early = b""
                found = LENGTH.search(head)
                body = await reader.readexactly(int(found[1]) if found else 0)
                host = await self._connect()
                if host is None:
                    writer.write(NO_HOST)
                    continue
                request = CONNECTION.sub(b"", head[:-2]) + CLOSE + body
                asked_for = CONNECTION.search(head)
                is_last = asked_for is not None and asked_for[1].lower() == b"close"
                is_whole, early = await self._relay((reader, writer), host, request, is_last=is_last)
                if is_last or not is_whole:
                    return
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self.ports)):
            port = self.ports[self._next % len(self.ports)]
            self._next += 1
            with suppress(OSError):
                connection = await asyncio.open_connection("127.0.0.1", port)
                self.served.append(port)
                return connection
        return None

    async def _relay(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        host: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        request: bytes,
        *,
        is_last: bool,
    ) -> tuple[bool, bytes]:
        """Send a request to a host and its response back; `is_last` if the connection closes with it.

        Return whether the response was whole, and what has arrived of the client's next request.
        """
        reader, writer = host
        leaving = asyncio.ensure_future(client[0].read(1))
        sending = asyncio.ensure_future(self._copy(reader, client[1], is_last=is_last))
        try:
            writer.write(request)
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
            early = leaving.result() if leaving.done() else b""
            if leaving.done() and not early:
                return False, b""
            return await sending, early
        finally:
            for task in (leaving, sending):
                task.cancel()
            await asyncio.gather(leaving, sending, return_exceptions=True)
            writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_last: bool
    ) -> bool:
        """Send a response on; return whether it was whole. It says that the connection closes if it does."""
        head = await reader.readuntil(b"\r\n\r\n")
        found, is_chunked = LENGTH.search(head), CHUNKED.search(head) is not None
        writer.write(head if is_last else head.replace(b"\r\nconnection: close", b""))
        count, last = 0, b""
        while piece := await reader.read(PIECE):
            count, last = count + len(piece), (last + piece)[-len(LAST_CHUNK) :]
            writer.write(piece)
            await writer.drain()
        return last == LAST_CHUNK if is_chunked else count == (int(found[1]) if found else 0)


CLOSE = b"connection: close\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
NO_HOST = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
