"""Runs in the background: begun without a follower, read by id, followed and stopped later."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.answer_gate import Gate
from tests.databases import BACKENDS
from tests.flows.background import answer_of, read_run, send_away, until_state
from tests.flows.test_following import LONG, WHOLE, resumed, streaming, until
from tests.serving import ask, serving, text_of

DANGER = Path(__file__).with_name("approval_operation.py")
WIPE: list[dict[str, Any]] = [
    {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}, "id": "c1"}]},
    {"text": "It is gone."},
]


@pytest.mark.promise("background-runs")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_run_in_the_background_needs_nobody_to_follow_it(tmp_path: Path, gate: Gate) -> None:
    async with serving(tmp_path, [LONG], disconnect_grace=0) as hub:
        id = await send_away(hub)
        run = await read_run(hub, id)
        assert (run["state"], run["sessionId"], run["background"]) == ("running", "s", True)
        gate.opened.set()
        run = await until_state(hub, id, "done")
        assert answer_of(run) == WHOLE
        assert (run["finishReason"], run["steps"], run["error"]) == ("stop", 1, None)
        assert run["finishedAt"] > run["startedAt"]
        assert run["usage"]["outputTokens"] > 0
        assert [message["role"] for message in await hub.messages()] == ["user", "assistant"]


async def test_a_follower_that_leaves_does_not_end_it(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG], disconnect_grace=0) as hub:
        id = await send_away(hub)
        async with streaming(hub, "GET", "/api/sessions/s/stream") as pieces:
            await until(pieces, "word3")
        assert (await until_state(hub, id, "done"))["finishReason"] == "stop"
        assert text_of(await resumed(hub)) == WHOLE


async def test_the_same_message_sent_twice_is_one_run(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG]) as hub:
        first = await asyncio.gather(*(send_away(hub) for _ in range(5)))
        await until_state(hub, first[0], "done")
        assert {*first, await send_away(hub)} == {first[0]}
        listed = (await hub.http.get("/api/runs?session=s")).json()
        assert ([run["id"] for run in listed["runs"]], listed["next"]) == ([first[0]], None)


async def test_a_run_is_stopped_by_its_id(tmp_path: Path) -> None:
    async with serving(tmp_path, [{**LONG, "delay": 1}]) as hub:
        id = await send_away(hub)
        stopped = await hub.http.post(f"/api/runs/{id}/stop")
        assert stopped.json() == {"stopped": True, "runId": id}
        assert (await read_run(hub, id))["state"] == "aborted"
        assert (await hub.http.post(f"/api/runs/{id}/stop")).json() == {"stopped": False, "runId": id}
        assert (await hub.http.get("/api/runs?state=aborted")).json()["runs"][0]["id"] == id
        assert (await hub.http.get("/api/runs?state=done")).json()["runs"] == []
        assert (await hub.http.get("/api/runs?state=over")).status_code == 400


async def test_an_answer_that_waits_for_an_approval_keeps_the_id_of_its_first_run(tmp_path: Path) -> None:
    async with serving(tmp_path, WIPE, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        id = await send_away(hub)
        await until_state(hub, id, "waiting")
        [approval] = (await hub.http.get("/api/approvals")).json()["approvals"]
        await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})
        run = await until_state(hub, id, "done")
        assert answer_of(run).endswith("It is gone.")
        following = await read_run(hub, run["continuedBy"])
        assert (following["state"], following["background"]) == ("done", True)


async def test_a_run_says_why_it_failed(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"error": {"message": "no", "category": "bad_request"}}]) as hub:
        run = await until_state(hub, await send_away(hub), "failed")
        assert run["error"]


async def test_runs_are_their_owners_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], keys=True) as hub:
        keys = {}
        for owner in ("ann", "bob"):
            _, secret = await hub.hub.store.keys.create(owner)
            keys[owner] = {"authorization": f"Bearer {secret}"}
        body = ask("go", background=True)
        id = (await hub.http.post("/api/chat", json=body, headers=keys["ann"])).json()["runId"]
        for method, path in (("GET", ""), ("POST", "/stop")):
            theirs = await hub.http.request(method, f"/api/runs/{id}{path}", headers=keys["bob"])
            unknown = await hub.http.request(method, f"/api/runs/nope{path}", headers=keys["bob"])
            assert theirs.status_code == unknown.status_code == 404
            assert theirs.text.replace(id, "nope") == unknown.text
            assert (await hub.http.request(method, f"/api/runs/{id}{path}")).status_code == 401
        assert (await hub.http.get("/api/runs", headers=keys["bob"])).json()["runs"] == []
        assert (await hub.http.get("/api/runs?owner=ann", headers=keys["bob"])).status_code == 403
        await until_state(hub, id, "done", headers=keys["ann"])


async def test_a_list_of_runs_is_read_page_by_page(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Hi."}], play="turns") as hub:
        ids = []
        for number in range(5):
            ids.append(await send_away(hub, session=f"s{number}"))
            await until_state(hub, ids[-1], "done")
        found, path = [], "/api/runs?limit=2"
        while path:
            page = (await hub.http.get(path)).json()
            found += [run["id"] for run in page["runs"]]
            path = f"/api/runs?limit=2&before={page['next']}" if page["next"] else ""
        assert found == ids[::-1]


async def test_a_hub_that_is_stopped_goes_on_with_its_background_runs_when_it_starts_again(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, [{**LONG, "delay": 0.5}]) as hub:
        id = await send_away(hub)
        await cut_off_follower(hub)
    async with serving(tmp_path, [LONG]) as hub:
        assert answer_of(await until_state(hub, id, "done")) == WHOLE


async def cut_off_follower(hub: Any) -> None:
    """Follow the run until it has begun to answer."""
    async with streaming(hub, "GET", "/api/sessions/s/stream") as pieces:
        await until(pieces, "word0")


async def test_the_client_of_the_documentation_prints_the_state_and_the_answer(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "background.md"
    program = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    async with serving(tmp_path, [{"text": "Six."}]) as hub:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, hub.url, "how many?", stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await client.communicate()
    assert printed == b"done Six.\n"
