"""How many MCP sessions one owner and the whole hub may have open, and which session makes room."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from dragoman.errors import LimitReached, Unavailable
from dragoman.identity import Identity
from dragoman.mcp.server.limits import McpLimits
from dragoman.mcp.server.open_sessions import OpenSessions
from dragoman.revocable_work import ActiveWork
from tests.mcp.server.hub import Hub, batch, body, post, served

pytestmark = pytest.mark.anyio
INITIALIZE = body(
    "initialize",
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)
HANG: dict[str, Any] = {"name": "hub_call", "arguments": batch("time.hang")}


async def open_session(hub: Hub, key: str = "me") -> str:
    response = await post(hub, INITIALIZE, authorization=f"Bearer {key}")
    assert response.status_code == 200, response.text
    return response.headers["mcp-session-id"]


async def statuses(hub: Hub, sessions: list[str], key: str = "me") -> list[int]:
    return [
        (await post(hub, body("ping"), authorization=f"Bearer {key}", mcp_session_id=session)).status_code
        for session in sessions
    ]


async def until_ended(hub: Hub) -> None:
    """Wait until the sessions that made room are closed."""
    while ending := list(hub.door._sdk_server._ending):
        await asyncio.wait(ending)


async def test_the_longest_unused_session_of_an_owner_makes_room_for_its_next() -> None:
    async with served(keys=True, limits=McpLimits(sessions=9, owner_sessions=3)) as hub:
        theirs = await open_session(hub, "other")
        first, second, third = [await open_session(hub) for _ in range(3)]
        assert await statuses(hub, [first]) == [200]  # the second is unused for the longest time now
        fourth = await open_session(hub)
        await until_ended(hub)
        assert await statuses(hub, [first, second, third, fourth]) == [200, 404, 200, 200]
        assert await statuses(hub, [theirs], "other") == [200]


async def test_a_client_that_opens_sessions_without_end_takes_only_its_share() -> None:
    async with served(keys=True, limits=McpLimits(sessions=6, owner_sessions=4)) as hub:
        theirs = [await open_session(hub, "other") for _ in range(2)]
        for _ in range(12):
            await open_session(hub)
        await until_ended(hub)
        sdk = await hub.door._sdk_server._started_sessions()
        assert len(sdk._stateful._server_instances) == 6
        assert await statuses(hub, theirs, "other") == [200, 200]


async def test_a_full_hub_takes_room_from_the_owner_with_the_most_sessions() -> None:
    async with served(keys=True, limits=McpLimits(sessions=4, owner_sessions=3)) as hub:
        ours = [await open_session(hub) for _ in range(3)]
        theirs = await open_session(hub, "other")
        await open_session(hub, "third")
        await until_ended(hub)
        assert await statuses(hub, ours) == [404, 200, 200]
        assert await statuses(hub, [theirs], "other") == [200]


async def test_a_session_with_a_call_in_progress_does_not_make_room() -> None:
    async with served(keys=True, limits=McpLimits(sessions=2, owner_sessions=1)) as hub:
        session = await open_session(hub)
        call = asyncio.create_task(
            post(hub, body("tools/call", **HANG), authorization="Bearer me", mcp_session_id=session)
        )
        await hub.hanging.wait()
        refused = await post(hub, INITIALIZE, authorization="Bearer me")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "10"
        error = refused.json()["error"]
        assert error["data"]["code"] == "rate_limit_exceeded"
        assert "all 1 MCP sessions of this owner" in error["message"]
        assert "mcp.owner_sessions" in error["data"]["hint"]
        await open_session(hub, "other")
        call.cancel()
        await asyncio.wait([call])
        await hub.stopped.wait()


@pytest.mark.parametrize(
    "request_after",
    [
        {"key": "me", "message": body("tools/eat", modern=True)},  # 404 for the method, not for the session
        {"key": "other", "message": body("ping")},  # 404 for another owner
        {"key": "me", "message": b"{"},
        {"key": "other", "method": "DELETE"},
        {"key": "me", "method": "DELETE", "mcp-protocol-version": "2026-07-28"},
        {"key": "me", "method": "GET", "accept": "text/html"},
    ],
)
async def test_no_answer_about_something_else_takes_a_session_out_of_the_count(
    request_after: dict[str, Any],
) -> None:
    headers = dict(request_after)
    key, method = headers.pop("key"), headers.pop("method", "POST")
    message = headers.pop("message", None)
    async with served(keys=True, limits=McpLimits(sessions=9, owner_sessions=2)) as hub:
        first, _ = [await open_session(hub) for _ in range(2)]
        headers |= {"authorization": f"Bearer {key}", "mcp-session-id": first}
        if method == "POST":
            await post(hub, message, **headers)
        else:
            async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
                await http.request(method, hub.url, headers=headers)
        assert len(hub.door._sdk_server.sessions) == 2
        await open_session(hub)
        await until_ended(hub)
        sdk = await hub.door._sdk_server._started_sessions()
        assert len(sdk._stateful._server_instances) == len(hub.door._sdk_server.sessions) == 2


async def test_a_request_that_opens_no_session_takes_none() -> None:
    async with served(limits=McpLimits(sessions=1, owner_sessions=1)) as hub:
        session = await open_session(hub)
        for message in (b'{"initialize"', body("tools/list", cursor="initialize")):
            await post(hub, message, mcp_protocol_version="2025-11-25")
        await until_ended(hub)
        assert len(hub.door._sdk_server.sessions) == 1
        assert await statuses(hub, [session]) == [200]  # it made no room


ME, OTHER = Identity(owner="me"), Identity(owner="other")


def make_sessions(clock: list[float], ended: list[str], **limits: int) -> OpenSessions:
    return OpenSessions(
        ActiveWork(),
        end=lambda session_id, _: ended.append(session_id),
        limits=McpLimits(**limits, idle=60.0),
        clock=lambda: clock[0],
    )


def add(sessions: OpenSessions, session_id: str, identity: Identity) -> None:
    with sessions.open(identity) as opened:
        opened(session_id)


async def test_sessions_unused_for_too_long_are_not_counted() -> None:
    clock, ended = [0.0], list[str]()
    sessions = make_sessions(clock, ended, sessions=3, owner_sessions=2)
    add(sessions, "a", OTHER)
    clock[0] = 61.0
    add(sessions, "b", ME)
    add(sessions, "c", ME)
    add(sessions, "d", OTHER)
    assert ended == ["a"]
    assert len(sessions) == 3


async def test_a_hub_whose_sessions_all_have_requests_refuses_with_the_reason() -> None:
    sessions = make_sessions([0.0], [], sessions=2, owner_sessions=2)
    add(sessions, "a", ME)
    with (
        sessions.use("a", ME),
        sessions.open(ME),
        pytest.raises(Unavailable, match="all 2 MCP sessions of this hub"),
        sessions.open(OTHER),
    ):
        pass
    with (
        sessions.use("a", ME),
        sessions.open(ME),
        pytest.raises(LimitReached),
        sessions.open(ME),
    ):
        pass
