"""Ids of sessions that clients choose belong to their owner: two owners use the same without meeting."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx2
import pytest

from dragoman.session_ids import hub_session_id
from tests.server.openapi import DOCUMENT
from tests.serving import Served, ask, frames_in, serving, text_of, types
from tests.store.samples import converse
from tests.waiting import LIMIT

Headers = dict[str, str]
SUM = {"name": "math.calculate", "input": {"expression": "6 * 7"}}
TURN: list[dict[str, Any]] = [{"tools": [SUM]}, {"text": "It is 42."}]
PINNED: dict[str, Any] = {"pinned": ["math.calculate"]}
ANNS = hub_session_id("s", owner="ann")
RANDOM = re.compile(r"(ses|run|msg|call|tc|t)_[\w-]+|\d+\.\d+(e-\d+)?|\"(bob|eve)\"")


async def key_of(hub: Served, owner: str, *scopes: str) -> Headers:
    _, secret = await hub.hub.store.keys.create(owner, scopes=frozenset(scopes))
    return {"authorization": f"Bearer {secret}"}


async def get(hub: Served, path: str, headers: Headers) -> Any:
    response = await hub.http.get(path, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


NEW = {"messages": ask("hello")["messages"]}
REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/api/sessions/{id}", None),
    ("GET", "/api/sessions/{id}?owner=ann", None),
    ("PATCH", "/api/sessions/{id}", {"title": "Mine"}),
    ("DELETE", "/api/sessions/{id}", None),
    ("GET", "/api/sessions/{id}/messages", None),
    ("GET", "/api/chat/{id}/stream", None),
    ("GET", "/api/sessions/{id}/stream", None),
    ("GET", "/api/sessions/{id}/chat/stream", None),
    ("GET", "/api/sessions/{id}/chat/{same}/stream", None),
    ("POST", "/api/chat/{id}/stop", None),
    ("POST", "/api/sessions/{id}/stop", None),
    ("POST", "/api/sessions/{id}/chat/stop", None),
    ("GET", "/api/sessions?before={id}", None),
    ("GET", "/api/search?q=hello&session={id}", None),
    ("GET", "/api/calls?session={id}", None),
    ("GET", "/api/usage?session={id}", None),
    ("GET", "/api/usage?session_id={id}&group_by=session", None),
    ("POST", "/api/sessions/{id}/events", {"name": "diff", "data": {}}),
    ("POST", "/api/sessions/{id}/fork", {"messageId": "m"}),
    ("POST", "/api/sessions/{id}/rewind", {"messageId": "m"}),
    ("POST", "/api/sessions/{id}/branch", {"messageId": "m"}),
    ("GET", "/api/sessions/{id}/grants", None),
    ("PUT", "/api/sessions/{id}/grants", {"owner": "eve", "role": "read"}),
    ("DELETE", "/api/sessions/{id}/grants?owner=eve", None),
    ("GET", "/api/sessions/{id}/audit", None),
    ("GET", "/api/sessions/{id}/queue", None),
    ("DELETE", "/api/sessions/{id}/queue/{queued}", None),
    ("GET", "/api/sessions/{id}/export", None),
    ("GET", "/api/sessions/{id}/share", None),
    ("POST", "/api/sessions/{id}/share", {}),
    ("DELETE", "/api/sessions/{id}/share/{share}", None),
    ("POST", "/api/sessions", {"id": "{id}"}),
    ("POST", "/api/sessions/{id}/chat", NEW),
    ("POST", "/api/chat", {"id": "{id}", **NEW}),
]


def test_every_path_with_a_session_is_among_the_requests() -> None:
    documented = {
        (method.upper(), spelling)
        for path, item in DOCUMENT["paths"].items()
        for method in item.keys() & {"get", "post", "patch", "put", "delete"}
        for spelling in (path, *item.get("x-aliases", ()))
    }
    with_session = {each for each in documented if each[1].startswith(("/api/sessions/{id}", "/api/chat"))}
    assert with_session <= {(method, path.partition("?")[0]) for method, path, _ in REQUESTS}


async def send(hub: Served, request: tuple[str, str, Any], id: str, headers: Headers) -> httpx2.Response:
    method, path, body = request
    if body is not None and "id" in body:
        body = {**body, "id": id}
    return await hub.http.request(
        method, path.replace("{id}", id).replace("{same}", id), json=body, headers=headers
    )


def outcome(response: httpx2.Response) -> tuple[int, list[str], str]:
    """Status, names of the headers, and the body without what is random or the caller's own."""
    names = sorted(name for name in response.headers if name != "date")
    return response.status_code, names, RANDOM.sub("?", response.text)


