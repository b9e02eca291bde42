"""Session tokens: what the browsers of an app's users may do, and everything that they may not."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from dragoman.server.app.routing.endpoint_access import TOKEN_METHODS
from tests.serving import Served, ask, frames_in, serving, text_of
from tests.waiting import until

Headers = dict[str, str]
Json = dict[str, Any]
ASKING: list[dict[str, Any]] = [
    {
        "tools": [
            {
                "name": "hub_call",
                "input": {"calls": [{"tool": "math.calculate", "input": {"expression": "1"}}]},
            }
        ]
    },
    {"text": "Done."},
]
ASK = [{"ask": "math.*"}]
SOCKETS = ("/api/spoke", "/api/runners", "/v1/responses")


def bearer(secret: str) -> Headers:
    return {"authorization": f"Bearer {secret}"}


async def key_of(hub: Served, owner: str = "app", **rules: Any) -> Headers:
    _, secret = await hub.hub.store.keys.create(owner, **rules)
    return bearer(secret)


async def token_of(hub: Served, key: Headers, **body: Any) -> Headers:
    made = await hub.http.post("/api/tokens", json=body, headers=key)
    assert made.status_code == 201, made.text
    return bearer(made.json()["token"])


async def status(hub: Served, method: str, path: str, headers: Headers, **options: Any) -> int:
    return (await hub.http.request(method, path, headers=headers, **options)).status_code


@pytest.mark.promise("session-tokens")
async def test_a_token_chats_in_its_session_and_in_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        key = await key_of(hub, scopes=["chat", "operations", "gateway", "admin"])
        await hub.post(ask("of the app", session="other"), headers=key)
        token = await token_of(hub, key, session="mine", minutes=5)
        assert text_of(await hub.post(ask("hello", session="mine"), headers=token)) == "Hi."
        for path in ("/api/sessions/mine", "/api/sessions/mine/messages", "/api/sessions/mine/stream"):
            assert await status(hub, "GET", path, token) in (200, 204)
        answer = await hub.http.post(
            "/api/sessions/mine/chat", json=ask("more", session="mine"), headers=token
        )
        assert answer.status_code == 200, answer.text
        assert text_of(frames_in(answer.text)) == "Hi."
        assert await status(hub, "POST", "/api/chat/mine/stop", token) == 200

        other = (await hub.http.get("/api/sessions/other", headers=key)).json()
        for id in ("other", other.get("hubId", "other"), "no-such", "mine/../other", "mine%2F..%2Fother"):
            assert await status(hub, "POST", "/api/chat", token, json=ask("x", session=id)) == 404
            assert await status(hub, "POST", f"/api/sessions/{id}/chat", token, json=ask("x")) == 404
            assert await status(hub, "GET", f"/api/sessions/{id}", token) == 404
            assert await status(hub, "GET", f"/api/sessions/{id}/messages", token) == 404
            assert await status(hub, "GET", f"/api/chat/{id}/stream", token) == 404
            assert await status(hub, "POST", f"/api/chat/{id}/stop", token) == 404
        written = (await hub.http.get("/api/sessions/other/messages", headers=key)).json()["messages"]
        assert [message["parts"][0]["text"] for message in written if message["role"] == "user"] == [
            "of the app"
        ]


async def test_everything_that_is_not_listed_is_not_found_for_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        key = await key_of(hub, scopes=["chat", "operations", "gateway", "admin", "spoke", "runner"])
        token = await token_of(hub, key, session="s")
        await hub.post(ask("hi"), headers=token)
        document = (await hub.http.get("/openapi.json")).json()
        public = {"/", "/docs/api", "/openapi.json", "/healthz", "/readyz", "/metrics", "/share/{token}"}
        tried = 0
        for path, methods in document["paths"].items():
            if path in public or path.startswith(("/hooks/", "/.well-known", "/console", "/api/console")):
                continue
            for method in methods.keys() & {"get", "post", "put", "patch", "delete"}:
                if method.upper() in TOKEN_METHODS.get(path, {}):
                    continue
                filled = path.replace("{id}", "s").replace("{", "").replace("}", "")
                found = await hub.http.request(method.upper(), filled, headers=token, json={})
                assert found.status_code in (404, 405), (method, path, found.status_code, found.text)
                tried += 1
        assert tried > 80
        for path in SOCKETS:
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{hub.url.replace('http', 'ws')}{path}", additional_headers=token, proxy=None)
            assert refused.value.response.status_code in (401, 403, 404)


async def test_a_prefix_is_for_its_sessions_and_ends_with_a_separator(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        key = await key_of(hub)
        token = await token_of(hub, key, prefix="user-4/")
        for id in ("user-4/a", "user-4/b"):
            assert text_of(await hub.post(ask("hi", session=id), headers=token)) == "Hi."
            assert await status(hub, "GET", f"/api/sessions/{id.replace('/', '%2F')}", token) == 200
        await hub.post(ask("hi", session="user-42/a"), headers=key)
        for id in ("user-42/a", "user-4", "other", "ses_0/user-4/"):
            assert await status(hub, "POST", "/api/chat", token, json=ask("x", session=id)) == 404
        listed = (await hub.http.get("/api/sessions", headers=token)).json()["sessions"]
        assert sorted(each["id"] for each in listed) == ["user-4/a", "user-4/b"]


@pytest.mark.promise("session-tokens")
async def test_two_users_of_an_app_see_nothing_of_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        key = await key_of(hub, scopes=["chat", "admin"])
        users = ("ada", "Ada", "ad", "ada/x", "ada%2Fx", "a~da@example.com", "ses_0123456789abcdef~ada")
        tokens: dict[str, Headers] = {}
        sessions: dict[str, str] = {}
        for user in users:
            made = (await hub.http.post("/api/tokens", json={"owner": user}, headers=key)).json()
            tokens[user], sessions[user] = bearer(made["token"]), f"{made['prefix']}trip"
            assert made["owner"] == user
            assert text_of(await hub.post(ask(user, session=sessions[user]), headers=tokens[user])) == "Hi."
        assert len(set(sessions.values())) == len(users)
        for user in users:
            listed = (await hub.http.get("/api/sessions", headers=tokens[user])).json()["sessions"]
            assert [each["id"] for each in listed] == [sessions[user]]
            for query in ("?owner=app", "?owner=*", "?owner=", f"?before={quote(sessions['ad'], safe='')}"):
                expected = 200 if user == "ad" and "before" in query else 404
                assert await status(hub, "GET", f"/api/sessions{query}", tokens[user]) == expected
            for other in set(users) - {user}:
                path = f"/api/sessions/{quote(sessions[other], safe='')}"
                assert await status(hub, "GET", f"{path}/messages", tokens[user]) == 404
                assert await status(hub, "POST", f"{path}/chat", tokens[user], json=ask("x")) == 404
        only = await token_of(hub, key, session=sessions["ada"])
        assert await status(hub, "GET", "/api/sessions", only) == 404


async def test_a_token_is_revoked_alone_and_all_of_a_user_together(tmp_path: Path) -> None:
    steps = [{"text": ["a ", *["b "] * 4_000], "delay": 0.01}]
    async with serving(tmp_path, steps, play="turns", keys=True) as hub:
        key, stranger = await key_of(hub), await key_of(hub, owner="another")
        made = [
            (await hub.http.post("/api/tokens", json={"owner": user}, headers=key)).json()
            for user in ("ada", "ada", "bob")
        ]
        first, second, bob = (bearer(each["token"]) for each in made)
        path = "/api/sessions/ada%2Fs/messages"
        follow = f"{hub.url.replace('http', 'ws')}/api/sessions/ada%2Fs/socket"
        started = asyncio.create_task(
            hub.http.post("/api/chat", json=ask("go", session="ada/s"), headers=first)
        )
        await until(lambda: answers(hub, path, first))
        async with connect(follow, additional_headers=first, proxy=None) as socket:
            address = f"/api/tokens/{made[0]['id']}"
            for wrong in (first, second, stranger):
                assert await status(hub, "DELETE", address, wrong) == 404
            assert await status(hub, "DELETE", "/api/tokens?owner=ada", first) == 404
            assert (await hub.http.delete("/api/tokens?owner=ada", headers=stranger)).json() == {"revoked": 0}
            assert await status(hub, "DELETE", address, key) == 204
            assert await status(hub, "GET", path, first) == 401
            assert await status(hub, "GET", path, second) == 200
            assert await status(hub, "DELETE", address, key) == 404
            assert "key revoked" in (await started).text
            with pytest.raises(ConnectionClosedError, match="key revoked"):
                async for _ in socket:
                    pass
        await hub.http.post("/api/chat/ada%2Fs/stop", headers=key)
        assert (await hub.http.delete("/api/tokens?owner=ada", headers=key)).json() == {"revoked": 1}
        assert await status(hub, "GET", path, second) == 401
        assert await status(hub, "GET", "/api/sessions", bob) == 200
        assert await status(hub, "DELETE", "/api/tokens", key) == 400


@pytest.mark.promise("session-tokens")
async def test_the_tokens_of_a_key_are_listed_in_pages_and_all_of_them_for_administrators(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, keys=True) as hub:
        key, stranger = await key_of(hub), await key_of(hub, owner="another")
        admin = await key_of(hub, owner="root", scopes=["chat", "admin"])
        bodies: list[Json] = [
            {"owner": "ada/x"},
            {"session": "s", "role": "read"},
            {"prefix": "team-1:", "models": ["sim/any"]},
            {"owner": "bob"},
        ]
        made = [(await hub.http.post("/api/tokens", json=body, headers=key)).json() for body in bodies]
        other = (await hub.http.post("/api/tokens", json={"owner": "eve"}, headers=stranger)).json()
        await hub.http.post("/api/tokens", json={"owner": "past", "minutes": 1e-9}, headers=key)
        listed = await list_tokens(hub, key, pages=2)
        [key_id] = {each.pop("keyId") for each in listed}
        assert listed == [{name: each[name] for name in each.keys() - {"token"}} for each in made[::-1]]
        assert [each["id"] for each in await list_tokens(hub, stranger)] == [other["id"]]
        everything = await list_tokens(hub, admin, pages=3)
        assert [each["id"] for each in everything] == [each["id"] for each in (other, *made[::-1])]
        assert everything[-1]["keyId"] == key_id != everything[0]["keyId"]
        assert await status(hub, "GET", "/api/tokens", bearer(made[0]["token"])) == 404
        for wrong in ("before=x", "limit=0", "limit=1001"):
            assert await status(hub, "GET", f"/api/tokens?{wrong}", key) == 400, wrong
        assert await status(hub, "DELETE", f"/api/tokens/{other['id']}", admin) == 204
        assert await list_tokens(hub, stranger) == []


async def list_tokens(hub: Served, headers: Headers, *, pages: int = 1) -> list[Json]:
    """The tokens that a key sees, two a page where there are several pages."""
    found: list[Json] = []
    query: Json = {"limit": 2} if pages > 1 else {}
    for number in range(pages + 1):
        page = (await hub.http.get("/api/tokens", params=query, headers=headers)).json()
        assert page.keys() == {"tokens", "next"}, page
        assert not any("token" in each or "hash" in each for each in page["tokens"])
        found += page["tokens"]
        if page["next"] is None:
            assert number in (pages - 1, pages)
            return found
        query["before"] = page["next"]
    raise AssertionError("there are more pages")


async def answers(hub: Served, path: str, headers: Headers) -> bool:
    """Whether a session has messages: one that is not there yet has none."""
    messages = (await hub.http.get(path, headers=headers)).json()
    return bool(messages["messages"] if isinstance(messages, dict) else messages)


TABLE: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({}, {}, 400),
    ({"session": "s", "prefix": "p/"}, {}, 400),
    ({"session": ""}, {}, 400),
    ({"prefix": "user-4"}, {}, 400),
    ({"prefix": ""}, {}, 400),
    ({"session": "s", "minutes": 0}, {}, 400),
    ({"session": "s", "minutes": 121}, {}, 400),
    ({"session": "s", "minutes": "9"}, {}, 400),
    ({"session": "s", "owner": "somebody"}, {}, 400),
    ({"prefix": "s/", "owner": "somebody"}, {}, 400),
    ({"owner": ""}, {}, 400),
    ({"owner": "a\nb"}, {}, 400),
    ({"owner": "\u202eb"}, {}, 400),
    ({"owner": "é" * 17}, {}, 400),
    ({"owner": "é" * 16}, {}, 201),
    ({"session": "s", "scopes": ["chat", "admin"]}, {"scopes": ["chat", "admin"]}, 403),
    ({"session": "s", "scopes": []}, {}, 403),
    ({"session": "s"}, {"scopes": ["gateway"]}, 403),
    ({"session": "s", "models": ["sim/*"]}, {"models": ["sim/any"]}, 403),
    ({"session": "s", "models": ["other/x"]}, {"models": ["sim/*"]}, 403),
    ({"session": "s", "models": ["sim/any", "sim/*"]}, {"models": ["sim/*"]}, 201),
]


async def test_a_token_may_do_no_more_than_its_key(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        for body, rules, expected in TABLE:
            key = await key_of(hub, **rules)
            made = await hub.http.post("/api/tokens", json=body, headers=key)
            assert made.status_code == expected, (body, made.text)
        token = await token_of(hub, await key_of(hub), session="s")
        assert await status(hub, "POST", "/api/tokens", token, json={"session": "s"}) == 404


async def test_a_token_keeps_to_its_models_and_role_and_names_no_webhook(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        key = await key_of(hub)
        narrow = await token_of(hub, key, session="s", models=["sim/any"])
        assert await status(hub, "POST", "/api/chat", narrow, json=ask("x", model="sim/dear")) == 403
        assert text_of(await hub.post(ask("y", model="sim/any"), headers=narrow)) == "Hi."
        webhook = ask("z", webhook="https://example.com/x", background=True)
        assert await status(hub, "POST", "/api/chat", narrow, json=webhook) == 403
        reader = await token_of(hub, key, session="s", role="read")
        assert await status(hub, "GET", "/api/sessions/s/messages", reader) == 200
        assert await status(hub, "POST", "/api/chat", reader, json=ask("w")) == 403
        assert await status(hub, "POST", "/api/chat/s/stop", reader) == 403


async def test_a_token_ends_with_its_time_its_key_and_its_secret(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns", keys=True) as hub:
        tokens = hub.hub.store.session_tokens
        for ending in ("revoked", "rotated", "scope"):
            key = await key_of(hub)
            [made] = [
                each
                for each in await hub.hub.store.keys.list()
                if key["authorization"][7:17] == each.prefix[:10]
            ]
            secret = (await token_of(hub, key, session="s"))["authorization"][7:]
            assert isinstance(await tokens.authenticate(secret), tuple)
            if ending == "revoked":
                await hub.hub.store.keys.revoke(made.id)
            elif ending == "rotated":
                await hub.hub.store.keys.rotate(made.id, 0)
            else:
                await hub.hub.store.keys.update(made.id, scopes=frozenset({"gateway"}))
            assert await tokens.authenticate(secret) == ("rotated" if ending == "rotated" else "revoked")
            await until(partial(refuses, hub, bearer(secret)))
        key = await key_of(hub)
        secret = (await token_of(hub, key, session="s", minutes=1 / 3000))["authorization"][7:]
        await until(lambda: refuses(hub, bearer(secret)))
        stored = await hub.hub.store.database.read(
            lambda connection: connection.fetch_all("SELECT * FROM session_tokens", {})
        )
        assert stored
        assert secret not in repr(stored)


async def refuses(hub: Served, headers: Headers) -> bool:
    return await status(hub, "GET", "/api/sessions/s/messages", headers) == 401


async def test_a_token_answers_the_approvals_of_its_session_and_no_others(tmp_path: Path) -> None:
    async with serving(tmp_path, ASKING, play="turns", keys=True, policy=ASK) as hub:
        key = await key_of(hub)
        mine, other = await token_of(hub, key, session="mine"), await token_of(hub, key, session="other")
        reader = await token_of(hub, key, session="mine", role="read")
        await hub.post(ask("go", session="mine"), headers=mine)
        assert await status(hub, "GET", "/api/approvals", mine) == 404
        assert await status(hub, "GET", "/api/approvals?session=other", mine) == 404
        [waiting] = (await hub.http.get("/api/approvals?session=mine", headers=mine)).json()["approvals"]
        path = f"/api/approvals/{waiting['id']}"
        assert await status(hub, "GET", path, other) == 404
        assert await status(hub, "POST", path, other, json={"approved": True}) == 404
        assert await status(hub, "POST", path, reader, json={"approved": True}) == 403
        async with connect(
            f"{hub.url.replace('http', 'ws')}/api/sessions/other/socket", additional_headers=other, proxy=None
        ) as socket:  # the session does not exist yet
            assert msgspec.json.decode(await socket.recv())["type"] == "error"
        await hub.post(ask("hi", session="other"), headers=other)
        url = f"{hub.url.replace('http', 'ws')}/api/sessions/{{}}/socket"
        async with connect(url.format("other"), additional_headers=other, proxy=None) as socket:
            assert msgspec.json.decode(await socket.recv())["type"] == "init"
            frame = {"type": "answer", "approvalId": waiting["id"], "approved": True, "requestId": "r"}
            await socket.send(msgspec.json.encode(frame).decode())
            reply = msgspec.json.decode(await socket.recv())
            assert reply["type"] == "error", reply
        async with connect(url.format("mine"), additional_headers=other, proxy=None) as socket:
            assert msgspec.json.decode(await socket.recv())["type"] == "error"
        assert await status(hub, "POST", path, mine, json={"approved": True}) == 200


async def test_without_keys_there_are_no_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        assert await status(hub, "POST", "/api/tokens", {}, json={"session": "s"}) == 409
