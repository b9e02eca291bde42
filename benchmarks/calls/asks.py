"""How one addition is asked for: over HTTP, over MCP of both eras, and of a plain MCP server."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any

MODERN, LEGACY = "2026-07-28", "2025-11-25"
BOTH = "application/json, text/event-stream"
NUMBERS = {"a": 1, "b": 2}
PREFIX = "io.modelcontextprotocol/"


def batch(tool: str) -> dict[str, Any]:
    """The input of a `hub.call` with one call."""
    return {"calls": [{"tool": tool, "input": NUMBERS}]}


def request(path: str, body: Any, headers: Mapping[str, str]) -> str:
    """A whole POST."""
    text = json.dumps(body)
    reply = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "content-length": str(len(text)),
        **headers,
    }
    return "".join([f"POST {path} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in reply.items()), "\r\n", text])


def by_http(tool: str, key: str) -> str:
    """`hub.call` at its own door."""
    headers = {"authorization": f"Bearer {key}"}
    return request("/api/operations/hub.call/call", batch(tool), headers)


def by_mcp(tool: str, key: str) -> str:
    """`hub_call` as a client of the newest revision calls it."""
    meta = {
        f"{PREFIX}protocolVersion": MODERN,
        f"{PREFIX}clientCapabilities": {},
        f"{PREFIX}clientInfo": {"name": "bench", "version": "1"},
    }
    headers = {
        "authorization": f"Bearer {key}",
        "accept": BOTH,
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "hub_call",
    }
    return request("/mcp", called("hub_call", batch(tool), meta), headers)


def by_session(port: int, path: str, key: str, *, tool: str, input: Any) -> str:
    """A tool as a client of an older revision calls it, in a session that is opened here."""
    headers = {"authorization": f"Bearer {key}", "accept": BOTH, "content-type": "application/json"}
    info = {"name": "bench", "version": "1"}
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
    http = HTTPConnection("127.0.0.1", port, timeout=30)
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    http.request("POST", path, json.dumps(hello), headers)
    answer = http.getresponse()
    answer.read()
    session = answer.headers.get("mcp-session-id")
    headers |= {"mcp-protocol-version": LEGACY} | ({"mcp-session-id": session} if session else {})
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    http.request("POST", path, json.dumps(ready), headers)
    http.getresponse().read()
    http.close()
    return request(path, called(tool, input, {}), headers)


def called(tool: str, input: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    """A `tools/call`."""
    params: dict[str, Any] = {"name": tool, "arguments": input, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": "00000000", "method": "tools/call", "params": params}
