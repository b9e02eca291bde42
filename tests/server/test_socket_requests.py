"""Requests on a session's socket that fail, that are too many, and about what is another session's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.server.sockets.session_socket import MAX_REQUESTS
from tests.server.test_grants import say
from tests.server.test_participants import ASKING, CLOCK
from tests.server.test_session_owners import key_of
from tests.server.test_sockets import SocketClient, connected, create
from tests.serving import Served, serving


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def opened(tmp_path: Path, *steps: dict[str, Any]) -> AsyncIterator[tuple[Served, SocketClient]]:
    async with serving(tmp_path, steps) as hub:
        await create(hub)
        async with connected(hub) as client:
            await client.until("init")
            yield hub, client


async def error_of(client: SocketClient, request_id: str) -> dict[str, Any]:
    """The error that a request is answered with."""
    last = (await client.until("error"))[-1]
    assert last["requestId"] == request_id
    error: dict[str, Any] = last["error"]
    return error


async def test_a_request_that_fails_by_an_internal_error_is_answered_and_the_socket_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-not-to-be-seen"

    async def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(secret)

    async with opened(tmp_path, {"text": "Good day."}) as (hub, client):
        start = hub.hub.runs.start_run
        monkeypatch.setattr(hub.hub.runs, "start_run", fail)
        await client.send("prompt", text="hi", requestId="r1")
        error = await error_of(client, "r1")
        assert (error["code"], secret in str(error)) == ("internal", False)
        monkeypatch.setattr(hub.hub.runs, "start_run", start)
        await client.send("prompt", text="hi", requestId="r2")
        frames = await client.until("message.updated")
        assert "r2" in [frame.get("requestId") for frame in frames if frame["type"] == "done"]


async def test_a_request_too_many_is_answered_as_itself_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = asyncio.Event()

    async def wait(*_: Any, **__: Any) -> Any:
        await released.wait()
        raise RuntimeError("released")

    async with opened(tmp_path) as (hub, client):
        monkeypatch.setattr(hub.hub.runs, "start_run", wait)
        for number in range(MAX_REQUESTS + 25):
            await client.send("prompt", text="hi", requestId=f"r{number}")
        for number in range(MAX_REQUESTS, MAX_REQUESTS + 25):
            assert (await error_of(client, f"r{number}"))["code"] == "rate_limited"
        released.set()
        assert (await client.until("error"))[-1]["error"]["code"] == "internal"
        await client.send("ping")
        await client.until("pong")


async def test_a_socket_answers_no_approval_of_another_session_and_says_nothing_of_it(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, CLOCK[:1], keys=True, **ASKING) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        await say(hub, ann, "what time is it?", "s")
        listed = await hub.http.get("/api/approvals?status=pending", headers=ann)
        [approval] = listed.json()["approvals"]
        await hub.http.post("/api/sessions", json={"id": "own"}, headers=bob)
        async with connected(hub, "own", **bob) as client:
            await client.until("init")
            texts = []
            for id in (approval["id"], "apr_unknown"):
                for fields in ({"approved": True}, {"answer": "x"}, {}):
                    await client.send("answer", approvalId=id, requestId="a", **fields)
                    error = await error_of(client, "a")
                    texts.append((error["code"], error["message"].replace(id, "ID")))
            assert {code for code, _ in texts} == {"not_found"}
        pending = await hub.http.get("/api/approvals?status=pending", headers=ann)
        assert len(pending.json()["approvals"]) == 1
