"""Sessions that are shared: what each role allows, what is open when a grant is removed, who did what."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman.runs.run_queue import RunQueue
from dragoman.session_ids import hub_session_id
from tests.server.test_events import following, names
from tests.server.test_session_owners import Headers, get, key_of
from tests.serving import Served, ask, frames_in, serving, text_of
from tests.waiting import LIMIT, until

SESSION = hub_session_id("s", owner="ann")
TURNS: list[dict[str, Any]] = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
SLOW: list[dict[str, Any]] = [{"text": "word " * 400, "delay": 0.01}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def grant(hub: Served, by: Headers, role: str, **grantee: str) -> None:
    response = await hub.http.put(
        f"/api/sessions/{SESSION}/grants", json={**grantee, "role": role}, headers=by
    )
    assert response.status_code == 200, response.text


async def say(hub: Served, by: Headers, text: str, session: str = SESSION) -> Any:
    return await hub.http.post("/api/chat", json=ask(text, session=session), headers=by)


async def status(hub: Served, method: str, path: str, by: Headers, body: Any = None) -> int:
    return (await hub.http.request(method, path, json=body, headers=by)).status_code


@pytest.mark.parametrize("role", [None, "read", "write", "admin"])
async def test_a_role_allows_what_it_says_and_nothing_more(tmp_path: Path, role: str | None) -> None:
    async with serving(tmp_path, TURNS, play="turns", keys=True) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        await say(hub, ann, "hello", "s")
        if role is not None:
            await grant(hub, ann, role, owner="bob")
        reads = 404 if role is None else 200
        assert await status(hub, "GET", f"/api/sessions/{SESSION}", bob) == reads
        assert await status(hub, "GET", f"/api/sessions/{SESSION}/grants", bob) == reads
        assert await status(hub, "GET", f"/api/sessions/{SESSION}/audit", bob) == reads
        assert await status(hub, "GET", f"/api/search?q=hello&session={SESSION}", bob) == reads
        seen = (await get(hub, f"/api/sessions/{SESSION}/messages", bob))["messages"]
        assert len(seen) == (0 if role is None else 2)
        stops = {None: 404, "read": 403}.get(role, 200)
        assert await status(hub, "POST", f"/api/sessions/{SESSION}/stop", bob) == stops
        changes = {None: 404, "read": 403, "write": 403}.get(role, 200)
        assert await status(hub, "PATCH", f"/api/sessions/{SESSION}", bob, {"title": "Ours"}) == changes
        put = {"owner": "eve", "role": "read"}
        assert await status(hub, "PUT", f"/api/sessions/{SESSION}/grants", bob, put) == changes
        assert await status(hub, "DELETE", f"/api/sessions/{SESSION}", bob) == (404 if role is None else 403)
        if role in ("read", "write", "admin"):
            response = await say(hub, bob, "and I?")
            assert response.status_code == (403 if role == "read" else 200)
        messages = (await get(hub, "/api/sessions/s/messages", ann))["messages"]
        assert len(messages) == (4 if role in ("write", "admin") else 2)


@pytest.mark.parametrize("settings", [{}, {"background": True, "whenBusy": "queue"}], ids=["run", "queued"])
@pytest.mark.parametrize("is_gone", [True, False], ids=["deleted", "being deleted"])
async def test_a_shared_session_that_its_owner_deletes_is_not_made_anew_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], is_gone: bool
) -> None:
    async with serving(tmp_path, TURNS, play="turns", keys=True) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        await say(hub, ann, "hello", "s")
        await grant(hub, ann, "write", owner="bob")
        sessions, store = hub.hub.store.sessions, hub.hub.store
        method = "get_shared" if is_gone else "get_own"
        find = getattr(sessions, method)

        async def find_and_delete(*arguments: Any, **named: Any) -> Any:
            found = await find(*arguments, **named)
            if is_gone:
                await store.session_deletion.delete(SESSION)
            elif found is not None:
                await store.database.write(partial(store.retention.hide, id=SESSION))
            return found

        with monkeypatch.context() as patched:
            patched.setattr(sessions, method, find_and_delete)
            patched.setattr(RunQueue, "is_full", bool(settings))
            body = {**ask("and I?", session=SESSION), **settings}
            response = await hub.http.post("/api/chat", json=body, headers=bob)
        assert response.status_code == 404, response.text
        assert await sessions.get(SESSION) is None
        assert (await say(hub, ann, "once more", "s")).status_code == 200
        assert len((await get(hub, "/api/sessions/s/messages", ann))["messages"]) == 2


async def test_a_grant_to_a_key_is_for_that_key_only(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        ann, other = await key_of(hub, "ann"), await key_of(hub, "bob")
        key, secret = await hub.hub.store.keys.create("bob")
        await hub.http.post("/api/sessions", json={"id": "s"}, headers=ann)
        await grant(hub, ann, "read", key=key.id)
        own = {"authorization": f"Bearer {secret}"}
        assert await status(hub, "GET", f"/api/sessions/{SESSION}", own) == 200
        assert await status(hub, "GET", f"/api/sessions/{SESSION}", other) == 404


async def test_who_writes_in_a_shared_session_pays_for_the_answer_and_is_named_in_the_audit_log(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, TURNS, play="turns", keys=True) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        await say(hub, ann, "hello", "s")
        await grant(hub, ann, "write", owner="bob")
        assert text_of(frames_in((await say(hub, bob, "more")).text)) == "one"
        audit = (await get(hub, "/api/sessions/s/audit", ann))["audit"]
        assert [(entry["name"], entry["actor"]) for entry in audit] == [
            ("run.started", "bob"),
            ("grant.added", "ann"),
            ("run.started", "ann"),
        ]
        runs = await hub.hub.store.runs.list(SESSION)
        assert [run.owner for run in runs] == ["ann", "bob"]


async def test_streams_that_a_grant_opened_end_when_it_is_removed(tmp_path: Path) -> None:
    async with serving(tmp_path, SLOW, keys=True) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        answering = asyncio.create_task(say(hub, ann, "hello", "s"))
        async with asyncio.timeout(LIMIT):
            await until(lambda: hub.hub.runs.get_active(SESSION))
            await grant(hub, ann, "read", owner="bob")
            async with (
                following(hub, f"?session={SESSION}", **bob) as events,
                hub.http.stream("GET", f"/api/chat/{SESSION}/stream", headers=bob) as answer,
            ):
                assert answer.status_code == 200
                removed = await hub.http.delete(f"/api/sessions/{SESSION}/grants?owner=bob", headers=ann)
                assert removed.status_code == 204
                assert "no longer shared" in (await answer.aread()).decode()
                with pytest.raises(AssertionError, match=r"no 'run\.ended'"):
                    await events.until("run.ended")
            assert text_of(frames_in((await answering).text)) == SLOW[0]["text"]
            assert await status(hub, "GET", f"/api/sessions/{SESSION}", bob) == 404


async def test_what_was_answered_to_a_participant_is_not_theirs_to_read_once_the_grant_is_removed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, [{"text": "A secret."}], keys=True) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        await hub.http.post("/api/sessions", json={"id": "s"}, headers=ann)
        await grant(hub, ann, "write", owner="bob")
        await say(hub, bob, "hello")
        [run] = await hub.hub.store.runs.list(SESSION)
        assert (await get(hub, f"/api/runs/{run.id}", bob))["message"]["parts"]
        await hub.http.delete(f"/api/sessions/{SESSION}/grants?owner=bob", headers=ann)
        paths = (f"/api/runs/{run.id}", f"/api/runs/{run.id}/prompt")
        assert [await status(hub, "GET", path, bob) for path in paths] == [404, 404]
        assert (await get(hub, "/api/runs", bob))["runs"][0]["id"] == run.id, "it is listed, without its text"


async def test_an_approval_is_answered_by_whoever_may_write_and_the_answer_goes_on_for_who_asked(
    tmp_path: Path,
) -> None:
    steps: list[dict[str, Any]] = [{"tools": [{"name": "time_now", "input": {}}]}, {"text": "It is late."}]
    config: dict[str, Any] = {"pinned": ["time.now"], "policy": [{"ask": "time.now"}]}
    async with serving(tmp_path, steps, keys=True, **config) as hub:
        ann, bob, eve = [await key_of(hub, name) for name in ("ann", "bob", "eve")]
        await say(hub, ann, "what time is it?", "s")
        approval = (await get(hub, "/api/approvals", ann))["approvals"][0]["id"]
        path = f"/api/approvals/{approval}"
        await grant(hub, ann, "read", owner="eve")
        await grant(hub, ann, "write", owner="bob")
        assert await status(hub, "POST", path, eve, {"approved": True}) == 403
        async with following(hub, "?session=s", **ann) as events:
            assert await status(hub, "POST", path, bob, {"approved": True}) == 200
            found = await events.until("run.ended")
        answered = next(event for event in found if event["name"] == "approval.answered")
        assert answered["actor"] == "bob"
        assert "run.started" in names(found)
        assert [run.owner for run in await hub.hub.store.runs.list(SESSION)] == ["ann", "ann"]


async def test_a_page_of_another_person_answers_an_approval_by_going_on_with_the_answer(
    tmp_path: Path,
) -> None:
    steps: list[dict[str, Any]] = [{"tools": [{"name": "time_now", "input": {}}]}, {"text": "It is late."}]
    config: dict[str, Any] = {"pinned": ["time.now"], "policy": [{"ask": "time.now"}]}
    async with serving(tmp_path, steps, keys=True, **config) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        await hub.http.post("/api/sessions", json={"id": "s"}, headers=ann)
        await grant(hub, ann, "write", owner="bob")
        await say(hub, bob, "what time is it?")
        messages = (await get(hub, "/api/sessions/s/messages", ann))["messages"]
        call = next(part for part in messages[-1]["parts"] if part["type"] == "tool-time_now")
        call["state"] = "approval-responded"
        call["approval"] = {**call["approval"], "approved": True}
        body = {"id": "s", "messages": messages, "trigger": "submit-message"}
        response = await hub.http.post("/api/chat", json=body, headers=ann)
        assert text_of(frames_in(response.text)) == "It is late."
        assert [run.owner for run in await hub.hub.store.runs.list(SESSION)] == ["bob", "bob"]
        audit = (await get(hub, f"/api/sessions/{SESSION}/audit", bob))["audit"]
        assert ("approval.answered", "ann") in [(entry["name"], entry["actor"]) for entry in audit]
