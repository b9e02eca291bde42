"""What one host alone has: an old MCP session is unknown at another, and its client begins anew there."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.hosts.conftest import HostCluster
from tests.serving import Served, ask
from tests.waiting import until

VERSION = "2025-06-18"
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION}


async def send(host: Served, method: str, params: Any, **headers: str) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await host.http.post("/mcp", json=body, headers={**HEADERS, **headers})


async def test_an_mcp_session_of_another_host_is_a_404_so_that_the_client_begins_anew(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2)
    client = {"name": "test", "version": "1"}
    hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
    session = (await send(first, "initialize", hello)).headers["mcp-session-id"]
    assert (await send(second, "tools/list", {}, **{"mcp-session-id": session})).status_code == 404
    assert (await send(second, "initialize", hello)).status_code == 200


async def test_a_key_that_is_revoked_through_one_host_ends_its_run_at_another(hosts: HostCluster) -> None:
    steps = [{"text": ["word "] * 2_000, "delay": 0.05}]
    first, second = await hosts.open(2, steps=steps, keys=True)
    key, secret = await first.hub.store.keys.create("ann")
    chat = first.http.post("/api/chat", json=ask("hi"), headers={"x-api-key": secret})
    running = asyncio.ensure_future(chat)
    await until(lambda: first.hub.runs.active_count == 1)
    await second.hub.store.keys.revoke(key.id)
    await until(lambda: first.hub.runs.active_count == 0)
    await asyncio.wait([running])
    assert hosts.execute("SELECT status FROM runs") != [("running",)]
