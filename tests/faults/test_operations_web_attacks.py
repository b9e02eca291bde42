"""Attacks by web pages and by descriptions of MCP servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli import program
from tests.serving import serving
from tests.waiting import LIMIT

PICTURE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
OWN = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
PASSWORD = "correct-horse-7d1f0c2b9a"
PROGRAM = {"command": ["true"]}
FAR = {"url": "http://127.0.0.1:9/mcp"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("path", ["/api/sessions", "/api/chat/s/stream", "/api/calls", "/v1/models", "/mcp"])
async def test_a_page_of_another_site_loads_nothing_of_a_hub_without_keys(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as hub:
        assert (await hub.http.get(path, headers=PICTURE)).status_code == 403
        for allowed in (LINK, OWN, {}):
            assert (await hub.http.get(path, headers=allowed)).status_code != 403


def test_a_hub_on_any_address_of_this_machine_answers_to_no_foreign_name(tmp_path: Path) -> None:
    with (
        program.serving(tmp_path, {}, "--no-auth", "--host", "127.0.0.2") as hub,
        httpx2.Client(base_url=hub.url, timeout=LIMIT, trust_env=False) as http,
    ):
        for path in ("/api/sessions", "/mcp"):
            assert http.get(path, headers={"host": "evil.example"}).status_code == 421
            assert http.get(path).status_code not in (403, 421)


BAD: Mapping[str, dict[str, Any]] = {
    "no rate": {**PROGRAM, "rate": "now and then"},
    "no address": {"url": "http://[bad"},
    "no port": {"url": "http://127.0.0.1:99999999/"},
    "no host": {"url": "http://"},
    "another scheme": {"url": "file:///etc/passwd"},
    "both": {**PROGRAM, **FAR},
    "a shell line": {"command": "true; id"},
    "a time below zero": {**PROGRAM, "timeout": -1},
    "a secret that there is not": {**FAR, "secrets": {"authorization": "nothing"}},
    "a strange name": {**FAR, "name": "../../etc"},
    "the hub's name": {**FAR, "name": "HUB"},
}


@pytest.mark.parametrize("wrong", BAD)
async def test_a_server_that_cannot_be_is_a_bad_request(tmp_path: Path, wrong: str) -> None:
    async with serving(tmp_path, keys=True) as hub:
        _, key = await hub.hub.store.keys.create("root", scopes=["admin"])
        headers = {"authorization": f"Bearer {key}"}
        body = {"name": "made", **BAD[wrong]}
        response = await hub.http.post("/api/mcp/servers", headers=headers, json=body)
        assert response.status_code == 400, response.text
        assert (await hub.http.get("/api/mcp/servers", headers=headers)).json() == {"servers": []}


async def test_what_opens_a_server_s_address_is_known_as_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK logs addresses as they are; whoever writes logs is told what of them must not be shown."""
    caplog.set_level(logging.DEBUG)
    servers = {
        "user": {"url": f"http://me:{PASSWORD}-1@127.0.0.1:9/mcp"},
        "query": {"url": f"http://127.0.0.1:9/mcp?k={PASSWORD}-2"},
        "header": {**FAR, "headers": {"authorization": f"Bearer {PASSWORD}-3"}},
    }
    async with serving(tmp_path, mcp_servers=servers) as hub:
        existing = hub.hub._services.environment.secrets
        assert {f"{PASSWORD}-{number}" for number in (1, 2, 3)} <= existing
        await hub.hub.external.servers.wait_until_started()
        assert PASSWORD not in (await hub.http.get("/api/mcp/servers")).text
