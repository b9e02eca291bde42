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

from dragoman.errors import NotFound, Unavailable
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
COMPRESSION_LEVEL = 4  # 5 % larger than 6, in half the time
INDEX = "index.html"
SCRIPT_HASHES = "csp.json"
REPLACED_HINT = "load the page again; restart the hub after an upgrade"


class DocumentationSite:
    """Handlers of `/docs/` and everything below it.

    The first request reads all files (8 MB) and keeps them compressed (2 MB with the pictures): pages and
    what they link to are of one version as long as the hub runs, also after the package was replaced.
    """

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("dragoman.server.reference") / "site"
        self._contents: Mapping[str, bytes] = {}
        self._policy = ""
        self._reading = asyncio.Lock()

    async def redirect(self, exchange: Exchange) -> None:
        """Redirect from `/docs` to `/docs/`, to which the pages' links are relative."""
        await exchange.respond(308, headers={"location": "docs/", "cache-control": "no-cache"})

    async def page(self, exchange: Exchange) -> None:
        """Respond with a file of the site. NotFound; Unavailable while the package is being replaced."""
        name = exchange.path_params.get("name", "") or INDEX
        contents = await self._read_files()
        if not contents:
            await exchange.respond(307, headers={"location": "api", "cache-control": "no-cache"})
            return
        suffix = PurePosixPath(name).suffix
        if name not in contents or suffix not in MEDIA_TYPES:
            raise NotFound(f"the documentation has no page {name[:100]!r}", hint="/docs/ lists all pages")
        headers = {
            "content-type": MEDIA_TYPES[suffix],
            "content-security-policy": self._policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache" if suffix in (".html", ".json") else "public, max-age=86400",
        }
        content = contents[name]
        if suffix in COMPRESSED:
            headers["vary"] = "accept-encoding"
            if "gzip" in exchange.headers.get("accept-encoding", "").lower():
                headers["content-encoding"] = "gzip"
            else:
                content = await asyncio.to_thread(gzip.decompress, content)
        await exchange.respond(200, content, headers=headers)

    async def _read_files(self) -> Mapping[str, bytes]:
        async with self._reading:
            if not self._contents:
                try:
                    contents = await asyncio.to_thread(read_site, self._folder)
                    hashes = json.loads(gzip.decompress(contents[SCRIPT_HASHES])) if contents else []
                except (OSError, KeyError, ValueError):  # files that are gone, missing or half written
                    raise Unavailable("the documentation is being replaced", hint=REPLACED_HINT) from None
                self._contents, self._policy = contents, security_policy(hashes)
            return self._contents


def read_site(folder: Traversable) -> Mapping[str, bytes]:
    """Read the files of a site by their paths, texts compressed; none without a site. Raises OSError."""
    found: dict[str, bytes] = {}
    waiting = [("", folder)] if folder.is_dir() else []
    while waiting:
        prefix, current = waiting.pop()
        for each in current.iterdir():
            if each.is_dir():
                waiting.append((f"{prefix}{each.name}/", each))
                continue
            content = each.read_bytes()
            is_text = PurePosixPath(each.name).suffix in COMPRESSED
            found[prefix + each.name] = gzip.compress(content, COMPRESSION_LEVEL) if is_text else content
    return found


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
