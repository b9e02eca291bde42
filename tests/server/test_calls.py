"""`/api/calls`: trees, visibility, abort."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from starlette.routing import Route, Router

from dragoman.events import Usage
from dragoman.messages import Message
from dragoman.operations.ledger import CallCompletion, CallRecord
from dragoman.operations.outcome import CallFailure
from dragoman.server.app import Hub
from dragoman.server.auth import Auth
from dragoman.server.calls import CallHandlers, CallReader
from dragoman.server.http.endpoint import HttpEndpoint
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.serving import listening
from tests.waiting import LIMIT

NOW = 100.0


class Served:
    """The doors over a store, and what was asked to stop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stopped: list[str] = []
        self.url = ""

    async def stop(self, id: str) -> bool:
        self.stopped.append(id)
        return id != "c9"

    async def key(self, owner: str, *scopes: str) -> dict[str, str]:
        _, secret = await self.store.keys.create(owner, scopes=scopes)
        return {"x-api-key": secret}

    async def ask(self, path: str = "", method: str = "GET", **options: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=self.url, timeout=LIMIT, trust_env=False) as http:
            return await http.request(method, f"/api/calls{path}", **options)

    async def json(self, path: str = "", **options: Any) -> Any:
        response = await self.ask(path, **options)
        assert response.status_code == 200, response.text
        return response.json()


@asynccontextmanager
async def serving(folder: Path, *, keys: bool = False) -> AsyncIterator[Served]:
    async with await Store.open(folder) as store:
        served = Served(store)
        calls = CallHandlers(store, abort=served.stop, source=lambda name, _: f"of {name}", clock=lambda: NOW)
        auth = Auth(store.keys, required=keys)
        routes = {
            "/api/calls": {"GET": calls.list},
            "/api/calls/{id}": {"GET": calls.get},
            "/api/calls/{id}/tree": {"GET": calls.tree},
            "/api/calls/{id}/abort": {"POST": calls.abort},
        }
        router = Router([Route(path, HttpEndpoint(handlers, auth=auth)) for path, handlers in routes.items()])
        async with listening(cast(Hub, SimpleNamespace(app=router))) as served.url:
            yield served


def call(
    id: str, parent: str | None = None, *, owner: str = "local", at: float = 2.0, **more: Any
) -> CallRecord:
    return CallRecord(
        id=id,
        operation=f"op.{id}",
        effect="read",
        owner=owner,
        input={"of": id},
        input_hash="h",
        idempotency_key="k",
        started_at=at,
        parent_id=parent,
        **{"run_id": "run", "session_id": "s", "step": 1, **more},
    )


async def fill(store: Store, *, owner: str = "local") -> None:
    """A run whose model asked for c1, which called c2, which is under way; and c9 of no run."""
    run = RunRecord(id="run", session_id="s", message_id="m", owner=owner, model="sim/any", started_at=1.0)
    session = Session(id="s", owner=owner, created_at=1.0, updated_at=1.0)
    await store.runs.create(run, assistant=Message(id="m", role="assistant"), session=session)
    for record in (call("c1", owner=owner), call("c2", "c1", owner=owner, at=3.0)):
        await store.calls.record_start(record)
    await store.calls.record_start(call("c9", owner=owner, at=9.0, run_id=None, session_id=None, step=None))
    failure = CallFailure(code="invalid_input", message="no", input_schema={})
    await store.calls.record_end(
        "c9", CallCompletion(status="failed", ended_at=9.5, error=failure, notes=("mended",))
    )
    used = UsageRecord(
        id="u", owner=owner, status="finished", started_at=1.0, run_id="run", step=1, provider="sim"
    )
    await store.usage.add(used)


def kinds(node: Any) -> Any:
    name = f"{node['kind']} {node['id']} {node['status']}"
    return {name: [kinds(child) for child in node["children"]]} if node.get("children") else name


