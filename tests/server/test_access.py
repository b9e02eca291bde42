"""Access over HTTP: keys, owners, sessions, body sizes, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.serving import Served, ask, serving, text_of


async def key_of(hub: Served, owner: str) -> dict[str, str]:
    """The headers of a new key."""
    _, secret = await hub.hub.store.keys.create(owner)
    return {"authorization": f"Bearer {secret}"}


@pytest.mark.promise("a-key-sees-its-own-sessions")
async def test_a_session_is_its_owners_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], keys=True) as hub:
        ann, bob = await key_of(hub, "ann"), await key_of(hub, "bob")
        assert text_of(await hub.post(ask("hello"), headers=ann)) == "Hi."
        mine = [
            ("GET", "/api/sessions/{}"),
            ("GET", "/api/sessions/{}/stream"),
            ("GET", "/api/chat/{}/stream"),
            ("POST", "/api/chat/{}/stop"),
            ("PATCH", "/api/sessions/{}"),
            ("DELETE", "/api/sessions/{}"),
            ("GET", "/api/search?q=hello&session={}"),
        ]
        for method, path in mine:
            assert (await hub.http.request(method, path.format("s"))).status_code == 401
            theirs = await hub.http.request(method, path.format("s"), headers=bob)
            unknown = await hub.http.request(method, path.format("x"), headers=bob)
            assert theirs.status_code == unknown.status_code
            assert theirs.text == unknown.text.replace("'x'", "'s'")
            assert theirs.status_code in (204, 404)
        for id in ("s", "x"):  # a session that is not there has no messages, and hers looks like one
            found = await hub.http.get(f"/api/sessions/{id}/messages", headers=bob)
            assert (found.status_code, found.json()) == (200, {"messages": []})
        assert (await hub.http.get("/api/sessions", headers=bob)).json() == {"sessions": []}
        listed = (await hub.http.get("/api/sessions", headers=ann)).json()["sessions"]
        assert [session["id"] for session in listed] == ["s"]


async def test_a_revoked_or_unknown_key_opens_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        key, secret = await hub.hub.store.keys.create("ann")
        assert (await hub.http.get("/api/sessions", headers={"x-api-key": secret})).status_code == 200
        await hub.hub.store.keys.revoke(key.id)
        other = {"authorization": f"bearer  {secret[:-1]}x"}
        refused = await hub.http.get("/api/sessions", headers=other)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert secret[:-1] not in refused.text
        assert (await hub.http.get("/api/sessions", headers={"authorization": "Basic x"})).status_code == 401


async def test_an_unknown_session_is_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        for method, path in (
            ("GET", "/api/sessions/x"),
            ("PATCH", "/api/sessions/x"),
            ("DELETE", "/api/sessions/x"),
            ("POST", "/api/chat/x/stop"),
        ):
            response = await hub.http.request(method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_a_session_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], agents={"poet": {"instructions": "Rhyme."}}) as hub:
        made = (await hub.http.post("/api/sessions", json={"title": "First", "agent": "poet"})).json()
        path = f"/api/sessions/{made['id']}"
        assert (made["title"], made["agent"], made["running"]) == ("First", "poet", False)
        changes = {"title": None, "model": "sim/other", "maxSteps": 3}
        changed = (await hub.http.patch(path, json=changes)).json()
        assert {name: changed[name] for name in changes} == changes
        assert changed["agent"] == "poet"
        assert text_of(await hub.chat("hello", session=made["id"])) == "Hi."
        pending = await hub.messages(made["id"])
        assert pending[1]["metadata"]["model"] == "sim/other"
        assert (await hub.http.delete(path)).status_code == 204
        assert (await hub.http.get(path)).status_code == 404
        assert (await hub.http.post("/api/sessions", json={"id": "a"})).status_code == 201
        assert (await hub.http.post("/api/sessions", json={"id": "a"})).status_code == 409


@pytest.mark.parametrize(
    "body",
    [
        {"agent": "nobody"},
        {"model": "nowhere/x"},
        {"model": "sim"},
        {"maxSteps": 0},
        {"maxSteps": "many"},
        {"id": ""},
        {"colour": "red"},
        [],
    ],
)
async def test_a_session_that_cannot_be_is_refused_with_a_reason(tmp_path: Path, body: Any) -> None:
    async with serving(tmp_path) as hub:
        response = await hub.http.post("/api/sessions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"]


async def test_sessions_are_listed_in_pages_the_newest_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        for number in range(5):
            await hub.http.post("/api/sessions", json={"id": f"s{number}"})
        first = (await hub.http.get("/api/sessions?limit=2")).json()["sessions"]
        rest = (await hub.http.get(f"/api/sessions?before={first[-1]['id']}")).json()["sessions"]
        assert [session["id"] for session in (*first, *rest)] == ["s4", "s3", "s2", "s1", "s0"]
        assert (await hub.http.get("/api/sessions?limit=1000")).status_code == 400


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_request"),
        (b"\xff\x00garbage", 400, "bad_request"),
        (b'{"id": "s"}', 400, "bad_request"),
        (b'{"id": "s", "messages": [{"id": "u", "role": "user", "parts": []}]}', 400, "bad_request"),
        (b"[" * 100_000, 400, "bad_request"),
        (b"x" * 20_001, 413, "too_large"),
    ],
)
async def test_garbage_gets_a_typed_error_and_leaves_nothing_behind(
    tmp_path: Path, body: bytes, status: int, code: str
) -> None:
    limit = max(len(body), 20_000) if status == 400 else 20_000
    async with serving(tmp_path, limits={"body": limit}) as hub:
        response = await hub.http.post("/api/chat", content=body)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert (await hub.http.get("/api/sessions")).json() == {"sessions": []}


async def test_a_body_without_a_length_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    async with serving(tmp_path, limits={"body": 20_000}) as hub:
        response = await hub.http.post("/api/chat", content=endless())
        assert response.status_code == 413


async def test_other_addresses_and_methods_are_reported_in_the_hubs_words(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        nowhere = await hub.http.get("/api/nothing")
        assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "not_found")
        wrong = await hub.http.put("/api/chat")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        for query in ("dialect=klingon", "sdk=5"):
            assert (await hub.http.post(f"/api/chat?{query}", json=ask("x"))).status_code == 400


async def test_health_needs_no_key(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        assert (await hub.http.get("/healthz")).json() == {"status": "ok"}
        assert (await hub.http.get("/readyz")).json() == {"status": "ready", "store": "ok"}


async def test_another_origin_is_let_in_only_when_configured(tmp_path: Path) -> None:
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    async with serving(tmp_path / "a") as hub:
        response = await hub.http.options("/api/chat", headers=headers)
        assert "access-control-allow-origin" not in response.headers
    async with serving(tmp_path / "b", cors={"origins": ["https://app.example"]}) as hub:
        response = await hub.http.options("/api/chat", headers=headers)
        assert response.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize("policy", ["allow", "deny"])
async def test_only_searches_without_a_key_may_be_left_out_of_the_recorded_calls(
    tmp_path: Path, policy: str
) -> None:
    async with serving(tmp_path, keys=True, policy=[{policy: "hub.search"}]) as hub:
        _, secret = await hub.hub.store.keys.create("ada")
        await hub.http.post("/api/console/session", json={"key": secret})
        cookie = {"cookie": "; ".join(f"{each.name}={each.value}" for each in hub.http.cookies.jar)}
        hub.http.cookies.clear()
        key, found = {"authorization": f"Bearer {secret}"}, 200 if policy == "allow" else 403
        recorded = []
        for headers, record in ((cookie, "&record=0"), (cookie, ""), (key, "&record=0"), (key, "")):
            path = f"/api/operations?q=calculate&scores=1{record}"
            answer = await hub.http.get(path, headers=headers)
            assert answer.status_code == found
            assert (answer.status_code == 403) or answer.json()["tools"][0]["tool"] == "math.calculate"
            calls = await hub.http.get("/api/calls?operation=hub.search", headers=key)
            recorded.append(len(calls.json()["calls"]))
        assert recorded == ([0, 1, 2, 3] if policy == "allow" else [1, 2, 3, 4])


async def test_operations_are_listed_found_and_called(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        listed: httpx2.Response = await hub.http.get("/api/operations?namespace=math")
        assert [operation["id"] for operation in listed.json()["operations"]] == ["math.calculate"]
        found = (await hub.http.get("/api/operations?q=calculate+sum")).json()
        assert found["tools"][0]["tool"] == "math.calculate"
        shown = (await hub.http.get("/api/operations/math.calculate")).json()
        assert shown["inputSchema"]["required"] == ["expression"]
        called = await hub.http.post("/api/operations/math.calculate/call", json={"expression": "6*7"})
        assert called.json()["success"] is True
        wrong = (await hub.http.post("/api/operations/math.calculate/call", json={"expr": 1})).json()
        assert (wrong["success"], wrong["error"]["code"]) == (False, "invalid_input")
        assert (await hub.http.get("/api/operations/math.nothing")).status_code == 404
