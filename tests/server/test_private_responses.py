"""No cache between a client and the hub, and none of a browser, keeps what is private."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.serving import Served, ask, serving

PUBLIC = ("/openapi.json", "/docs", "/console", "/", "/mcp", "/.well-known/agent-card.json")  # /mcp: a 400


async def get_paths(hub: Served) -> list[str]:
    """Return every path that can be read and belongs to somebody, with an id in place of each parameter."""
    document = (await hub.http.get("/openapi.json")).json()
    found = [path for path, methods in document["paths"].items() if "get" in methods]
    private = [path for path in found if not path.startswith(("/docs/", "/console/")) and path not in PUBLIC]
    return [re.sub(r"\{[^}]*\}", "s", path) for path in private]


async def cache_control(hub: Served, path: str, headers: dict[str, str]) -> tuple[int, str, int]:
    async with hub.http.stream("GET", path, headers=headers) as response:
        size = int(response.headers.get("content-length", "1"))
        return response.status_code, response.headers.get("cache-control", ""), size


@pytest.mark.parametrize("query", ["", "?format=csv"])
async def test_what_can_be_read_with_a_key_says_that_caches_keep_none_of_it(
    tmp_path: Path, query: str
) -> None:
    """A cookie or `x-api-key` alone does not keep shared caches from storing a response, as a 404 is, too."""
    async with serving(tmp_path, [{"text": "Hi."}], keys=True) as hub:
        _, secret = await hub.hub.store.keys.create("ann", scopes=("admin", "chat", "gateway", "operations"))
        headers = {"x-api-key": secret}
        await hub.post(ask("hello"), headers=headers)
        paths = await get_paths(hub)
        assert len(paths) > 50
        found = {path: await cache_control(hub, path + query, headers) for path in paths}
        cacheable = {
            path: answer
            for path, answer in found.items()
            if answer[2] and not re.search("no-store|private|no-cache", answer[1])
        }
        assert cacheable == {}
        assert (await cache_control(hub, "/api/sessions", {}))[:2] == (401, "no-store")
        assert (await cache_control(hub, "/api/nothing.css", headers))[:2] == (404, "no-store")
