"""Runs that have ended while their answers wait: they are pending, and say what they wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.databases import BACKENDS
from tests.doors.test_a2a_rules import rpc, task_of
from tests.server.openapi import operation, read
from tests.serving import Served, ask, serving
from tests.waiting import until

SHOP = '''
from dragoman import operation


@operation("shop", effect="once")
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"
'''
COLOUR = {"name": "colour", "description": "Ask.", "inputSchema": {"type": "object"}}
BATCH = {"calls": [{"tool": "shop.refund", "input": {"order": 4}}]}
CALLS: dict[str, dict[str, Any]] = {
    "approval": {"name": "hub_call", "input": BATCH},
    "question": {"name": "user_question", "input": {"text": "Which supplier?", "options": ["Halm"]}},
    "tool": {"name": "colour", "input": {}, "id": "c1"},
}
NAMES = {"approval": "shop.refund", "question": "Which supplier?", "tool": None}
ANSWERS = {"approval": {"approved": True}, "question": {"answer": "Halm"}}


async def roots(hub: Served, query: str = "") -> Any:
    return read(await hub.http.get(f"/api/calls?roots=1&counts=1&{query}"), operation("get", "/api/calls"))


async def states(hub: Served, query: str = "") -> list[tuple[str, list[str]]]:
    """The status of each root, the oldest first, and the kinds of what it waits for."""
    found = (await roots(hub, query))["calls"]
    return [(each["status"], [wait["kind"] for wait in each["waitsFor"]]) for each in reversed(found)]


async def run_states(hub: Served, query: str = "") -> list[str]:
    """The state of each run in the list of runs, the oldest first: the same as that of it alone."""
    runs = read(await hub.http.get(f"/api/runs?{query}"), operation("get", "/api/runs"))["runs"]
    found = [str(run["state"]) for run in reversed(runs)]
    alone = [(await hub.http.get(f"/api/runs/{run['id']}")).json()["state"] for run in reversed(runs)]
    assert alone == found
    return found


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
@pytest.mark.parametrize("kind", CALLS)
async def test_a_run_whose_answer_waits_is_pending_until_it_continues(tmp_path: Path, kind: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    config: dict[str, Any] = {
        "operations": [str(tmp_path / "shop.py")],
        "policy": [{"ask": "shop.refund"}],
        "pinned": ["user.question"],
    }
    steps: list[dict[str, Any]] = [{"text": "Hello."}, {"tools": [CALLS[kind]]}, {"text": "Done."}]
    async with serving(tmp_path, steps, **config) as hub:
        await hub.chat("hi", session="other")
        await hub.chat("go", tools=[COLOUR] if kind == "tool" else [])
        requests = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        id = requests[0]["id"] if requests else None
        wait = {"kind": kind, "id": id, "name": NAMES[kind]}
        [run, _] = (await roots(hub))["calls"]
        assert (run["status"], run["waitsFor"]) == ("pending", [wait])
        assert await states(hub, "status=pending") == [("pending", [kind])]
        assert await states(hub, "status=done&kind=run") == [("done", [])]
        assert await run_states(hub) == ["done", "waiting"]
        assert await run_states(hub, "state=waiting") == ["waiting"]
        assert await run_states(hub, "state=done") == ["done"]
        assert len(await states(hub, "status=done,pending&kind=run")) == 2
        counts = (await roots(hub, "kind=run"))["counts"]["status"]
        assert (counts["pending"], counts["done"]) == (1, 1)
        [head, *_] = (await hub.http.get(f"/api/calls/{run['id']}/nodes")).text.splitlines()
        assert f'"waitsFor":[{{"kind":"{kind}"' in head
        assert (await hub.http.get(f"/api/calls/{run['id']}/tree")).json()["tree"]["status"] == "pending"
        sessions = read(await hub.http.get("/api/sessions"), operation("get", "/api/sessions"))["sessions"]
        assert {each["id"]: each["waitsFor"] for each in sessions} == {"s": [wait], "other": []}

        if id is not None:
            answered = await hub.http.post(f"/api/approvals/{id}", json=ANSWERS[kind])
            assert answered.status_code == 200, answered.text
        else:
            [_, waiting] = await hub.messages()
            waiting["parts"][-1] |= {"state": "output-available", "output": "blue"}
            await hub.post({"id": "s", "messages": [waiting], "tools": [COLOUR]})

        async def are_all_done() -> bool:
            return await states(hub, "kind=run") == [("done", [])] * 3

        await until(are_all_done)
        assert await run_states(hub) == ["done"] * 3
        assert (await hub.http.get("/api/sessions/s")).json()["waitsFor"] == []


async def test_a_run_whose_request_was_withdrawn_by_the_next_message_waits_for_nothing(
    tmp_path: Path,
) -> None:
    steps: list[dict[str, Any]] = [{"tools": [CALLS["question"]]}, {"text": "As you like."}]
    async with serving(tmp_path, steps, pinned=["user.question"]) as hub:
        await hub.chat("go")
        assert await states(hub) == [("pending", ["question"])]
        await hub.post(ask("never mind", whenBusy="interrupt"))
        assert await states(hub, "kind=run") == [("done", []), ("done", [])]
        assert await run_states(hub) == ["done", "done"]


async def test_an_answer_that_was_canceled_while_it_waited_waits_for_nothing(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"tools": [CALLS["question"]]}]
    async with serving(tmp_path, steps, pinned=["user.question"]) as hub:
        task = await task_of(hub, "go")
        await until(lambda: is_paused(hub))
        await rpc(hub, "CancelTask", {"id": task["id"]})
        assert await states(hub, "kind=run") == [("aborted", [])]
        assert await run_states(hub) == ["aborted"]


async def is_paused(hub: Served) -> bool:
    return await states(hub, "kind=run") == [("pending", ["question"])]
