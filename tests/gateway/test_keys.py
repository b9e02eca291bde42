"""API keys over HTTP: headers, scopes, models, expiry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.config import parse_config
from dragoman.errors import ConfigError
from dragoman.server import auth
from dragoman.server.app.routing import routes
from dragoman.usage_limits import Limits
from tests.waiting import poll

from .metered_hub import Desk, Site, completion, desk

SCOPES = ("gateway", "chat", "operations", "admin")
DOORS: dict[str, tuple[str, str, Any]] = {
    "gateway": ("GET", "/v1/models", None),
    "chat": ("GET", "/api/sessions", None),
    "operations": ("GET", "/api/operations", None),
    "admin": ("GET", "/metrics", None),
}


def secret_of(key: dict[str, str]) -> str:
    return key["authorization"].removeprefix("Bearer ")


async def statuses(at: Desk, key: dict[str, str]) -> dict[str, int]:
    return {
        scope: (await at.http.request(method, path, headers=key)).status_code
        for scope, (method, path, _) in DOORS.items()
    }


async def test_a_key_may_be_sent_in_either_familys_header_at_either_endpoint(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        bearer = await at.key()
        secret = secret_of(bearer)
        for headers in (bearer, {"x-api-key": secret}, {"authorization": f"bearer  {secret}"}):
            assert (await at.chat(key=headers)).status_code == 200
            assert (await at.message(key=headers)).status_code == 200
        at.sites["up"].requests.clear()
        await at.chat(key=bearer)
        assert secret not in str(at.sites["up"].requests)  # it is not for the provider


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({}, "this hub requires a key"),
        ({"authorization": "Basic abc"}, "this hub requires a key"),
        ({"x-api-key": "dgm_nope"}, "this key is unknown"),
        ({"authorization": "Bearer sk-of-openai"}, "this key is unknown"),
    ],
)
async def test_without_a_valid_key_each_endpoint_refuses_in_its_own_format(
    tmp_path: Path, headers: dict[str, str], text: str
) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        openai, anthropic = await at.chat(key=headers), await at.message(key=headers)
        assert (openai.status_code, anthropic.status_code) == (401, 401)
        assert text in openai.json()["error"]["message"]
        assert openai.json()["error"]["code"] == "invalid_api_key"
        assert anthropic.json()["type"] == "error"
        assert anthropic.json()["error"]["type"] == "authentication_error"
        assert "nope" not in openai.text + anthropic.text
        for response in (openai, anthropic):
            assert response.headers["www-authenticate"] == 'Bearer realm="dragoman"'
            assert response.headers["x-should-retry"] == "false"
        assert at.sites["up"].requests == []
        assert await at.rows() == []


async def test_scopes_give_access_to_their_own_endpoints_only(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion()), metrics={"public": False}) as at:
        for scope in SCOPES:
            found = await statuses(at, await at.key(scopes=[scope]))
            assert found == {each: 200 if each == scope else 403 for each in SCOPES}
        assert await statuses(at, await at.key()) == {
            **dict.fromkeys(SCOPES, 200),
            "admin": 403,
        }
        chat_only = await at.key(scopes=["chat"])
        for refused in (await at.chat(key=chat_only), await at.message(key=chat_only)):
            assert refused.status_code == 403
            assert "this needs a key with the scope 'gateway'" in refused.json()["error"]["message"]


async def test_a_key_asks_the_models_that_it_may_and_sees_no_others(tmp_path: Path) -> None:
    one, two = Site(completion(), models=["a", "b"]), Site(completion(), models=["c"])
    rules: dict[str, Any] = {"aliases": {"fast": ["one/a", "two/c"], "slow": "two/c"}, "model": "one/a"}
    async with desk(tmp_path, keys=True, one=one, two=two, **rules) as at:

        async def seen(key: dict[str, str]) -> list[str]:
            body = (await at.http.get("/v1/models", headers=key)).json()
            return [model["id"] for model in body["data"]]

        async def may(key: dict[str, str], *models: str) -> list[bool]:
            return [(await at.chat(model, key)).status_code == 200 for model in models]

        everything = ["fast", "slow", "one/a", "one/b", "two/c"]
        free, pattern = await at.key(), await at.key(models=["one/*"])
        alias, none = await at.key(models=["slow"]), await at.key(models=[])
        assert await seen(free) == everything
        assert await seen(pattern) == ["fast", "one/a", "one/b"]
        assert await seen(alias) == ["slow"]
        assert await seen(none) == []
        assert await may(free, *everything, "two/x") == [True] * 6
        assert await may(pattern, *everything, "one/x") == [True, False, True, True, False, True]
        assert await may(alias, *everything) == [False, True, False, False, False]
        assert await may(none, *everything) == [False] * 5
        single = await at.http.get("/v1/models/one%2Fa", headers=alias)
        assert single.status_code == 403
        assert (await at.http.get("/v1/models/slow", headers=alias)).json()["id"] == "slow"


async def test_a_model_that_a_key_may_not_use_is_refused_in_each_endpoints_format(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key(models=["up/small*"])
        openai, anthropic = await at.chat("up/big", key), await at.message("up/big", key)
        counted = await at.http.post(
            "/v1/messages/count_tokens", json={"model": "up/big", "messages": []}, headers=key
        )
        assert [answer.status_code for answer in (openai, anthropic, counted)] == [403] * 3
        text = "this key may not use the model 'up/big'; it may use up/small*"
        assert text in openai.json()["error"]["message"]
        assert text in anthropic.json()["error"]["message"]
        assert anthropic.json()["error"]["type"] == "permission_error"
        assert at.sites["up"].requests == []


async def test_the_models_of_a_key_hold_for_agents_too(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion()), model="up/small") as at:
        key = await at.key(models=["up/small"])
        assert [frame["type"] for frame in await at.run("hi", key)][-1] == "finish"
        message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
        body = {"id": "t", "messages": [message], "trigger": "submit-message", "model": "up/big"}
        refused = await at.http.post("/api/chat", json=body, headers=key)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "forbidden"
        assert [request["model"] for request in at.sites["up"].bodies] == ["small"]


async def test_a_key_that_has_expired_opens_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        gone = await at.key(expires_at=time.time() - 1)
        refused = await at.chat(key=gone)
        assert refused.status_code == 401
        assert "this key has expired" in refused.json()["error"]["message"]
        assert (await at.chat(key=await at.key(expires_at=time.time() + 600))).status_code == 200


async def test_a_key_that_expires_while_it_is_cached_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0

    def now() -> float:
        return time.time() + passed

    def clock() -> float:
        return time.monotonic() + passed

    monkeypatch.setattr(auth, "RECHECK_INTERVAL", 3_600.0)
    monkeypatch.setattr(routes, "Auth", partial(auth.Auth, clock=clock, now=now))
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        monkeypatch.setattr(at.hub.store.keys, "_clock", now)
        key = await at.key(expires_at=now() + 1_800)
        assert (await at.chat(key=key)).status_code == 200
        passed = 1_700.0
        assert (await at.chat(key=key)).status_code == 200
        passed = 1_801.0
        assert (await at.chat(key=key)).status_code == 401


async def until(at: Desk, key: dict[str, str], status: int) -> httpx2.Response:
    """Ask until the answer has this status."""

    async def look() -> httpx2.Response | None:
        response = await at.http.get("/v1/models", headers=key)
        return response if response.status_code == status else None

    return await poll(look)


async def test_a_revoked_key_is_refused_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert auth.RECHECK_INTERVAL <= 5.0
    monkeypatch.setattr(auth, "RECHECK_INTERVAL", 0.05)
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key()
        assert (await at.chat(key=key)).status_code == 200
        [api_key] = await at.hub.store.keys.list()
        await at.hub.store.keys.revoke(api_key.id)
        assert "this key is revoked" in (await until(at, key, 401)).json()["error"]["message"]


async def test_after_a_rotation_both_secrets_are_good_and_later_the_new_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "RECHECK_INTERVAL", 0.05)
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        old = await at.key()
        [api_key] = await at.hub.store.keys.list()
        _, secret = await at.hub.store.keys.rotate(api_key.id, grace=600)
        new = {"x-api-key": secret}
        assert [(await at.chat(key=key)).status_code for key in (old, new)] == [200, 200]
        monkeypatch.setattr(at.hub.store.keys, "_clock", lambda: time.time() + 601)
        refused = await until(at, old, 401)
        assert "this key was rotated" in refused.json()["error"]["message"]
        assert (await at.chat(key=new)).status_code == 200
        assert {row.key_id for row in await at.rows()} == {api_key.id}


async def test_usage_says_which_key_and_whose(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        await at.chat(key=await at.key("ada"))
        await at.chat(key=await at.key("bob"))
        ids = {key.owner: key.id for key in await at.hub.store.keys.list()}
        assert [(row.owner, row.key_id) for row in await at.rows(2)] == [
            ("ada", ids["ada"]),
            ("bob", ids["bob"]),
        ]


async def test_a_request_without_a_body_is_refused_before_a_provider_is_asked(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key()
        refused = await at.http.post("/v1/chat/completions", content=b"", headers=key)
        assert refused.status_code == 400
        assert at.sites["up"].requests == []


IMPOSSIBLE: Sequence[tuple[str, Any]] = [
    ("usd_total", 1e300),
    ("usd_per_day", -5),
    ("parallel", -1),
    ("requests_per_minute", 10**30),
    ("tokens_per_minute", -0.5),
]


async def test_limits_and_expiries_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        admin = await at.key(scopes=["admin"])
        for name, value in IMPOSSIBLE:
            body = {"owner": "ada", "limits": {name: value}}
            refused = await at.http.post("/api/keys", json=body, headers=admin)
            assert (refused.status_code, name in refused.text) == (400, True), refused.text
        for moment in (time.time() * 1000, 1e300, -1):
            refused = await at.http.post(
                "/api/keys", json={"owner": "ada", "expiresAt": moment}, headers=admin
            )
            assert (refused.status_code, "in seconds" in refused.text) == (400, True), refused.text
    for name, value in [*IMPOSSIBLE[:4], ("usd_total", float("nan")), ("usd_total", float("inf"))]:
        with pytest.raises(ConfigError, match=name):
            parse_config({"limits": {"owners": {"ada": {name: value}}}})


async def test_a_key_of_an_earlier_version_with_a_limit_beyond_all_counts_goes_on(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion())) as at:
        key = await at.key(limits=Limits(usd_total=1.0))
        await at.hub.store.write(
            lambda connection: connection.execute("UPDATE keys SET limits = '{\"usd_total\":1e300}'", {})
        )
        admin = await at.key(scopes=["admin"])
        assert (await at.chat(key=key)).status_code == 200
        listed = (await at.http.get("/api/budgets", headers=admin)).json()["budgets"]
        assert [row["limits"] for row in listed] == [{"usd_total": 1e300}]
