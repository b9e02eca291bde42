"""What the console reads of calls: roots, nodes, exports, one call; and what people always allow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.events import Usage
from dragoman.messages import Message
from dragoman.operations.context import Context
from dragoman.operations.ledger import CallCompletion, CallRecord
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallFailure, CallStatus
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.databases import BACKENDS
from tests.server.openapi import operation, read
from tests.serving import Served, serving
from tests.waiting import until

SHOP = '''
from dragoman import operation


@operation("shop", effect="once")
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@operation("shop", effect="read")
async def price(item: str) -> float:
    """Look up a price."""
    return 3.5
'''
ASKING: dict[str, Any] = {"policy": [{"ask": "shop.refund", "reason": "money leaves"}]}
BEGIN = time.time() - 3600.0  # retention deletes what is old
FAILED = CallFailure(code="call_timeout", message="no answer within 770 ms")


@asynccontextmanager
async def shop(folder: Path, **config: Any) -> AsyncIterator[Served]:
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    async with serving(folder, keys=True, operations=[str(folder / "shop.py")], **config) as served:
        yield served


async def key(served: Served, owner: str, *scopes: str) -> dict[str, str]:
    _, secret = await served.hub.store.keys.create(owner, scopes=scopes)
    return {"x-api-key": secret}


async def fill(store: Store) -> None:
    """A run of ann with a failure below it, a call of hers with two below, one of bob, and a model call."""
    session = Session(id="s1", owner="ann", created_at=BEGIN, updated_at=BEGIN, title="Refund 4411")
    run = RunRecord(
        id="run_1",
        session_id="s1",
        message_id="m1",
        owner="ann",
        model="up/m",
        started_at=BEGIN + 100,
        door="chat",
    )
    answer = Message(id="m1", role="assistant", parts=())
    await store.runs.create(run, assistant=answer, session=session)
    await store.runs.finish("run_1", RunEnding(status="finished", finished_at=BEGIN + 108, steps=1))
    await call(store, "c1", run_id="run_1", step=1, at=101.0)
    await call(store, "c2", parent_id="c1", run_id="run_1", step=1, at=102.0, error=FAILED)
    await call(store, "r1", at=200.0, operation="shop.refund")
    await call(store, "r2", parent_id="r1", at=201.0)
    await call(store, "r3", parent_id="r2", at=202.0)
    await call(store, "b1", owner="bob", at=300.0)
    tokens = Usage(input_tokens=5, output_tokens=2)
    records: dict[str, dict[str, Any]] = {
        "u1": {"run_id": "run_1", "step": 1, "started_at": BEGIN + 100.5, "cost": 0.25},
        "u2": {
            "started_at": BEGIN + 400,
            "door": "openai",
            "status": "provider_error",
            "error": "rate_limited",
        },
    }
    for id, fields in records.items():
        values: dict[str, Any] = {
            "owner": "ann",
            "status": "finished",
            "model_served": "m",
            "provider": "up",
            **fields,
        }
        await store.usage.add(UsageRecord(id=id, tokens=tokens, duration=1.0, **values))


async def call(
    store: Store, id: str, *, at: float, owner: str = "ann", error: CallFailure | None = None, **more: Any
) -> None:
    values: dict[str, Any] = {"operation": "shop.price", "effect": "read", "input": {"item": "tea"}, **more}
    await store.calls.record_start(
        CallRecord(id=id, owner=owner, input_hash="h", idempotency_key=id, started_at=BEGIN + at, **values)
    )
    status: CallStatus = "done" if error is None else "failed"
    await store.calls.record_end(
        id, CallCompletion(status=status, ended_at=BEGIN + at + 0.5, error=error, result=3.5)
    )


MIDDLE = datetime.fromtimestamp(BEGIN + 180, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
LISTS = [
    ("", ["u2", "r1", "run_1"]),
    ("kind=run,call", ["r1", "run_1"]),
    ("status=failed", ["u2"]),
    ("status=done&kind=call", ["r1"]),
    ("error=1", ["u2", "run_1"]),
    ("operation=shop.price", ["r1", "run_1"]),
    ("model=up/m", ["u2", "run_1"]),
    ("door=chat", ["run_1"]),
    ("door=openai", ["u2"]),
    ("text=refund", ["r1", "run_1"]),
    ("text=4411", ["run_1"]),
    ("text=%25", []),
    (f"since={MIDDLE}", ["u2", "r1"]),
    (f"until={MIDDLE}", ["run_1"]),
    ("min_duration=5", ["run_1"]),
    ("session=s1", ["run_1"]),
    ("ids=run_1,u2,b1,no-such", ["u2", "run_1"]),
    ("ids=run_1,u2&kind=run", ["run_1"]),
]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_roots_are_filtered_counted_summed_and_paged_and_only_those_of_the_owner(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as served:
        await fill(served.hub.store)
        ann, bob = await key(served, "ann"), await key(served, "bob")

        async def roots(query: str, headers: dict[str, str]) -> Any:
            response = await served.http.get(f"/api/calls?roots=1&{query}", headers=headers)
            return read(response, operation("get", "/api/calls"))

        found = {query: [each["id"] for each in (await roots(query, ann))["calls"]] for query, _ in LISTS}
        assert found == dict(LISTS)
        first = await roots("limit=2", ann)
        assert [each["id"] for each in first["calls"]] == ["u2", "r1"]
        second = await roots(f"limit=2&before={first['next']}", ann)
        assert ([each["id"] for each in second["calls"]], second["next"]) == (["run_1"], None)
        run = second["calls"][0]
        sums = (
            "calls",
            "failed",
            "modelCalls",
            "unpriced",
            "cost",
            "inputTokens",
            "sessionTitle",
            "duration",
        )
        assert [run[name] for name in sums] == [2, 1, 1, 0, 0.25, 5, "Refund 4411", pytest.approx(8.0)]
        assert (first["calls"][1]["calls"], first["calls"][0]["unpriced"]) == (3, 1)
        counts = (await roots("counts=1&status=failed", ann))["counts"]
        assert {name: count for name, count in counts["status"].items() if count} == {"done": 2, "failed": 1}
        assert (counts["kind"], counts["total"]) == ({"run": 0, "call": 0, "model": 1}, 1)
        others = await roots("counts=1", bob)
        assert ([each["id"] for each in others["calls"]], others["counts"]["total"]) == (["b1"], 1)
        for query in (
            "kind=x",
            "status=x",
            "error=maybe",
            "min_duration=-1",
            "since=x",
            "before=x",
            "limit=0",
            f"ids={','.join(map(str, range(201)))}",
        ):
            response = await served.http.get(f"/api/calls?roots=1&{query}", headers=ann)
            assert response.status_code == 400, query
        assert (await served.http.get("/api/calls?roots=1&owner=bob", headers=ann)).status_code == 403


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_nodes_and_exports_have_the_whole_tree_and_an_end_and_are_not_for_another_owner(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as served:
        await fill(served.hub.store)
        ann, bob = await key(served, "ann"), await key(served, "bob")
        run = await lines(served, "/api/calls/run_1/nodes", ann)
        head = run[0]["head"]
        rows = [row for each in run[1:-1] for row in each["nodes"]]
        nodes = [dict(zip(head["fields"], row, strict=False)) for row in rows]  # null at the end is left out
        shown = [
            (each["id"], each["parentId"], each["kind"], each["status"], each["error"]) for each in nodes
        ]
        assert shown == [
            ("u1", None, "model", "done", None),
            ("c1", None, "call", "done", None),
            ("c2", "c1", "call", "failed", "call_timeout"),
        ]
        assert (nodes[1]["detail"], nodes[0]["inputTokens"], run[-1]) == (
            '{"item":"tea"}',
            5,
            {"end": {"calls": 2, "next": None, "complete": True}},
        )
        part = await lines(served, "/api/calls/run_1/nodes?limit=1", ann)
        rest = await lines(served, f"/api/calls/run_1/nodes?after={part[-1]['end']['next']}", ann)
        assert [row[0] for row in rest[1]["nodes"]] == ["c2"]
        assert (part[-1]["end"]["complete"], rest[-1]["end"]["complete"]) == (False, True)
        beginning = await lines(served, "/api/calls/r1/nodes?limit=2", ann)
        assert [row[0] for each in beginning[1:-1] for row in each["nodes"]] == ["r1", "r2"]
        assert beginning[-1]["end"] == {"calls": 2, "next": None, "complete": False}
        below = await lines(served, "/api/calls/r1/nodes", ann)
        assert [row[0] for each in below[1:-1] for row in each["nodes"]] == ["r1", "r2", "r3"]
        changed = await lines(served, f"/api/calls/run_1/nodes?since={BEGIN + 102.2}", ann)
        assert [row[0] for each in changed[1:-1] for row in each["nodes"]] == ["c2"]
        inner = await lines(served, "/api/calls/c2/nodes", ann)
        assert [each["id"] for each in inner[0]["head"]["path"]] == ["run_1", "c1"]
        exported = await lines(served, "/api/calls/run_1/export", ann)
        assert [each["kind"] for each in exported] == ["root", "model", "call", "call", "end"]
        assert (exported[2]["input"], exported[2]["result"]) == ({"item": "tea"}, 3.5)
        assert exported[3]["error"]["code"] == "call_timeout"
        for path in ("run_1/nodes", "run_1/export", "c1/nodes", "c1", "u1", "nothing/nodes"):
            assert (await served.http.get(f"/api/calls/{path}", headers=bob)).status_code == 404, path


async def lines(served: Served, path: str, headers: dict[str, str]) -> list[Any]:
    response = await served.http.get(path, headers=headers)
    assert response.status_code == 200, response.text
    return [msgspec.json.decode(line) for line in response.content.splitlines()]


@pytest.mark.promise("always-allow")
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_what_is_always_allowed_is_not_asked_again_until_it_is_revoked(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path, **ASKING) as served:
        ann, bob = await key(served, "ann"), await key(served, "bob")
        tool, admin = await key(served, "ann", "operations"), await key(served, "root", "admin", "chat")

        async def refund(order: int, headers: dict[str, str]) -> Any:
            url = "/api/operations/shop.refund/call"
            return (await served.http.post(url, json={"order": order}, headers=headers)).json()

        async def add(approval: str, headers: dict[str, str]) -> int:
            body = {"approvalId": approval}
            return (await served.http.post("/api/policy/rules", json=body, headers=headers)).status_code

        pending = await refund(1, ann)
        assert pending["status"] == "pending"
        asked_about = await served.http.get(
            "/api/approvals?status=pending&compare=1&counts=1&order=oldest", headers=ann
        )
        inbox = read(asked_about, operation("get", "/api/approvals"))
        entry = inbox["approvals"][0]
        assert (entry["mayAlwaysAllow"], entry["items"][0]["previous"], inbox["counts"]["pending"]) == (
            True,
            None,
            1,
        )
        assert entry["policy"]["rule"]["operations"] == ["shop.refund"]
        id = pending["approvalId"]
        assert [await add(id, each) for each in (tool, bob)] == [403, 404]
        assert [await add(id, each) for each in (ann, ann)] == [201, 201]
        first = await refund(2, ann)
        assert (first["status"], first["result"]) == ("done", "refunded 2")
        record = (await served.http.get(f"/api/calls/{first['callId']}", headers=ann)).json()
        assert (record["policy"]["decision"], record["policy"]["rule"]["reason"]) == ("allow", "money leaves")
        assert (await refund(3, bob))["status"] == "pending"  # it is a rule for the calls of ann
        rules = read(
            await served.http.get("/api/policy/rules", headers=ann), operation("get", "/api/policy/rules")
        )["rules"]
        assert [(each["operation"], each["inForce"], each["createdBy"]) for each in rules] == [
            ("shop.refund", True, "ann")
        ]
        assert (await served.http.get("/api/policy/rules", headers=bob)).json() == {"rules": []}
        where = f"/api/policy/rules/{rules[0]['id']}"
        assert [
            (await served.http.delete(where, headers=each)).status_code for each in (bob, tool, admin, ann)
        ] == [404, 403, 204, 404]
        again = await refund(4, ann)
        assert again["status"] == "pending"
        assert await add(again["approvalId"], admin) == 201
        assert (await refund(5, ann))["status"] == "done"


async def test_an_operation_that_each_caller_is_shown_in_its_own_way_is_always_allowed_too(
    tmp_path: Path,
) -> None:
    def narrow(wide: Operation, context: Context) -> Operation:
        return replace(wide, description=f"{wide.description} For {context.identity.owner}.", narrow=None)

    async with shop(tmp_path, **ASKING) as served:
        registry = served.hub._services.registry
        registry.add(replace(registry.remove("shop.refund"), narrow=narrow))
        ann = await key(served, "ann")
        url = "/api/operations/shop.refund/call"
        pending = (await served.http.post(url, json={"order": 1}, headers=ann)).json()
        body = {"approvalId": pending["approvalId"]}
        added = await served.http.post("/api/policy/rules", json=body, headers=ann)
        assert (added.status_code, added.json()["rules"][0]["inForce"]) == (201, True), added.text
        assert (await served.http.post(url, json={"order": 2}, headers=ann)).json()["status"] == "done"


async def test_what_an_owner_allows_for_good_is_asked_again_once_the_policy_lets_only_others_answer(
    tmp_path: Path,
) -> None:
    url = "/api/operations/shop.refund/call"

    async def call(served: Served, headers: dict[str, str]) -> Any:
        return (await served.http.post(url, json={"order": 1}, headers=headers)).json()

    async with shop(tmp_path, **ASKING) as served:
        ann, bob, root = [
            await key(served, "ann"),
            await key(served, "bob"),
            await key(served, "root", "admin", "chat", "operations"),
        ]
        for caller, allows in ((ann, ann), (bob, root), (root, root)):
            body = {"approvalId": (await call(served, caller))["approvalId"]}
            assert (await served.http.post("/api/policy/rules", json=body, headers=allows)).status_code == 201
            assert (await call(served, caller))["status"] == "done"
    for answerers, expected in (
        (["boss"], ["pending", "done", "done"]),
        (["boss", "owner"], ["done"] * 3),
        (["ann"], ["done"] * 3),
    ):
        async with shop(tmp_path, policy=[{"ask": "shop.refund", "answerers": answerers}]) as served:
            assert [(await call(served, each))["status"] for each in (ann, bob, root)] == expected
            listed = (await served.http.get("/api/policy/rules", headers=root)).json()["rules"]
            in_force = {each["owner"]: each["inForce"] for each in listed}
            assert in_force == {"ann": expected[0] == "done", "bob": True, "root": True}
    async with shop(tmp_path, policy=[{"ask": "shop.refund", "answerers": ["boss"]}]) as served:
        body = {"approvalId": (await call(served, ann))["approvalId"]}
        for _ in range(2):  # the rule of an admin replaces that of ann, once
            added = await served.http.post("/api/policy/rules", json=body, headers=root)
            assert [each["inForce"] for each in added.json()["rules"]] == [True]
            assert (await call(served, ann))["status"] == "done"
        listed = (await served.http.get("/api/policy/rules", headers=root)).json()["rules"]
        assert sorted((each["owner"], each["createdBy"]) for each in listed) == [
            ("ann", "root"),
            ("bob", "root"),
            ("root", "root"),
        ]


async def test_several_requests_are_answered_at_once_each_with_a_result_of_its_own(tmp_path: Path) -> None:
    async with shop(tmp_path, **ASKING) as served:
        ann, bob = await key(served, "ann"), await key(served, "bob")
        url = "/api/operations/shop.refund/call"
        waiting = [
            (await served.http.post(url, json={"order": order}, headers=ann)).json() for order in (1, 2)
        ]
        ids = [each["approvalId"] for each in waiting]
        foreign = (await served.http.post(url, json={"order": 3}, headers=bob)).json()["approvalId"]
        body = {"ids": [*ids, foreign, "apr_none"], "approved": True}
        answered = await served.http.post("/api/approvals/answers", json=body, headers=ann)
        results = read(answered, operation("post", "/api/approvals/answers"))["results"]
        assert [each["status"] for each in results] == ["approved", "approved", None, None]
        assert [each["error"] and each["error"]["code"] for each in results[2:]] == ["not_found", "not_found"]
        done = (await served.http.post(url, json={"order": 1}, headers=ann)).json()
        assert done["status"] == "done"
        shown = (await served.http.get(f"/api/calls/{waiting[0]['callId']}", headers=ann)).json()
        assert (shown["approval"]["status"], shown["policy"]["decision"]) == ("used", "ask")
        await served.http.post(url, json={"order": 9}, headers=ann)
        listed = await served.http.get("/api/approvals?status=pending&compare=1", headers=ann)
        assert listed.json()["approvals"][0]["items"][0]["previous"]["input"] == {"order": 2}
        one = f"/api/approvals/{listed.json()['approvals'][0]['id']}"
        compared = (await served.http.get(f"{one}?compare=1", headers=ann)).json()
        assert compared["items"][0]["previous"]["input"] == {"order": 2}
        assert "previous" not in (await served.http.get(one, headers=ann)).json()["items"][0]
        assert (await served.http.get(f"{one}?compare=1", headers=bob)).status_code == 404
        for bad in ({"ids": [], "approved": True}, {"ids": ids}, {"ids": ids, "approved": True, "x": 1}):
            assert (
                await served.http.post("/api/approvals/answers", json=bad, headers=ann)
            ).status_code == 400


async def test_calls_outside_of_sessions_are_told_to_those_who_follow_their_owner(tmp_path: Path) -> None:
    async with shop(tmp_path) as served:
        ann, bob = await key(served, "ann"), await key(served, "bob")
        frames: dict[str, list[Any]] = {"ann": [], "bob": []}

        async def follow(name: str, headers: dict[str, str]) -> None:
            async with served.http.stream("GET", "/api/events?name=call.", headers=headers) as response:
                frames[name].append("open")
                async for each in response.aiter_lines():
                    if each.startswith("data: "):
                        frames[name].append(msgspec.json.decode(each.removeprefix("data: ")))

        tasks = [asyncio.ensure_future(follow("ann", ann)), asyncio.ensure_future(follow("bob", bob))]
        await until(lambda: frames["ann"] and frames["bob"])
        await served.http.post("/api/operations/shop.price/call", json={"item": "tea"}, headers=ann)
        await until(lambda: len(frames["ann"]) == 3)
        began, ended = frames["ann"][1:]
        assert (began["name"], ended["name"], ended["data"]["status"]) == (
            "call.started",
            "call.ended",
            "done",
        )
        assert frames["bob"] == ["open"]
        for task in tasks:
            task.cancel()
