"""Errors of providers with bytes that are not UTF-8: clients get the status and the words all the same."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.gateway.metered_hub import Site, desk
from tests.providers.servers import ok

TYPES = ("openai", "anthropic", "ollama", "responses")
BODIES = (
    b'{"error": {"message": "temp\xffrature", "type": "invalid_request_error", "param": "temperature"}}',
    b'{"error": "temp\xed\xa0\x80rature"}',
    b'{"object": "list", "data": [{"id": "\xff"}], "models": [{"name": "\xff"}]}',
    b'{"error": ' + b"[" * 3_000,
)


@pytest.mark.parametrize("type", TYPES)
async def test_an_error_body_that_is_not_utf8_is_an_error_of_the_provider(
    type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(type=type)
    async with desk(tmp_path, up=site) as at:
        for body in BODIES:
            for status in (400, 404, 422, 500):
                reply = ok(body, "content-type: application/json").replace(b"200 OK", b"%d No" % status, 1)
                site.replies(reply)
                for stream in (False, True):
                    response = await at.chat("up/m", stream=stream, temperature=0.5)
                    error = response.json()["error"]
                    assert response.status_code in (status, 502, 503), (body, status, response.text)
                    assert error["message"], body
                    assert error.get("code") != "internal", (body, response.text)
        answer = await at.http.get("/v1/models")
        assert answer.status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
