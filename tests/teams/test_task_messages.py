"""How teams talk to those around them: messages, tasks for the parent, decisions of others."""

from __future__ import annotations

from pathlib import Path

from tests.serving import Served, ask
from tests.teams import gate
from tests.teams.team_hub import (
    GATE_TOOLS,
    Json,
    call,
    ended,
    eventually,
    give,
    team_hub,
    until_delivered,
    until_state,
)

ALL = [f"teams.{name}" for name in ("delegate", "tell", "hand_up", "escalate")]


async def tasks_of(hub: Served, team: str) -> list[Json]:
    found: list[Json] = (await hub.http.get("/api/tasks", params={"team": team})).json()["tasks"]
    return found


def results(messages: list[Json]) -> list[Json]:
    return [part for each in messages for part in each["parts"] if part["type"].startswith("tool-")]


async def test_a_message_reaches_the_team_that_works_on_the_task(tmp_path: Path) -> None:
    steps = [
        {"tools": [call("teams_delegate", team="press", task="Write."), call("gate_hold", name="top")]},
        {"tools": [call("teams_tell", team="press", message="Hurry up.")]},
        {"text": "."},
    ]
    hold = [{"tools": [call("gate_hold", name="door")]}, {"text": "Through."}]
    teams: dict[str, Json] = {
        "main": {"members": ["press"], "allowed_tools": [*ALL, *GATE_TOOLS], "steps": steps},
        "press": {"allowed_tools": GATE_TOOLS, "steps": hold},
    }
    async with team_hub(tmp_path, teams) as hub:
        await hub.http.post("/api/chat", json=ask("go", agent="main", background=True))
        await eventually(lambda: gate.callers["door"])
        gate.doors["top"].set()
        [task] = await tasks_of(hub, "press")
        await eventually(lambda: sent(hub))
        gate.doors["door"].set()
        [end] = await ended(hub, task["id"])
        assert end.state == "done"
        texts = [
            each["parts"][0]["text"]
            for each in await hub.messages(task["sessionId"])
            if each["role"] == "user"
        ]
        assert texts == ["Write.", '[the hub] A message of the team main:\n{"message":"Hurry up."}']


async def sent(hub: Served) -> bool:
    return any(part.get("text") == "." for each in await hub.messages() for part in each["parts"])


async def test_nobody_is_told_who_has_no_task(tmp_path: Path) -> None:
    steps = [{"tools": [call("teams_tell", team="press", message="Hello.")]}, {"text": "."}]
    teams: dict[str, Json] = {
        "main": {"members": ["press"], "allowed_tools": ALL, "steps": steps},
        "press": {},
    }
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        assert "has no task of yours" in str(await hub.messages())


async def test_what_is_handed_up_twice_under_one_name_is_there_once(tmp_path: Path) -> None:
    up = call("teams_hand_up", task="Decide on the budget.", correlation_id="b-1")
    steps = [{"tools": [up]}, {"tools": [up]}, {"text": "Handed up."}]
    teams: dict[str, Json] = {"main": {}, "desk": {"parent": "main", "allowed_tools": ALL, "steps": steps}}
    async with team_hub(tmp_path, teams) as hub:
        task = await give(hub, "desk")
        await ended(hub, task.id)
        [above] = await tasks_of(hub, "main")
        assert (above["chain"], above["correlationId"]) == (["desk"], "b-1")
        await until_delivered(hub, above["id"])
        part = (await hub.messages(task.session_id))[-1]["parts"][0]
        assert part["data"]["correlationId"] == "b-1"


async def test_without_a_parent_a_person_decides(tmp_path: Path) -> None:
    asks = [{"tools": [call("teams_escalate", message="May I?", reason="It is dear.")]}, {"text": "Asked."}]
    async with team_hub(tmp_path, {"main": {"allowed_tools": ALL, "steps": asks}}) as hub:
        task = await give(hub, "main")
        await until_state(hub, task.id, "waiting")
        [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        assert "The team main asks: May I?" in approval["items"][0]["question"]["text"]
        reply = await hub.http.post(f"/api/approvals/{approval['id']}", json={"answer": "If it is under 10."})
        assert reply.status_code == 200, reply.text
        [end] = await ended(hub, task.id)
        assert (end.state, end.result) == ("done", "Asked.")
        assert "If it is under 10." in str(results(await hub.messages(task.session_id)))


async def test_the_parent_decides_and_its_answer_comes_back(tmp_path: Path) -> None:
    asks = [{"tools": [call("teams_escalate", message="May I?")]}, {"text": "Asked."}, {"text": "I may."}]
    teams: dict[str, Json] = {
        "main": {"steps": [{"text": "You may."}]},
        "desk": {"parent": "main", "allowed_tools": ALL, "steps": asks, "play": "once"},
    }
    async with team_hub(tmp_path, teams) as hub:
        task = await give(hub, "desk")
        [end] = await ended(hub, task.id)
        assert (end.state, end.result) == ("done", "I may.")
        [above] = await tasks_of(hub, "main")
        assert above["priority"] == "high"
        assert above["task"] == "The team desk asks for a decision. May I?"
