"""`/api/tasks` answers as the OpenAPI document says, and shows each owner its own tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.openapi import check, fields, refused
from tests.serving import Served, serving
from tests.teams import gate
from tests.teams.team_hub import GATE_TOOLS, call, ended, eventually, team_hub

HOLD = {"steps": [{"tools": [call("gate_hold", name="door")]}, {"text": "."}], "allowed_tools": GATE_TOOLS}


@pytest.fixture(autouse=True)
def closed_doors() -> None:
    gate.doors.clear()
    gate.callers.clear()


async def create(hub: Served, **body: Any) -> Any:
    return await check(hub, "post", "/api/tasks", json={"team": "press", "task": "Write.", **body})


async def test_a_task_is_given_listed_and_read_as_the_document_says(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        made = await create(hub, priority="high", correlationId="c", dedupKey="k")
        again = await create(hub, dedupKey="k")
        assert again == {"id": made["id"], "isNew": False}
        await ended(hub, made["id"])
        task = await check(hub, "get", "/api/tasks/{id}", id=made["id"])
        assert set(task) == fields("TeamTask")
        assert (task["state"], task["result"], task["team"]) == ("done", "press is done.", "press")
        listed = await check(hub, "get", "/api/tasks", params={"team": "press", "limit": 1})
        assert listed == {"tasks": [task], "next": made["id"]}
        rest = await check(hub, "get", "/api/tasks", params={"before": made["id"]})
        assert rest == {"tasks": [], "next": None}
        messages = (await hub.http.get(f"/api/sessions/{task['sessionId']}/messages")).json()["messages"]
        assert len(messages) == 2


async def test_a_task_is_cancelled_and_its_team_paused_over_http(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": HOLD}) as hub:
        first = (await create(hub))["id"]
        await eventually(lambda: gate.callers["door"])
        paused = await check(hub, "post", "/api/teams/{name}/pause", name="press")
        assert paused == {"team": "press", "paused": True}
        second = (await create(hub))["id"]
        task = await check(hub, "post", "/api/tasks/{id}/cancel", id=first)
        assert (task["state"], task["error"]) == ("cancelled", "cancelled by its owner")
        waiting = await check(hub, "get", "/api/tasks/{id}", id=second)
        assert waiting["state"] == "queued"
        gate.doors["door"].set()
        await check(hub, "post", "/api/teams/{name}/resume", name="press")
        [end] = await ended(hub, second)
        assert end.state == "done"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"team": "nobody"}, 404),
        ({"task": ""}, 400),
        ({"task": " "}, 400),
        ({"task": "x" * 100_001}, 400),
        ({"priority": "now"}, 400),
        ({"budget": 0}, 400),
        ({"seconds": -1}, 400),
        ({"dedupKey": "k" * 201}, 400),
        ({"session": "none"}, 404),
        ({"other": 1}, 400),
    ],
)
async def test_a_task_that_does_not_fit_is_refused(tmp_path: Path, body: Any, status: int) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        wrong = {"team": "press", "task": "Write.", **body}
        assert await refused(hub, "post", "/api/tasks", json=wrong) == status
        assert (await check(hub, "get", "/api/tasks"))["tasks"] == []


async def test_a_task_like_an_active_one_is_confirmed_by_another_request(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": HOLD}) as hub:
        await create(hub)
        like = {"team": "press", "task": "write", "overlap": "confirm"}
        assert await refused(hub, "post", "/api/tasks", json=like) == 409
        assert (await create(hub, overlap="skip"))["isNew"] is False
        assert (await create(hub, overlap="queue"))["isNew"] is True
        gate.doors["door"].set()


async def test_the_tasks_of_others_answer_404(tmp_path: Path) -> None:
    (tmp_path / "teams" / "press").mkdir(parents=True)
    (tmp_path / "teams" / "press" / "team.yaml").write_text("")
    async with serving(tmp_path, [{"text": "."}], keys=True, teams=str(tmp_path / "teams")) as hub:
        secrets = [(await hub.hub.store.keys.create(owner, scopes=["chat"]))[1] for owner in ("ann", "bob")]
        ann, bob = ({"x-api-key": secret} for secret in secrets)
        body = {"team": "press", "task": "Write."}
        id = (await hub.http.post("/api/tasks", json=body, headers=ann)).json()["id"]
        assert (await hub.http.get(f"/api/tasks/{id}", headers=ann)).status_code == 200
        for method, path in (("GET", f"/api/tasks/{id}"), ("POST", f"/api/tasks/{id}/cancel")):
            assert (await hub.http.request(method, path, headers=bob)).status_code == 404
        assert (await hub.http.get("/api/tasks", headers=bob)).json()["tasks"] == []
        for text, count in (("wRITE", 1), ("%", 0)):
            found = (await hub.http.get("/api/tasks", params={"text": text}, headers=ann)).json()["tasks"]
            assert len(found) == count
        assert (await hub.http.get("/api/tasks?owner=ann", headers=bob)).status_code == 403
        assert (await hub.http.get(f"/api/tasks?before={id}", headers=bob)).status_code == 404
        paused = await hub.http.post("/api/teams/press/pause", headers=ann)
        assert paused.status_code == 403
