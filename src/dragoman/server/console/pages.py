"""HTTP handlers of the console's pages: one HTML page for all addresses, and its scripts and styles.

They are built from `console/` into `static/` here, each with compressed copies. A hub that was installed from
a build without npm has no console, and responds with a page that says so.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from dragoman.errors import NotFound
from dragoman.http.asgi_exchange import Exchange

SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
IMMUTABLE = "public, max-age=31536000, immutable"
MEDIA_TYPES: Mapping[str, str] = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
ENCODINGS: Mapping[str, str] = {"br": ".br", "gzip": ".gz"}
INDEX = "index.html"  # no asset has this name: it has no hash, and no media type of an asset
RELATIVE_ASSETS, RELATIVE_DOCS = b'"./assets/', b'"../docs'
NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8">
<title>Dragoman: console not installed</title>
<h1>The console is not part of this installation</h1>
<p>This hub was built where npm was missing. Everything else works. To get the console:</p>
<ul><li>install the released package: <code>pip install --upgrade --force-reinstall dragoman</code></li>
<li>or, in a checkout with Node.js 20 or newer: <code>pip install .</code></li></ul>
<p><a href="../docs">API reference</a></p></html>
"""


def is_built() -> bool:
    """Whether this installation has the console's pages."""
    return (files("dragoman.server.console") / "static" / "index.html").is_file()


class ConsolePages:
    """Handlers of `/console` and everything below it.

    The first request reads all files, about 1.6 MB, so that a page finds its scripts while the hub runs, even
    after the package was replaced on the disk.
    """

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("dragoman.server.console") / "static"
        self._contents: Mapping[str, bytes] = {}

    async def redirect(self, exchange: Exchange) -> None:
        """Redirect `/console` to `/console/`, to which the page's addresses are relative."""
        await exchange.respond(308, headers={"location": "console/", "cache-control": "no-cache"})

    async def page(self, exchange: Exchange) -> None:
        """Respond with the page, whatever the address below `/console/` is."""
        content = (await self._read_files()).get(INDEX)
        up = b"../" * exchange.raw_path.removeprefix("/console/").count("/")
        if content is None:
            await self._respond_html(
                exchange, NOT_BUILT.replace(RELATIVE_DOCS, b'"' + up + RELATIVE_DOCS[1:])
            )
            return
        await self._respond_html(exchange, content.replace(RELATIVE_ASSETS, b'"' + up + RELATIVE_ASSETS[1:]))

    async def asset(self, exchange: Exchange) -> None:
        """Respond with a script or style, compressed as the client accepts it. Its name has its hash."""
        name = exchange.path_params["name"]
        contents = await self._read_files()
        media_type = MEDIA_TYPES.get(PurePosixPath(name).suffix)
        if name not in contents or media_type is None:
            raise NotFound(f"the console has no file {name[:100]!r}", hint="reload the page")
        headers = {
            **HEADERS,
            "content-type": media_type,
            "cache-control": IMMUTABLE,
            "vary": "accept-encoding",
        }
        accepted = accepted_encodings(exchange.headers.get("accept-encoding", ""))
        for encoding, suffix in ENCODINGS.items():
            if encoding in accepted and name + suffix in contents:
                name, headers["content-encoding"] = name + suffix, encoding
                break
        await exchange.respond(200, contents[name], headers=headers)

    async def _respond_html(self, exchange: Exchange, content: bytes) -> None:
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {**HEADERS, "cache-control": "no-cache", "etag": etag}
        if exchange.headers.get("if-none-match") == etag:
            await exchange.respond(304, headers=headers)
            return
        headers["content-type"] = "text/html; charset=utf-8"
        await exchange.respond(200, content, headers=headers)

    async def _read_files(self) -> Mapping[str, bytes]:
        if not self._contents:
            self._contents = await asyncio.to_thread(read_console, self._folder)
        return self._contents


def read_console(folder: Traversable) -> Mapping[str, bytes]:
    """Read the page and its assets by their names; nothing without a page, or while one is replaced."""
    try:
        contents = {each.name: each.read_bytes() for each in (folder / "assets").iterdir()}
        return {**contents, INDEX: (folder / INDEX).read_bytes()}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def accepted_encodings(header: str) -> set[str]:
    """Return the content codings of an `Accept-Encoding` header, without those of quality 0."""
    pairs = (each.partition(";") for each in header.lower().split(",") if each.strip())
    weighed = ((name.strip(), weight.replace(" ", "")[2:]) for name, _, weight in pairs)
    return {name for name, weight in weighed if not weight or weight.strip("0.")}
