"""Clients that cancel or disconnect end the calls that they made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client import Client

from tests.mcp.server.hub import BOTH, MODERN, Hub, batch, body, post, served
from tests.waiting import until

pytestmark = pytest.mark.anyio
LIMIT = 120.0
HANG: dict[str, Any] = {"name": "hub_call", "arguments": batch("time.hang")}
PINNED: dict[str, Any] = {"name": "time_hang", "arguments": {}}


@pytest.mark.promise("mcp-abort")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_cancels_ends_the_call_and_all_below_it(mode: str) -> None:
    async with served() as hub, Client(hub.url, mode=mode) as client:
        call = asyncio.create_task(client.call_tool("hub_call", batch("time.hang")))
        await waited(hub.hanging)
        call.cancel()
        await waited(hub.stopped)
        await until_ended(hub)
        assert [entry.status for entry in entries(hub)] == ["aborted", "aborted"]
        assert (await client.call_tool("hub_call", batch("math.add", a=1, b=2))).is_error is False


@pytest.mark.parametrize("call", [HANG, PINNED], ids=["short way", "through the SDK"])
@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
async def test_a_connection_that_closes_ends_the_call_that_it_waits_for(
    call: dict[str, Any], modern: bool
) -> None:
    async with served(pinned=["time.hang"]) as hub:
        async with asking(hub, body("tools/call", modern=modern, **call)) as answering:
            await waited(hub.hanging)
            answering.cancel()
        await waited(hub.stopped)
        await until_ended(hub)
        assert {entry.status for entry in entries(hub)} == {"aborted"}


async def test_a_session_s_connection_that_closes_ends_its_call() -> None:
    async with served() as hub:
        session = await opened(hub)
        message = body("tools/call", id=7, **HANG)
        async with asking(hub, message, **{"mcp-session-id": session}) as answering:
            await waited(hub.hanging)
            answering.cancel()
        await waited(hub.stopped)


async def test_a_session_cancels_by_the_request_s_id() -> None:
    async with served() as hub:
        session = await opened(hub)
        message = body("tools/call", id=7, **HANG)
        async with asking(hub, message, **{"mcp-session-id": session}) as answering:
            await waited(hub.hanging)
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            await post(hub, note, mcp_session_id=session)
            await waited(hub.stopped)
            answering.cancel()


@pytest.mark.parametrize("id", [7, "7"])
async def test_a_request_with_the_id_of_one_in_progress_is_refused(id: int | str) -> None:
    async with served() as hub:
        session = await opened(hub)
        async with asking(hub, body("tools/call", id=7, **HANG), **{"mcp-session-id": session}) as answering:
            await waited(hub.hanging)
            again = await post(hub, {**body("tools/call", **HANG), "id": id}, mcp_session_id=session)
            assert (again.status_code, again.json()["error"]["data"]["code"]) == (409, "conflict")
            reply: dict[str, Any] = {
                "jsonrpc": "2.0",
                "id": id,
                "result": {},
            }  # an answer to a request of the hub
            assert (await post(hub, reply, mcp_session_id=session)).status_code == 202
            answering.cancel()
        await waited(hub.stopped)
        assert (await post(hub, body("ping", id=7), mcp_session_id=session)).status_code == 200


@pytest.mark.parametrize("modern", [True, False])
async def test_progress_comes_as_a_stream_before_the_result(modern: bool) -> None:
    params: dict[str, Any] = {
        "name": "hub_call",
        "arguments": batch("time.count"),
        "_meta": {"progressToken": "p"},
    }
    async with served() as hub:
        answer = await post(hub, body("tools/call", modern=modern, **params))
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    *messages, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert answer.headers["content-type"] == "text/event-stream"
    assert {note["method"] for note in messages} == {"notifications/progress"}
    assert [note["params"]["progress"] for note in messages] == list(range(1, len(messages) + 1))
    assert {note["params"]["progressToken"] for note in messages} == {"p"}
    assert last["result"]["structuredContent"] == {"result": [{"success": True, "result": "counted"}]}


@pytest.mark.parametrize("modern", [True, False])
async def test_a_hub_that_closes_tells_who_waits(modern: bool) -> None:
    async with served() as hub, asking(hub, body("tools/call", modern=modern, **HANG)) as answering:
        await waited(hub.hanging)
        await hub.door.close()
        answer = await answering
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32603)
        assert hub.stopped.is_set()


async def test_a_hub_that_closes_ends_the_calls_of_its_sessions() -> None:
    async with served() as hub:
        session = await opened(hub)
        async with asking(hub, body("tools/call", id=7, **HANG), **{"mcp-session-id": session}) as answering:
            await waited(hub.hanging)
            await hub.door.close()
            await waited(hub.stopped)
            answering.cancel()


@asynccontextmanager
async def asking(hub: Hub, message: dict[str, Any], **headers: str) -> AsyncIterator[asyncio.Task[Any]]:
    """A request under way; cancelling its task closes the connection."""
    reply = {"accept": BOTH, **headers}
    params = message["params"]
    if "io.modelcontextprotocol/protocolVersion" in params["_meta"]:
        reply |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": params["name"]}
    async with httpx2.AsyncClient(trust_env=False, timeout=120) as http:
        task = asyncio.create_task(http.post(hub.url, json=message, headers=reply))
        yield task
        task.cancel()
        await asyncio.wait([task])


async def opened(hub: Hub) -> str:
    """The id of a new session."""
    hello = body(
        "initialize",
        protocolVersion="2025-11-25",
        capabilities={},
        clientInfo={"name": "test", "version": "1"},
    )
    session: str = (await post(hub, hello)).headers["mcp-session-id"]
    await post(hub, {"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=session)
    return session


async def waited(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), LIMIT)


async def until_ended(hub: Hub) -> None:
    """Wait until no call of the ledger runs."""
    await until(lambda: not any(entry.status == "running" for entry in entries(hub)))


def entries(hub: Hub) -> list[Any]:
    return list(hub.ledger._entries.values())
