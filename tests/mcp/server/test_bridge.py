"""`dragoman mcp --stdio --hub` forwards between a client and a hub."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.http.transport import Transport
from dragoman.mcp.server.stdio_bridge import StdioBridge, encode_header
from tests.mcp.server.hub import Hub, batch, body, served

pytestmark = pytest.mark.anyio
LIMIT = 120.0
HELLO = body(
    "initialize",
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)


class Client:
    """The client's side of the bridge."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._output: asyncio.Queue[Any] = asyncio.Queue()

    def say(self, message: Any) -> None:
        self._lines.put_nowait(message if isinstance(message, bytes) else json.dumps(message).encode())

    def end(self) -> None:
        self._lines.put_nowait(b"")

    async def hear(self) -> Any:
        return await asyncio.wait_for(self._output.get(), LIMIT)

    async def lines(self) -> AsyncIterator[bytes]:
        while line := await self._lines.get():
            yield line

    async def write(self, line: bytes) -> None:
        assert b"\n" not in line
        self._output.put_nowait(json.loads(line))


@asynccontextmanager
async def bridged(url: str, key: str | None = None) -> AsyncIterator[Client]:
    client, transport = Client(), Transport()
    bridge = StdioBridge(url, key, transport=transport, write=client.write)
    task = asyncio.create_task(bridge.run(client.lines()))
    try:
        yield client
    finally:
        client.end()
        await asyncio.wait_for(task, LIMIT)
        await transport.close()


@pytest.mark.parametrize("modern", [True, False])
async def test_a_call_that_is_cancelled_ends_at_the_hub(modern: bool) -> None:
    async with served() as hub, bridged(hub.url) as client:
        if not modern:
            client.say(HELLO)
            assert (await client.hear())["result"]["serverInfo"]["name"] == "dragoman"
        client.say(body("tools/call", id=5, modern=modern, name="hub_call", arguments=batch("time.hang")))
        await asyncio.wait_for(hub.hanging.wait(), LIMIT)
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
        await asyncio.wait_for(hub.stopped.wait(), LIMIT)


async def test_a_client_that_ends_takes_its_calls_with_it() -> None:
    async with served() as hub:
        async with bridged(hub.url) as client:
            client.say(body("tools/call", modern=True, name="hub_call", arguments=batch("time.hang")))
            await asyncio.wait_for(hub.hanging.wait(), LIMIT)
        await asyncio.wait_for(hub.stopped.wait(), LIMIT)


async def test_a_session_that_the_hub_forgot_is_opened_anew() -> None:
    async with served() as hub, bridged(hub.url) as client:
        client.say(HELLO)
        await client.hear()
        await forget(hub)
        client.say(body("tools/list", id=2))
        answer = await client.hear()
    assert (answer["id"], len(answer["result"]["tools"])) == (2, 4)


async def forget(hub: Hub) -> None:
    """End all sessions of the hub, as a restart does."""
    sessions = await hub.door._sdk_server._started_sessions()
    for id, transport in list(sessions._stateful._server_instances.items()):
        await sessions._stateful._discard_session(id, transport)


async def test_a_refusal_names_the_request_that_it_is_for() -> None:
    async with served(keys=True) as hub, bridged(hub.url) as client:
        client.say(body("tools/list", id=9, modern=True))
        answer = await client.hear()
    assert (answer["id"], answer["error"]["data"]["code"]) == (9, "unauthorized")


async def test_the_key_goes_with_every_message() -> None:
    async with served(keys=True) as hub, bridged(hub.url, "me") as client:
        client.say(body("tools/list", modern=True))
        assert len((await client.hear())["result"]["tools"]) == 4


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b"\xff", -32700),
        (b'{"jsonrpc":"2.0","id":[1],"method":"tools/list"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}', -32600),
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":["x"]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":7}', -32600),
    ],
)
async def test_a_line_that_is_no_message_is_answered_and_the_next_is_read(line: bytes, code: int) -> None:
    async with served() as hub, bridged(hub.url) as client:
        client.say(line)
        assert (await client.hear())["error"]["code"] == code
        client.say(body("tools/list", id=2, modern=True))
        assert (await client.hear())["id"] == 2


async def test_a_cancellation_without_a_usable_id_cancels_nothing() -> None:
    async with served() as hub, bridged(hub.url) as client:
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [5]}})
        client.say(body("tools/list", id=2, modern=True))
        assert (await client.hear())["id"] == 2


async def test_a_request_whose_id_is_in_use_can_be_cancelled() -> None:
    async with served() as hub, bridged(hub.url) as client:
        hang = body("tools/call", id=5, modern=True, name="hub_call", arguments=batch("time.hang"))
        client.say(hang)
        await asyncio.wait_for(hub.hanging.wait(), LIMIT)
        client.say(body("tools/list", id=5, modern=True))
        answer = await client.hear()
        assert (answer["id"], answer["error"]["code"]) == (5, -32600)
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
        await asyncio.wait_for(hub.stopped.wait(), LIMIT)


async def test_a_hub_that_is_not_there_is_said_to_be_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        async with bridged(url) as client:
            client.say(body("tools/list", id=3, modern=True))
            answer = await client.hear()
    assert (answer["id"], answer["error"]["code"]) == (3, -32000)
    assert "no hub answers" in answer["error"]["message"]


def test_a_name_that_a_header_cannot_hold_is_encoded() -> None:
    assert encode_header("hub_call") == "hub_call"
    assert encode_header("größe") == "=?base64?Z3LDtsOfZQ==?="
