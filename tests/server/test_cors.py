"""CORS: who may read answers in a browser, and what is logged of those who may not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.serving import serving

LOOPBACK = ("http://localhost:3000", "http://127.0.0.1:5173", "http://[::1]:8080", "https://localhost")
FOREIGN = (
    "https://evil.example",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example:3000",
    "null",
)
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.mark.parametrize("keys", [False, True])
async def test_pages_of_this_machine_may_read_a_hub_without_keys(tmp_path: Path, keys: bool) -> None:
    async with serving(tmp_path, keys=keys) as hub:
        for origin in (*LOOPBACK, *FOREIGN):
            expected = origin if origin in LOOPBACK and not keys else None
            simple = await hub.http.get("/healthz", headers={"origin": origin})
            preflight = await hub.http.request(
                "OPTIONS", "/api/chat", headers={"origin": origin, **PREFLIGHT}
            )
            for response in (simple, preflight):
                assert response.headers.get("access-control-allow-origin") == expected


async def test_a_refused_origin_is_logged_once_with_the_line_that_allows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, keys=True) as hub:
        with caplog.at_level(logging.WARNING, logger="dragoman.server.http.cors"):
            for number in range(120):
                for origin in ("https://app.example", f"https://{number}.example"):
                    await hub.http.get("/healthz", headers={"origin": origin})
            await hub.http.get("/healthz")
        lines = [
            record.getMessage() for record in caplog.records if record.name == "dragoman.server.http.cors"
        ]
    assert len([line for line in lines if "cors: {origins: ['https://app.example']}" in line]) == 1
    assert len(lines) == 50
