"""What administrators look into: state, tables, log, budgets, queue, policy, statistics of operations."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.server.log_buffer import LogRing
from tests.postgres_server import shared_server
from tests.server.openapi import check, refused
from tests.server.test_openapi_answers import RAW
from tests.server.test_session_owners import key_of
from tests.serving import ask, serving
from tests.waiting import poll

SECRET = "quite-secret-4f9a0c"
SHOP = '''
from dragoman import operation


@operation("shop", effect="read")
async def price(item: str) -> float:
    """Look up the price of an item in the catalog."""
    return {"tea": 3.5}[item]


@operation("shop", approval=True)
async def order(item: str) -> str:
    """Order an item."""
    return item


@operation("shop")
async def burn(item: str) -> str:
    """Burn an item."""
    return item
'''
POLICY = [
    {"deny": "shop.burn", "reason": "fire is dangerous"},
    {"ask": "shop.price", "agent": "clerk"},
]
CONFIG: dict[str, Any] = {
    "policy": POLICY,
    "agents": {"clerk": {"model": "sim/any"}},
    "retention": {"calls": "7d"},
    "limits": {"owners": {"ann": {"usd_per_day": 2.0, "requests_per_minute": 60}}},
}


def shop(folder: Path, **config: Any) -> Any:
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    return serving(folder, keys=True, operations=[str(folder / "shop.py")], **{**CONFIG, **config})


@pytest.fixture
def database_config(kind: str) -> Iterator[dict[str, Any]]:
    """The configuration of a hub whose data is in a database of this kind."""
    if kind == "sqlite":
        yield {}
        return
    with shared_server().schema() as schema:
        yield {"database": shared_server().url(schema)}


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.sqlite_file), "postgresql"])
async def test_administrators_see_state_tables_and_log_and_nobody_else_does(
    tmp_path: Path, kind: str, database_config: dict[str, Any]
) -> None:
    async with shop(tmp_path, **database_config) as hub:
        admin, ann = await key_of(hub, "root", "admin"), await key_of(hub, "ann", "chat", "operations")
        for path in ("/api/system", "/api/system/tables", "/api/logs"):
            assert await refused(hub, "get", path) == 401
            assert await refused(hub, "get", path, headers=ann) == 403
        state = await check(hub, "get", "/api/system", headers=admin)
        assert (state["runs"], state["queue"]["waiting"], state["spooled"]) == (0, 0, 0)
        assert (state["database"]["kind"], state["database"]["up"]) == (kind, True)
        assert (state["retention"]["calls"], state["retention"]["sessions"]) == (7 * 86_400.0, None)
        tables = await check(hub, "get", "/api/system/tables", headers=admin)
        rows = {each["name"]: each["rows"] for each in tables["tables"]}
        assert (rows["keys"], rows["calls"]) == (2, 0)
        await hub.hub.store.keys.create("bob")
        assert await check(hub, "get", "/api/system/tables", headers=admin) == tables  # for a minute


@pytest.mark.promise("log-over-http-has-no-secrets")
async def test_the_log_is_bounded_redacted_and_read_on_from_a_line(tmp_path: Path) -> None:
    async with shop(tmp_path) as hub:
        hub.hub._services.environment.secrets.add(SECRET)
        admin = await key_of(hub, "root", "admin")
        first = await check(hub, "get", "/api/logs", headers=admin)
        log = logging.getLogger("dragoman.test")
        log.warning("the token %s was sent", SECRET, extra={"fields": {"url": f"http://a/{SECRET}", "n": 3}})
        log.info("quiet")
        try:
            raise ValueError(SECRET)
        except ValueError:
            log.exception("it failed")
        found = await check(hub, "get", "/api/logs", headers=admin, params={"since": first["last"]})
        assert [(each["level"], each["logger"]) for each in found["lines"]] == [
            ("warning", "test"),
            ("error", "test"),
        ]
        assert SECRET not in json.dumps(found)
        assert found["lines"][0]["message"] == "the token *** was sent"
        assert found["lines"][0]["fields"] == {"url": "http://a/***", "n": 3}
        assert "Traceback" in found["lines"][1]["message"]
        assert (found["ring"], found["last"]) == (first["ring"], first["last"] + 2)
        errors = await check(hub, "get", "/api/logs", headers=admin, params={"level": "error", "limit": 1})
        assert [each["message"].splitlines()[0] for each in errors["lines"]] == ["it failed"]
        [one] = (await check(hub, "get", "/api/logs", headers=admin, params={"text": "TOKEN"}))["lines"]
        assert one["number"] == found["lines"][0]["number"]
        for wrong in ({"level": "loud"}, {"since": "x"}, {"limit": "0"}):
            assert await refused(hub, "get", "/api/logs", headers=admin, params=wrong) == 400


def test_a_ring_drops_its_oldest_lines_first() -> None:
    ring = LogRing(size=10)
    for number in range(25):
        ring.emit(logging.LogRecord("dragoman.x", logging.INFO, "", 1, "line %d", (number,), None))
    lines, last = ring.read(since=0, level=0, text="", limit=100)
    assert ([each["message"] for each in lines], last) == ([f"line {n}" for n in range(15, 25)], 25)


async def test_budgets_say_what_is_spent_and_when_they_begin_anew(tmp_path: Path) -> None:
    async with shop(tmp_path) as hub:
        admin, ann = await key_of(hub, "root", "admin"), await key_of(hub, "ann", "gateway")
        bob = await key_of(hub, "bob", "gateway")
        created = {"owner": "bob", "name": "ci", "limits": {"usd_per_month": 20.0, "usd_total": 50.0}}
        key = (await check(hub, "post", "/api/keys", headers=admin, json=created))["id"]
        window = next(iter(await balances(hub, admin)))
        assert window == ("ann", "day")
        found = await check(hub, "get", "/api/budgets", headers=admin)
        shown = {(each["kind"], each["id"]): each for each in found["budgets"]}
        assert set(shown) == {("owner", "ann"), ("key", key)}
        owner = shown["owner", "ann"]
        assert owner["limits"] == {"usd_per_day": 2.0, "requests_per_minute": 60}
        [day] = owner["budgets"]
        assert (day["window"], day["limit"], day["spent"], day["reserved"]) == ("day", 2.0, 0.0, 0.0)
        assert 0 < day["resetsAt"] - found["asOf"] <= 86_400
        month, total = shown["key", key]["budgets"]
        assert (month["limit"], total["limit"], total["resetsAt"]) == (20.0, 50.0, None)
        mine = await check(hub, "get", "/api/budgets", headers=ann)
        assert [(each["kind"], each["id"]) for each in mine["budgets"]] == [("owner", "ann")]
        others = await check(hub, "get", "/api/budgets", headers=bob)
        assert [each["name"] for each in others["budgets"]] == ["ci"]


async def balances(hub: Any, headers: dict[str, str]) -> list[tuple[str, str]]:
    """The owners and windows of the budgets of owners."""
    found = (await check(hub, "get", "/api/budgets", headers=headers))["budgets"]
    return [
        (each["id"], budget["window"])
        for each in found
        if each["kind"] == "owner"
        for budget in each["budgets"]
    ]


async def test_the_queue_shows_an_owner_its_own_messages(tmp_path: Path) -> None:
    slow = {"text": "one two three", "delay": 3600}
    async with serving(tmp_path, [slow], keys=True, when_busy="queue") as hub:
        ann, bob = await key_of(hub, "ann", "chat"), await key_of(hub, "bob", "chat")
        admin = await key_of(hub, "root", "admin", "chat")
        body = {**ask("first"), "background": True}
        began = await hub.http.post("/api/chat", json=body, headers=ann)
        assert began.status_code in (200, 202), began.text
        sent = await hub.http.post("/api/chat", json={**ask("second"), "background": True}, headers=ann)
        assert sent.status_code == 202, sent.text
        for headers, count in ((ann, 1), (bob, 0), (admin, 1)):
            found = await check(hub, "get", "/api/queue", headers=headers)
            assert (len(found["queued"]), found["more"]) == (count, False)
        assert (await check(hub, "get", "/api/system", headers=admin))["queue"]["waiting"] == 1
        [run] = (await hub.http.get("/api/runs?status=running", headers=ann)).json()["runs"][-1:]
        await hub.http.post(f"/api/runs/{run['id']}/stop", headers=ann)


DECISIONS: list[tuple[dict[str, Any], str, str, bool]] = [
    ({"operation": "shop.price"}, "allow", "the default", False),
    ({"operation": "shop.price", "agent": "clerk"}, "ask", "ask: shop.price; agent clerk", True),
    ({"operation": "shop.order"}, "ask", "the operation itself: approval=True", True),
    ({"operation": "shop.burn"}, "deny", "deny: shop.burn", False),
    ({"operation": "shop.burn", "owner": "ann", "key": "key_1"}, "deny", "deny: shop.burn", False),
]


@pytest.mark.promise("policy-is-explained")
async def test_the_policy_is_explained_to_administrators(tmp_path: Path) -> None:
    async with shop(tmp_path) as hub:
        admin = await key_of(hub, "root", "admin", "operations")
        for body, decision, source, asks in DECISIONS:
            found = await check(hub, "post", "/api/policy/explain", json=body, headers=admin)
            assert (found["decision"], found["source"], found["asks"]) == (decision, source, asks)
            assert found["matches"][-1]["source"] == "the default"
            assert found["owner"] == body.get("owner", "root")


async def test_the_policy_is_explained_for_oneself_only_and_arguments_are_checked(tmp_path: Path) -> None:
    async with shop(tmp_path) as hub:
        ann = await key_of(hub, "ann", "operations")
        path = "/api/policy/explain"
        question: dict[str, Any] = {"operation": "shop.price", "input": {"item": 3}}
        [problem] = (await check(hub, "post", path, json=question, headers=ann))["problems"]
        assert problem["path"] == "item"
        question["input"] = {"item": "tea"}
        assert (await check(hub, "post", path, json=question, headers=ann))["problems"] == []
        for body, status in (
            ({"operation": "shop.burn"}, 404),  # she may not call it, so it is not there
            ({"operation": "shop.nothing"}, 404),
            ({"operation": "shop.price", "owner": "bob"}, 403),
            ({"operation": "shop.price", "key": "key_2"}, 404),
            ({"operation": ""}, 400),
            ({"what": 1}, 400),
            ([], 400),
        ):
            assert await refused(hub, "post", path, json=body, headers=ann) == status, body
        assert await refused(hub, "post", path, json=question, headers=await key_of(hub, "b", "chat")) == 403


async def test_a_search_says_why_it_found_each_operation(tmp_path: Path) -> None:
    async with shop(tmp_path) as hub:
        ann = await key_of(hub, "ann", "operations")
        found = await check(
            hub, "get", "/api/operations", headers=ann, params={"q": "look up price", "scores": "1"}
        )
        best = found["tools"][0]
        assert (best["tool"], best["score"]["words"]) == ("shop.price", 1.0)
        assert 0.5 <= best["score"]["coverage"] <= 1.0
        named = await check(
            hub, "get", "/api/operations", headers=ann, params={"q": "shop.order", "scores": "1"}
        )
        first = named["tools"][0]
        assert (first["tool"], first["score"]["name"], first["source"]) == ("shop.order", "id", "python")
        plain = await check(hub, "get", "/api/operations", headers=ann, params={"q": "look up price"})
        assert [each["tool"] for each in plain["tools"]] == [each["tool"] for each in found["tools"]]
        assert not {"score", "effect", "source"} & set(plain["tools"][0])


async def test_operations_are_listed_in_pages_of_what_the_caller_may_call(tmp_path: Path) -> None:
    async with shop(tmp_path) as hub:
        ann = await key_of(hub, "ann", "operations")

        async def page(**params: str) -> Any:
            return await check(hub, "get", "/api/operations", headers=ann, params=params)

        def ids(found: Any) -> list[str]:
            return [each["id"] for each in found["operations"]]

        whole = await page()
        assert ids(whole) == sorted(ids(whole))
        assert "shop.burn" not in ids(whole)  # the policy denies it
        assert sum(whole["namespaces"].values()) == len(ids(whole))
        assert "next" not in whole
        for params in ({}, {"namespace": "shop"}, {"text": "PR"}, {"text": "o", "namespace": "shop"}):
            expected = ids(await page(**params))
            found = await page(limit="2", **params)
            assert found["namespaces"] == whole["namespaces"]
            listed = ids(found)
            while found["next"] is not None:
                assert found["next"] == listed[-1]
                found = await page(limit="2", after=listed[-1], **params)
                assert "namespaces" not in found
                listed += ids(found)
            assert listed == expected, params
        assert ids(await page(text="PR")) == [each for each in ids(whole) if "pr" in each.lower()]
        assert (await page(limit="1", after="zzz"))["operations"] == []
        for limit in ("0", "501", "many", "-1", ""):
            params = {"limit": limit}
            assert await refused(hub, "get", "/api/operations", headers=ann, params=params) == 400, limit


async def test_statistics_count_an_owners_calls_and_an_administrators_all(tmp_path: Path) -> None:
    async with shop(tmp_path) as hub:
        ann, bob = await key_of(hub, "ann", "operations"), await key_of(hub, "bob", "operations")
        admin = await key_of(hub, "root", "admin", "operations")
        for headers, item in ((ann, "tea"), (ann, "gold"), (bob, "tea")):
            await hub.http.post("/api/operations/shop.price/call", json={"item": item}, headers=headers)
        path = "/api/operations/{id}/stats"
        mine = await check(hub, "get", path, id="shop.price", headers=ann)
        assert (mine["calls"], mine["byStatus"], mine["capped"]) == (2, {"done": 1, "failed": 1}, False)
        assert [each["status"] for each in mine["lastCalls"]] == ["failed", "done"]
        assert mine["p50"] is not None
        assert mine["p50"] <= mine["p95"] <= mine["p99"]
        assert (await check(hub, "get", path, id="shop.price", headers=admin))["calls"] == 3
        nothing = await check(hub, "get", path, id="shop.order", headers=ann)
        assert (nothing["calls"], nothing["p50"], nothing["lastCalls"]) == (0, None, [])
        wrong = {"since": "yesterday"}
        assert await refused(hub, "get", path, id="shop.price", headers=ann, params=wrong) == 400


async def test_an_mcp_server_has_a_log_of_its_last_lines_without_secrets(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-E", str(RAW), str(tmp_path / "raw.txt")]
    server = {"command": command, "env": {"API_TOKEN": SECRET}}
    async with serving(tmp_path, keys=True, mcp_servers={"chatty": server}) as hub:
        admin = await key_of(hub, "root", "admin")

        async def log() -> list[dict[str, Any]]:
            found = await check(hub, "get", "/api/mcp/servers/{name}/log", name="chatty", headers=admin)
            lines: list[dict[str, Any]] = found["lines"]
            return lines

        async def is_there() -> bool:
            return any("token is" in each["message"] for each in await log())

        await poll(is_there)
        assert SECRET not in json.dumps(await log())
        assert await refused(hub, "get", "/api/mcp/servers/{name}/log", name="none", headers=admin) == 404
        assert await refused(hub, "get", "/api/mcp/servers/{name}/log", name="chatty") == 401
