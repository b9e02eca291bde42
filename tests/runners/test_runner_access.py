"""Who may connect as a runner, and which sessions it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.runners.wire_runner import PATIENT, connected, new_session, opened
from tests.serving import Served, ask, frames_in, serving, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, keys=True, runners={**PATIENT, "owner_connections": 2}) as hub:
        yield hub


async def key(hub: Served, owner: str, *scopes: str) -> str:
    _, secret = await hub.hub.store.keys.create(owner, scopes=list(scopes))
    return secret


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parity
async def test_the_chat_of_a_session_refuses_strangers(hub: Served) -> None:
    ada, bob = await key(hub, "ada", "chat"), await key(hub, "bob", "chat")
    spoke = await key(hub, "ada", "spoke")
    await new_session(hub, "s", **bearer(ada))
    url, body = "/api/sessions/s/chat", ask("hi")
    assert (await hub.http.post(url, json=body)).status_code == 401
    assert (await hub.http.post(url, json=body, headers=bearer(spoke))).status_code == 403
    assert (await hub.http.get("/api/sessions/s", headers=bearer(bob))).status_code == 404
    assert (await hub.http.post("/api/sessions/s/stop", headers=bearer(bob))).status_code == 404


@pytest.mark.parametrize(("scopes", "status"), [(["chat"], 403), ([], 403), (None, 401)])
async def test_a_key_without_the_scope_is_refused(hub: Served, scopes: list[str] | None, status: int) -> None:
    secret = "dgm_unknown" if scopes is None else await key(hub, "ada", *scopes)
    with pytest.raises(InvalidStatus) as caught:
        async with opened(hub, key=secret):
            pass
    assert caught.value.response.status_code == status


async def test_a_key_may_come_in_the_hello(hub: Served) -> None:
    chat, runner_key = await key(hub, "ada", "chat"), await key(hub, "ada", "runner")
    await new_session(hub, "s", **bearer(chat))
    async with connected(hub, "s", hello={"token": runner_key}) as runner:
        assert runner.welcome["sessions"][0]["sessionId"] == "s"
    async with opened(hub) as stranger:
        await stranger.send({"type": "hello", "protocol": 1, "sessions": ["s"]})
        assert (await stranger.next("refused"))["error"]["code"] == "unauthorized"


async def test_a_runner_serves_sessions_of_its_owner_only(hub: Served) -> None:
    chat = await key(hub, "ada", "chat")
    await new_session(hub, "s", **bearer(chat))
    async with opened(hub, key=await key(hub, "bob", "runner")) as runner:
        await runner.send({"type": "hello", "protocol": 1, "sessions": ["s", "none"]})
        assert (await runner.next("refused"))["error"]["code"] == "not_found"
    async with connected(hub, "s", "none", key=await key(hub, "ada", "runner")) as runner:
        assert [each["sessionId"] for each in runner.welcome["sessions"]] == ["s"]
        assert [each["sessionId"] for each in runner.welcome["refused"]] == ["none"]


async def test_another_key_is_refused_while_a_runner_serves_the_session(hub: Served) -> None:
    chat = await key(hub, "ada", "chat")
    await new_session(hub, "s", **bearer(chat))
    first, second = await key(hub, "ada", "runner"), await key(hub, "ada", "runner")
    async with connected(hub, "s", key=first) as runner:
        async with opened(hub, key=second) as other:
            await other.send({"type": "hello", "protocol": 1, "sessions": ["s"]})
            assert (await other.next("refused"))["error"]["code"] == "conflict"
        posted = asyncio.create_task(
            hub.http.post("/api/sessions/s/chat", json=ask("hi"), headers=bearer(chat))
        )
        turn = await runner.prompt()
        await turn.answer("mine")
        assert text_of(frames_in((await posted).text)) == "mine"


async def test_another_version_is_refused(hub: Served) -> None:
    async with opened(hub, key=await key(hub, "ada", "runner")) as runner:
        await runner.send({"type": "hello", "protocol": 7, "sessions": []})
        assert (await runner.next("refused"))["error"]["code"] == "bad_version"


async def test_an_owner_has_a_limit_of_connections(hub: Served) -> None:
    secret = await key(hub, "ada", "runner")
    async with connected(hub, key=secret), connected(hub, key=secret), opened(hub, key=secret) as third:
        await third.send({"type": "hello", "protocol": 1, "sessions": []})
        assert (await third.next("refused"))["error"]["code"] == "rate_limited"


async def test_a_revoked_key_ends_the_connection(hub: Served) -> None:
    stored, secret = await hub.hub.store.keys.create("ada", scopes=["runner"])
    async with connected(hub, key=secret) as runner:
        await hub.hub.store.keys.revoke(stored.id)
        assert (await runner.next("bye"))["code"] == "unauthorized"


async def test_sessions_join_and_leave_a_connection(hub: Served) -> None:
    chat, secret = await key(hub, "ada", "chat"), await key(hub, "ada", "runner")
    async with connected(hub, key=secret) as runner:
        await new_session(hub, "s", **bearer(chat))
        await runner.send({"type": "join", "sessions": ["s"]})
        assert [each["sessionId"] for each in (await runner.next("welcome"))["sessions"]] == ["s"]
        posted = asyncio.create_task(
            hub.http.post("/api/sessions/s/chat", json=ask("hi"), headers=bearer(chat))
        )
        turn = await runner.prompt()
        await turn.answer("joined")
        assert text_of(frames_in((await posted).text)) == "joined"
        await runner.send({"type": "leave", "sessions": ["s"]})
        await runner.send({"type": "ping", "n": 5})
        assert (await runner.next("pong"))["n"] == 5
        assert hub.hub.runners.status()[0]["sessions"] == []


async def test_who_answers_in_a_session_cannot_be_changed(hub: Served) -> None:
    chat = await key(hub, "ada", "chat")
    await new_session(hub, "s", **bearer(chat))
    changed = await hub.http.patch("/api/sessions/s", json={"runner": False}, headers=bearer(chat))
    assert changed.status_code == 400
    assert (await hub.http.get("/api/sessions/s", headers=bearer(chat))).json()["runner"] is True
