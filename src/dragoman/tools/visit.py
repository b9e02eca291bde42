"""Visits: one page is asked for over a connection to a checked address; redirects are checked like the first.

A connection serves one request, goes straight to the address that the guard gave, and never through a proxy,
which would look the name up again. Name and certificate stay those of the URL. No cookies, no credentials.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from dragoman.errors import BadRequest, CallError, CallTimeout, Forbidden, ProviderError, TooLarge
from dragoman.providers.connection import Connection, Request, Timeouts
from dragoman.providers.dialer import Found, alternate, explain, race
from dragoman.providers.incoming import Incoming
from dragoman.tools.guard import Guard
from dragoman.tools.inflate import Inflate
from dragoman.tools.url import Url, follow, read_url

Reach: TypeAlias = Callable[[list[Found]], Awaitable[socket.socket]]

REDIRECTS = 5
MOVED = {301, 302, 303, 307, 308}
PATIENT = Timeouts(connect=None, first_byte=None, idle=None)  # the visit as a whole has a limit
MEDIA = re.compile(r"\s*([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)\s*(?:;.*)?", re.IGNORECASE | re.ASCII)
CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([^\s\"';,]+)", re.IGNORECASE)
TEXTUAL = {
    "application/ecmascript", "application/javascript", "application/json", "application/jsonl",
    "application/ld+json", "application/ndjson", "application/toml", "application/x-javascript",
    "application/x-ndjson", "application/x-yaml", "application/xml", "application/yaml", "message/rfc822",
}  # fmt: skip


class Visit(msgspec.Struct, frozen=True):
    """What was found: `url` is where the redirects ended, `media_type` what it says it is."""

    url: Url
    status: int
    media_type: str | None
    charset: str | None
    body: bytes
    redirects: int = 0


class Visitor:
    """Asks for pages. `reach` connects to one of some checked places."""

    def __init__(self, guard: Guard, *, max_bytes: int, timeout: float, reach: Reach | None = None) -> None:
        self._guard = guard
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._reach = reach or nearest
        self._tls: ssl.SSLContext | None = None

    async def visit(self, text: str) -> Visit:
        """What is at a URL, after at most five redirects.

        BadRequest or Forbidden for what is not asked, TooLarge, CallTimeout, CallError for what failed.
        """
        url = read_url(text)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._follow(url)
        except TimeoutError:
            raise CallTimeout(
                f"{url.host!r} did not answer whole within {self._timeout:g} seconds",
                hint="try another address, or this one later",
            ) from None

    async def _follow(self, url: Url) -> Visit:
        places = await self._guard.admit(url)
        for redirects in range(REDIRECTS + 1):
            found = await self._ask(url, places)
            if isinstance(found, Visit):
                return msgspec.structs.replace(found, redirects=redirects)
            url, places = await self._redirected(url, found)
        raise CallError(f"{url.host!r} redirects more than {REDIRECTS} times")

    async def _redirected(self, url: Url, location: str) -> tuple[Url, list[Found]]:
        try:
            there = follow(url, location)
            if url.tls and not there.tls:
                raise Forbidden("it leads from https to http", hint=f"if that is wanted, ask for {there}")
            return there, await self._guard.admit(there)
        except (BadRequest, Forbidden) as error:
            raise Forbidden(
                f"{url.host!r} redirects to where web.fetch does not go: {error.message}", hint=error.hint
            ) from None

    async def _ask(self, url: Url, places: list[Found]) -> Visit | str:
        """What is there, or where it has moved to."""
        try:
            connection = await self._connect(url, places)
        except OSError as error:
            raise failed(f"cannot connect to {url.host!r}: {explain(error)}") from None
        try:
            incoming = await connection.ask(Request(head(url), b"", PATIENT))
            moved = incoming.headers.get("location")
            if incoming.status in MOVED and moved:
                return moved.encode("latin-1").decode(errors="replace")
            return await self._read(url, connection, incoming=incoming)
        except ProviderError as error:
            raise failed(error.message, transient=error.transient) from None
        finally:
            connection.abort()

    async def _connect(self, url: Url, places: list[Found]) -> Connection:
        tls = await self._context() if url.tls else None
        opened = await self._reach(places)
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(url.authority),
                sock=opened,
                ssl=tls,
                server_hostname=url.host if tls else None,
            )
        except BaseException:
            opened.close()
            raise
        return connection

    async def _read(self, url: Url, connection: Connection, *, incoming: Incoming) -> Visit:
        said = incoming.headers.get("content-type", "")
        media = MEDIA.fullmatch(said)
        media_type = media[1].lower() if media else None
        length = incoming.headers.get("content-length", "")
        if media_type and not is_textual(media_type) and length != "0":
            raise CallError(
                f"{url.host!r} answers {incoming.status} with {media_type}, and web.fetch reads text",
                hint="it reads HTML, plain text, JSON and XML; look for the same thing as one of these",
            )
        body = await self._body(url, connection, incoming=incoming)
        charset = CHARSET.search(said)
        return Visit(url, incoming.status, media_type, charset[1] if charset else None, body)

    async def _body(self, url: Url, connection: Connection, *, incoming: Incoming) -> bytes:
        """The answer's body, unpacked and never more than the limit."""
        length = incoming.headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > self._max_bytes:
            raise self._too_large(url)
        inflate = Inflate(incoming.headers.get("content-encoding", ""), limit=self._max_bytes)
        packed = 0
        while data := await connection.more(incoming):
            packed += len(data)
            if packed > self._max_bytes or not inflate.feed(data):
                raise self._too_large(url)
        return inflate.end()

    def _too_large(self, url: Url) -> TooLarge:
        return TooLarge(
            f"what {url.host!r} sends is longer than {self._max_bytes} bytes",
            hint="ask for a smaller page, or a part of it if the site offers parts",
        )

    async def _context(self) -> ssl.SSLContext:
        """The system's certificates, read once and off the loop."""
        if self._tls is None:
            context = await asyncio.to_thread(ssl.create_default_context)
            context.set_alpn_protocols(["http/1.1"])
            self._tls = context
        return self._tls


async def nearest(places: list[Found]) -> socket.socket:
    """A socket connected to the first of the places that answers."""
    return await race(alternate(places))


def head(url: Url) -> bytes:
    """The request; the same for everybody, and with nothing of the hub's in it."""
    lines = (
        f"GET {url.target} HTTP/1.1",
        f"host: {url.authority}",
        "user-agent: Mozilla/5.0 (compatible; dragoman web.fetch)",
        "accept: text/html, text/plain, application/json, application/xml;q=0.9, text/*;q=0.8, */*;q=0.1",
        "accept-encoding: gzip",
        "connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def is_textual(media_type: str) -> bool:
    return media_type.startswith("text/") or media_type in TEXTUAL or media_type.endswith(("+json", "+xml"))


def failed(message: str, *, transient: bool = True) -> CallError:
    error = CallError(message, hint="see whether the URL is right, or try later")
    error.transient = transient
    return error
