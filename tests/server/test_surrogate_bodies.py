"""Bodies with half an emoji, or with numbers that JSON does not have, at every endpoint that reads JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serving import frames_in, serving, text_of

CUT = rb'"cut \ud83d"'
MCP_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
USER = b'{"id":"u","role":"user","parts":[{"type":"text","text":%s}]}'
PROMPT = b'"model":"sim/any","messages":[{"role":"user","content":%s}]'
ENDPOINTS: dict[str, tuple[str, str, bytes]] = {
    "chat": ("POST", "/api/chat", b'{"id":"s","message":' + USER + b"}"),
    "openai": ("POST", "/v1/chat/completions", b"{" + PROMPT + b"}"),
    "anthropic": ("POST", "/v1/messages", b'{"max_tokens":9,' + PROMPT + b"}"),
    "session": ("POST", "/api/sessions", b'{"title":%s}'),
    "call": ("POST", "/api/operations/hub.search/call", b'{"query":%s}'),
    "mcp through the SDK": (
        "POST",
        "/mcp",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"time_now","arguments":{"zone":%s}}}',
    ),
    "mcp": (
        "POST",
        "/mcp",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_search","arguments":{"query":%s}}}',
    ),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_half_an_emoji_is_accepted_at_every_endpoint(tmp_path: Path, endpoint: str) -> None:
    method, path, body = ENDPOINTS[endpoint]
    steps: list[dict[str, Any]] = [{"text": "Fine."}]
    async with serving(tmp_path, steps if "chat" in path or "/v1/" in path else ()) as hub:
        response = await hub.http.request(method, path, content=body % CUT, headers=MCP_HEADERS)
        assert response.status_code in (200, 201), response.text
        if endpoint == "chat":
            assert text_of(frames_in(response.text)) == "Fine."
            assert (await hub.messages())[0]["parts"][0]["text"] == "cut \ufffd"
        if endpoint == "session":
            assert response.json()["title"] == "cut \ufffd"


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_what_is_no_number_is_refused_at_every_endpoint(
    tmp_path: Path, endpoint: str, number: bytes
) -> None:
    method, path, body = ENDPOINTS[endpoint]
    async with serving(tmp_path) as hub:
        response = await hub.http.request(method, path, content=body % number, headers=MCP_HEADERS)
        assert response.status_code == 400, response.text
        if endpoint.startswith("mcp"):
            assert response.json()["error"]["code"] == -32700