@pytest.mark.promise("calls-are-one-tree")
async def test_a_run_is_a_tree_of_model_calls_and_calls(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await fill(hub.store)
        found = await hub.json("/run/tree")
        assert kinds(found["tree"]) == {
            "run run running": [{"model u done": [{"call c1 running": ["call c2 running"]}]}]
        }
        assert (found["path"], found["leftOut"], found["running"], found["now"]) == ([], 0, True, NOW)
        first = found["tree"]["children"][0]["children"][0]
        assert first == {
            "id": "c1",
            "kind": "call",
            "name": "op.c1",
            "status": "running",
            "startedAt": 2.0,
            "effect": "read",
            "source": "of op.c1",
            "inputHash": "h",
            "input": '{"of":"c1"}',
            "children": first["children"],
        }


async def test_a_call_of_any_depth_has_its_own_tree_and_the_way_to_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await fill(hub.store)
        found = await hub.json("/c2/tree")
        assert kinds(found["tree"]) == "call c2 running"
        assert [(step["kind"], step["id"]) for step in found["path"]] == [("run", "run"), ("call", "c1")]
        assert kinds((await hub.json("/c9/tree"))["tree"]) == "call c9 failed"


async def test_a_tree_that_is_known_already_is_not_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await fill(hub.store)
        version = (await hub.json("/run/tree"))["version"]
        same = await hub.json(f"/run/tree?since={version}")
        assert same == {"version": version, "running": True, "now": NOW}
        for id in ("c2", "c1"):
            await hub.store.calls.record_end(id, CallCompletion(status="done", ended_at=4.0, result=[1]))
        await hub.store.runs.finish("run", RunEnding(status="stopped", finished_at=5.0, usage=Usage(1, 2, 3)))
        news = await hub.json(f"/run/tree?since={version}")
        assert news["version"] != version
        assert (news["running"], news["tree"]["status"]) == (False, "aborted")


async def test_the_tree_of_a_run_survives_its_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await fill(hub.store)
        await hub.store.runs.finish("run", RunEnding(status="finished", finished_at=5.0))
        await hub.store.session_deletion.delete("s")
        assert kinds((await hub.json("/run/tree"))["tree"])["run run done"]


async def test_of_a_big_tree_the_beginning_is_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    async with await Store.open(tmp_path) as store:
        await fill(store)
        for number in range(20):
            await store.calls.record_start(call(f"d{number:02}", "c1", at=5.0 + number))
        reader = CallReader(store, max_nodes=10)
        assert [(await reader.tree(id))["leftOut"] for id in ("run", "c1", "c2")] == [12, 12, 0]


async def test_calls_are_listed_newest_first_filtered_and_page_by_page(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await fill(hub.store)

        async def ids(query: str) -> list[str]:
            return [each["id"] for each in (await hub.json(f"?{query}"))["calls"]]

        assert await ids("") == ["c9", "c2", "c1"]
        assert await ids("run=run") == await ids("session=s&status=running") == ["c2", "c1"]
        assert await ids("operation=op.c9") == ["c9"]
        page = await hub.json("?limit=2")
        assert page["next"] == "c2"
        assert await ids(f"before={page['next']}") == ["c1"]
        for wrong, status in (("status=odd", 400), ("limit=0", 400), ("before=nobody", 404)):
            assert (await hub.ask(f"?{wrong}")).status_code == status


async def test_one_call_is_reported_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await fill(hub.store)
        found = await hub.json("/c9")
        assert (found["input"], found["error"]) == ({"of": "c9"}, {"code": "invalid_input", "message": "no"})
        assert (found["duration"], found["notes"], found["source"]) == (0.5, ["mended"], "of op.c9")


async def test_others_calls_are_not_there_but_for_an_admin(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        await fill(hub.store, owner="ann")
        bob, ann = await hub.key("bob"), await hub.key("ann", "operations")
        admin, other = await hub.key("root", "admin"), await hub.key("ann", "gateway")
        paths = ("/run/tree", "/c1/tree", "/c1", "/c9/tree")
        for headers, status in ((bob, 404), (ann, 200), (admin, 200), (other, 403)):
            replies = [(await hub.ask(path, headers=headers)).status_code for path in paths]
            assert replies == [status] * len(paths)
        for id in ("run", "c1"):
            assert (await hub.ask(f"/{id}/abort", "POST", headers=bob)).status_code == 404
        assert hub.stopped == []
        assert (await hub.json(headers=bob))["calls"] == []
        assert len((await hub.json(headers=admin))["calls"]) == 3
        assert (await hub.ask("?owner=ann", headers=bob)).status_code == 403


async def test_a_run_or_a_call_is_stopped_by_its_id(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        await fill(hub.store)
        replies = [(await hub.json(f"/{id}/abort", method="POST")) for id in ("run", "c2", "c9")]
        assert replies == [{"id": id, "aborted": id != "c9"} for id in ("run", "c2", "c9")]
        assert hub.stopped == ["run", "c2", "c9"]
        assert (await hub.ask("/nobody/abort", "POST")).status_code == 404
