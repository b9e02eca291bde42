"""The proxy of a browser: every request of its pages goes through it, and only to allowed hosts.

The browser resolves no names and connects to nothing else, so redirects, links, frames, scripts and images
are checked like the first URL: the host name against the team's domains, and each of its addresses as
`web.fetch` checks them. The connection goes to an address that was checked.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from dragoman.errors import BadRequest, DragomanError, Forbidden
from dragoman.http.dialer import race_connect
from dragoman.json_decoding import parse_digits
from dragoman.tools.web.host_policy import HostPolicy
from dragoman.tools.web.url import Url, parse_url

log = logging.getLogger(__name__)
MAX_HEAD = 64_000  # bytes
MAX_CONNECTIONS = 100
MAX_BYTES = 500_000_000  # that a browser may receive
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 15.0
IDLE_SECONDS = 120.0
PIECE = 65_536
MAX_REFUSALS = 20  # reasons that are kept for the next call
REFUSED = (
    "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\n"
    "content-length: {size}\r\nconnection: close\r\n\r\n"
)


class GuardProxy:
    """An HTTP proxy on the loopback for one browser. `async with`; `url` is its address."""

    def __init__(self, policy: HostPolicy) -> None:
        self._policy = policy
        self._server: asyncio.Server | None = None
        self._active: set[asyncio.Task[None]] = set()
        self._left = MAX_BYTES
        self._refusals: list[str] = []

    async def start(self) -> str:
        """Begin to listen; return the address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._active):
            task.cancel()
        if self._active:
            await asyncio.wait(self._active, timeout=5)

    def take_refusals(self) -> list[str]:
        """Return the reasons of refusals since the last call, at most MAX_REFUSALS."""
        refusals, self._refusals = self._refusals, []
        return refusals

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._active) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._active.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            log.debug("a connection of a browser ended early")
        finally:
            self._active.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            method, url, lines = parse_head(head)
            async with asyncio.timeout(CONNECT_SECONDS):
                connected = await race_connect(await self._policy.resolve_allowed(url))
        except (DragomanError, TimeoutError, OSError) as error:
            await self._refuse(writer, error)
            return
        upstream_reader, upstream = await asyncio.open_connection(sock=connected, limit=PIECE)
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                sending = asyncio.ensure_future(self._relay(reader, upstream))
            else:
                upstream.write(origin_head(method, url, lines=lines))
                sending = asyncio.ensure_future(self._relay(reader, upstream, size=body_size(lines)))
            try:
                await self._relay(upstream_reader, writer, is_answer=True)
            finally:
                sending.cancel()
        finally:
            upstream.close()

    async def _refuse(self, writer: asyncio.StreamWriter, error: Exception) -> None:
        text = error.message if isinstance(error, DragomanError) else "the host cannot be reached"
        if len(self._refusals) < MAX_REFUSALS and text not in self._refusals:
            self._refusals.append(text)
        status = "403 Forbidden" if isinstance(error, Forbidden | BadRequest) else "502 Bad Gateway"
        body = f"Not opened: {text}".encode()
        writer.write(REFUSED.format(status=status, size=len(body)).encode() + body)
        with suppress(OSError):
            await writer.drain()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        size: int | None = None,
        is_answer: bool = False,
    ) -> None:
        """Copy `size` bytes, or all to the end. Bytes after a request's body are not sent."""
        while size is None or size > 0:
            async with asyncio.timeout(IDLE_SECONDS):
                data = await reader.read(PIECE if size is None else min(PIECE, size))
            if not data:
                return
            size = None if size is None else size - len(data)
            if is_answer:
                self._left -= len(data)
                if self._left < 0:
                    raise OSError("the browser has received too much")
            writer.write(data)
            await writer.drain()


def parse_head(head: bytes) -> tuple[str, Url, list[str]]:
    """Return method, target and header lines of a request to a proxy. Raises BadRequest."""
    try:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
    except ValueError:
        raise BadRequest("The request is not valid HTTP.") from None
    url = parse_url(f"https://{target}" if method == "CONNECT" else target)
    names = {line.partition(":")[0].strip().lower() for line in lines}
    if "transfer-encoding" in names and method != "CONNECT":
        raise BadRequest("A request body without a length is not forwarded.")
    return method, url, [line for line in lines if line]


def origin_head(method: str, url: Url, *, lines: list[str]) -> bytes:
    """Return the head of a request as the origin server gets it, for one request on its connection."""
    dropped = ("proxy-connection", "proxy-authorization", "connection", "keep-alive", "upgrade", "host")
    forwarded = [line for line in lines if line.partition(":")[0].strip().lower() not in dropped]
    head = [
        f"{method} {url.target} HTTP/1.1",
        f"Host: {url.authority}",
        *forwarded,
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(head).encode("latin-1")


def body_size(lines: list[str]) -> int:
    """Return the length of a request's body. Raises ValueError."""
    fields = (line.partition(":") for line in lines)
    text = next((value for name, _, value in fields if name.strip().lower() == "content-length"), "0")
    if (size := parse_digits(text.strip())) is None:
        raise ValueError(f"{text[:20]!r} is not a length")
    return size