@pytest.mark.promise("a-key-sees-its-own-sessions")
@pytest.mark.parametrize("id", ["s", ANNS, "old"])
async def test_a_foreign_session_is_answered_like_an_unknown_one_by_every_endpoint(
    tmp_path: Path, id: str
) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        ann, bob, eve = [await key_of(hub, owner) for owner in ("ann", "bob", "eve")]
        unknown = [outcome(await send(hub, request, id, bob)) for request in REQUESTS]
        if id in ("s", ANNS):
            await hub.post(ask("hello"), headers=ann)
        else:
            await converse(hub.hub.store, "hello", session_id=id, owner="ann")
        before = await get(hub, f"/api/sessions/{id}/messages", ann)
        foreign = [outcome(await send(hub, request, id, eve)) for request in REQUESTS]
        for request, first, second in zip(REQUESTS, unknown, foreign, strict=True):
            assert (request, second) == (request, first)
        assert [status for status, *_ in foreign].count(200) >= 4  # it chats there, in a session of its own
        assert await get(hub, f"/api/sessions/{id}/messages", ann) == before
        mine = (await get(hub, "/api/sessions", eve))["sessions"]
        assert [(each["id"], each["owner"]) for each in mine] == [(id, "eve")]


async def test_two_owners_use_the_same_id_at_once_and_nothing_meets(tmp_path: Path) -> None:
    async with serving(tmp_path, TURN, play="turns", keys=True, **PINNED) as hub:
        keys = {owner: await key_of(hub, owner) for owner in ("ann", "bob")}
        answers = await asyncio.gather(
            *(hub.post(ask(f"I am {owner}"), headers=headers) for owner, headers in keys.items())
        )
        assert [text_of(frames) for frames in answers] == ["It is 42."] * 2
        ids = set()
        for owner, headers in keys.items():
            [session] = (await get(hub, "/api/sessions", headers))["sessions"]
            assert (session["id"], session["owner"]) == ("s", owner)
            ids.add(session["hubId"])
            for spelling in ("s", session["hubId"]):
                assert await get(hub, f"/api/sessions/{spelling}", headers) == session
                messages = (await get(hub, f"/api/sessions/{spelling}/messages", headers))["messages"]
                assert messages[0]["parts"][0]["text"] == f"I am {owner}"
                assert len(messages) == 2
                found = (await get(hub, f"/api/search?q=I+am&session={spelling}", headers))["found"]
                assert [(each["sessionId"], each["owner"]) for each in found] == [("s", owner)]
                listed = (await get(hub, f"/api/calls?session={spelling}", headers))["calls"]
                assert [(each["sessionId"], each["owner"]) for each in listed] == [("s", owner)]
                assert (await get(hub, f"/api/calls/{listed[0]['id']}", headers))["sessionId"] == "s"
                used = await get(hub, f"/api/usage?session={spelling}", headers)
                assert [(each["sessionId"], each["owner"]) for each in used["rows"]] == [("s", owner)] * 2
                groups = await get(hub, f"/api/usage?session={spelling}&group_by=session", headers)
                assert [each["group"] for each in groups["rows"]] == [{"session_id": "s"}]
        assert len(ids) == 2
        assert (await hub.http.delete("/api/sessions/s", headers=keys["ann"])).status_code == 204
        assert (await hub.http.get("/api/sessions/s", headers=keys["ann"])).status_code == 404
        assert len((await get(hub, "/api/sessions/s/messages", keys["bob"]))["messages"]) == 2
        used = await get(hub, "/api/usage?session=s", keys["ann"])
        assert [each["sessionId"] for each in used["rows"]] == ["s"] * 2  # also after the session is gone


