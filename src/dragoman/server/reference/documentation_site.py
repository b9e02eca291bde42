"""HTTP handlers of the documentation's site, which `make docs` builds with MkDocs into `site/` here.

A build without it serves the API reference alone.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from dragoman.errors import NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.server.http.endpoint import HttpEndpoint

MEDIA_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".md": "text/markdown; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
COMPRESSED = frozenset({".html", ".js", ".css", ".json", ".svg", ".md", ".txt"})
INDEX = "index.html"
SCRIPT_HASHES = "csp.json"


class DocumentationSite:
    """Handlers of `/docs/` and everything below it. A file is read and compressed on its first request."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("dragoman.server.reference") / "site"
        self._files: Mapping[str, Traversable] | None = None
        self._contents: dict[str, bytes] = {}
        self._policy = ""

    async def redirect(self, exchange: Exchange) -> None:
        """Lead from `/docs` to `/docs/`, from which the pages' addresses are relative."""
        await exchange.respond(308, headers={"location": "docs/", "cache-control": "no-cache"})

    async def page(self, exchange: Exchange) -> None:
        """Respond with a file of the site. NotFound."""
        name = exchange.path_params.get("name", "") or INDEX
        listed = await self._list()
        if not listed:
            await exchange.respond(307, headers={"location": "api", "cache-control": "no-cache"})
            return
        suffix = PurePosixPath(name).suffix
        if name not in listed or suffix not in MEDIA_TYPES:
            raise NotFound(f"the documentation has no page {name[:100]!r}", hint="/docs/ lists all pages")
        headers = {
            "content-type": MEDIA_TYPES[suffix],
            "content-security-policy": self._policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache" if suffix in (".html", ".json") else "public, max-age=86400",
        }
        accepts = "gzip" in exchange.headers.get("accept-encoding", "").lower()
        is_compressed = accepts and suffix in COMPRESSED
        if is_compressed:
            headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
        content = await self._read(name, listed[name], is_compressed=is_compressed)
        await exchange.respond(200, content, headers=headers)

    async def _list(self) -> Mapping[str, Traversable]:
        if self._files is None:
            self._files = await asyncio.to_thread(self._walk)
            hashes = self._files.get(SCRIPT_HASHES)
            sources = json.loads(await asyncio.to_thread(hashes.read_bytes)) if hashes is not None else []
            self._policy = security_policy(sources)
        return self._files

    def _walk(self) -> Mapping[str, Traversable]:
        found: dict[str, Traversable] = {}
        waiting = [("", self._folder)] if self._folder.is_dir() else []
        while waiting:
            prefix, folder = waiting.pop()
            for each in folder.iterdir():
                if each.is_dir():
                    waiting.append((f"{prefix}{each.name}/", each))
                else:
                    found[prefix + each.name] = each
        return found

    async def _read(self, name: str, file: Traversable, *, is_compressed: bool) -> bytes:
        key = f"{name}.gz" if is_compressed else name
        if key not in self._contents:
            raw = await asyncio.to_thread(file.read_bytes)
            self._contents[key] = await asyncio.to_thread(gzip.compress, raw) if is_compressed else raw
        return self._contents[key]


def security_policy(script_hashes: list[str]) -> str:
    """Return the CSP of the site: its own files, and the inline scripts that were built into its pages.

    The theme sets styles inline. Its search runs in a worker.
    """
    scripts = " ".join(["'self'", *script_hashes])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def site_endpoints(site: DocumentationSite) -> dict[str, HttpEndpoint]:
    """Return the endpoints of the site's pages, which need no key."""
    pages = HttpEndpoint({"GET": site.page})
    return {"/docs": HttpEndpoint({"GET": site.redirect}), "/docs/": pages, "/docs/{name:path}": pages}