async def test_a_session_may_have_an_id_in_any_script(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "hi"}], play="turns") as hub:
        for id in ("чат", "a🙂", "é", "中 文"):
            first = await hub.http.post("/api/chat", json=ask("x", session=id))
            again = await hub.http.post("/api/chat", json=ask("x", session=id))
            message = {"id": "u", "role": "user", "content": "y"}
            body = {"threadId": id, "runId": "r", "messages": [message], "tools": [], "context": []}
            ag_ui = await hub.http.post("/agui/default", json=body)
            for response in (first, again, ag_ui):
                assert response.status_code == 200, response.text
                assert unquote(response.headers["x-dragoman-session"]) == id
            assert len(await hub.messages(quote(id))) == 4


async def test_each_owner_follows_and_stops_its_own_run_of_the_same_id(tmp_path: Path) -> None:
    steps = [{"text": [f"word{number} " for number in range(2_000)], "delay": 0.01}]
    async with serving(tmp_path, steps, play="turns", keys=True, disconnect_grace="never") as hub:
        keys = {owner: await key_of(hub, owner) for owner in ("ann", "bob")}
        runs: dict[str, str] = {}
        async with asyncio.TaskGroup() as group:
            for owner, headers in keys.items():
                async with hub.http.stream("POST", "/api/chat", json=ask(owner), headers=headers) as response:
                    assert response.status_code == 200
                    runs[owner] = response.headers["x-dragoman-run"]
                    assert response.headers["x-dragoman-session"] == "s"
            [session] = (await get(hub, "/api/sessions", keys["bob"]))["sessions"]
            again = ask("more", session=session["hubId"])
            path = f"/api/chat/{session['hubId']}/stream"
            following = group.create_task(hub.http.get(path, headers=keys["bob"]))
            busy = group.create_task(hub.http.post("/api/chat", json=again, headers=keys["bob"]))
            stopped = await hub.http.post("/api/chat/s/stop", headers=keys["ann"])
            assert stopped.json() == {"stopped": True, "runId": runs["ann"]}
            assert (await get(hub, "/api/sessions/s", keys["bob"]))["running"]
            refused = await busy
            assert (refused.status_code, refused.json()["error"]["runId"]) == (409, runs["bob"])
            assert "session 's'" in refused.json()["error"]["message"]
            stopped = await hub.http.post(f"/api/chat/{session['hubId']}/stop", headers=keys["bob"])
            assert stopped.json() == {"stopped": True, "runId": runs["bob"]}
        assert following.result().headers["x-dragoman-run"] == runs["bob"]
        assert "finish" in types(frames_in(following.result().text))


@pytest.mark.parametrize("id", ["old", "ses_made_by_the_hub"])
async def test_a_session_with_one_id_for_both_goes_on_under_it(tmp_path: Path, id: str) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        ann, bob = [await key_of(hub, owner) for owner in ("ann", "bob")]
        await converse(hub.hub.store, "before", session_id=id, owner="ann")
        for spelling in (id, hub_session_id(id, owner="ann")):
            assert text_of(await hub.post(ask(f"to {spelling}", session=spelling), headers=ann)) == "Hi."
            assert (
                await hub.http.post("/api/sessions", json={"id": spelling}, headers=ann)
            ).status_code == 409
            found = (await get(hub, f"/api/search?q=before&session={spelling}", ann))["found"]
            assert [each["sessionId"] for each in found] == [id]
            used = (await get(hub, f"/api/usage?session={spelling}", ann))["rows"]
            assert {each["sessionId"] for each in used} == {id}
        [session] = (await get(hub, "/api/sessions", ann))["sessions"]
        assert (session["id"], session["hubId"]) == (id, id)
        assert text_of(await hub.post(ask("mine", session=id), headers=bob)) == "Hi."
        assert len((await get(hub, f"/api/sessions/{id}/messages", bob))["messages"]) == 2
        assert len((await get(hub, f"/api/sessions/{id}/messages", ann))["messages"]) == 6


READS = [
    path
    for method, path, _ in REQUESTS
    if method == "GET" and not any(word in path for word in ("stream", "owner", "/export", "/share"))
]


async def test_an_admin_reads_by_the_hubs_id_by_owner_or_by_an_id_that_only_one_owner_uses(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, TURN, play="turns", keys=True, **PINNED) as hub:
        root = await key_of(hub, "root", "chat", "admin")
        for owner in ("ann", "bob"):
            await hub.post(ask("hello"), headers=await key_of(hub, owner))
            if owner == "ann":
                theirs = await get(hub, "/api/sessions/s", root)
                assert (theirs["id"], theirs["hubId"], theirs["owner"]) == (ANNS, ANNS, "ann")
        for path in READS:
            refused = await hub.http.get(path.replace("{id}", "s"), headers=root)
            assert refused.status_code == 400
            assert ANNS in refused.json()["error"]["message"]
            await get(hub, path.replace("{id}", ANNS), root)
            await get(hub, f"{path.replace('{id}', 's')}{'&' if '?' in path else '?'}owner=bob", root)
        for query in (f"session={ANNS}", "session=s&owner=ann"):
            [call] = (await get(hub, f"/api/calls?{query}", root))["calls"]
            assert (call["owner"], call["sessionId"]) == ("ann", ANNS)
            rows = (await get(hub, f"/api/usage?{query}&group_by=owner,session", root))["rows"]
            assert [each["group"] for each in rows] == [{"owner": "ann", "session_id": ANNS}]
        assert (await hub.http.delete(f"/api/sessions/{ANNS}", headers=root)).status_code == 403
        await hub.post(ask("my own"), headers=root)
        assert (await get(hub, "/api/sessions/s", root))["owner"] == "root"


ASKS: list[dict[str, Any]] = [
    {"tools": [{"name": "user_question", "input": {"text": "Which colour?"}}]},
    {"text": "I see."},
]


async def test_an_approval_names_the_session_as_its_owner_does_and_goes_on_in_it(tmp_path: Path) -> None:
    async with serving(tmp_path, ASKS, keys=True, pinned=["user.question"]) as hub:
        ann, root = await key_of(hub, "ann"), await key_of(hub, "root", "chat", "admin")
        await hub.post(ask("paint it"), headers=ann)
        [approval] = (await get(hub, "/api/approvals", ann))["approvals"]
        assert approval["sessionId"] == "s"
        assert (await get(hub, f"/api/approvals/{approval['id']}", root))["sessionId"] == ANNS
        await hub.http.post(f"/api/approvals/{approval['id']}", json={"answer": "blue"}, headers=ann)
        async with asyncio.timeout(LIMIT):
            while text_in(await get(hub, "/api/sessions/s/messages", ann)) != "I see.":
                pass
        assert len((await get(hub, "/api/sessions", ann))["sessions"]) == 1


def text_in(body: Any) -> str:
    return "".join(part.get("text", "") for part in body["messages"][-1]["parts"])


async def test_an_id_may_be_as_long_as_before_and_its_hubs_id_names_it(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns") as hub:
        long = "s" * 200
        assert text_of(await hub.chat("hello", session=long)) == "Hi."
        [session] = (await hub.http.get("/api/sessions")).json()["sessions"]
        assert text_of(await hub.chat("again", session=session["hubId"])) == "Hi."
        assert len(await hub.messages(long)) == 4
        assert (await hub.http.post("/api/chat", json=ask("x", session=f"{long}s"))).status_code == 400
        assert (await hub.http.post("/api/sessions", json={"id": f"{long}s"})).status_code == 400
