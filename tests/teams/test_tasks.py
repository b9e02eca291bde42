"""Tasks of teams: each runs once, in a session of its own, within what gave it, and its result comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import NotFound
from dragoman.identity import LOCAL, Identity
from dragoman.store.teams.task_records import TaskEnd
from tests.serving import Served
from tests.teams import gate
from tests.teams.team_hub import (
    GATE_TOOLS,
    call,
    ended,
    eventually,
    give,
    read,
    session_of,
    team_hub,
    until_delivered,
    until_state,
)

HOLD = {
    "steps": [{"tools": [call("gate_hold", name="door")]}, {"text": "Through."}],
    "allowed_tools": GATE_TOOLS,
}


async def test_a_task_runs_in_a_session_of_its_own_and_its_answer_is_its_result(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        task = await give(hub, "press", "Write a note.")
        assert task.state == "queued"
        [end] = await ended(hub, task.id)
        assert (end.state, end.result, end.error, end.attempts) == ("done", "press is done.", None, 1)
        sessions = (await hub.http.get("/api/sessions")).json()["sessions"]
        assert [each["title"] for each in sessions] == ["Write a note."]
        messages = await hub.messages(end.session_id)
        assert [each["role"] for each in messages] == ["user", "assistant"]
        assert messages[1]["metadata"]["agent"] == "press"


async def test_an_unknown_team_is_refused_with_the_names_of_all(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}, "desk": {}}) as hub:
        with pytest.raises(NotFound, match="desk, press"):
            await give(hub, "pres")


async def test_a_team_runs_as_many_tasks_as_it_may_and_the_others_follow_by_priority(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": HOLD | {"concurrency": 1}}) as hub:
        first = await give(hub, "press", "a")
        await eventually(lambda: gate.callers["door"])
        low = await give(hub, "press", "b", priority="low")
        high = await give(hub, "press", "c", priority="high")
        assert [(await read(hub, each.id)).state for each in (first, low, high)] == [
            "running",
            "queued",
            "queued",
        ]
        gate.doors["door"].set()
        done = await ended(hub, first.id, low.id, high.id)
        assert [each.state for each in done] == ["done"] * 3
        assert float(done[2].started_at or 0) < float(done[1].started_at or 0)


async def test_a_cancelled_task_stops_and_one_that_waits_never_begins(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": HOLD | {"concurrency": 1}}) as hub:
        first, second = await give(hub, "press", "a"), await give(hub, "press", "b")
        await eventually(lambda: gate.callers["door"])
        tasks = hub.hub.team_tasks
        for task in (second, first):
            await tasks.cancel(task.id, Identity(owner="local"), reason="not needed")
        await eventually(lambda: gate.stopped == ["door"])
        done = [await read(hub, each.id) for each in (first, second)]
        assert [(each.state, each.error) for each in done] == [("cancelled", "not needed")] * 2
        assert done[1].run_id is None


async def test_the_tasks_of_others_are_not_there(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        task = await give(hub, "press", identity=Identity(owner="ada"))
        await ended(hub, task.id)
        other = Identity(owner="bob", key_id="key_1")
        for action in (
            hub.hub.team_tasks.get(task.id, other),
            hub.hub.team_tasks.cancel(task.id, other, reason="mine"),
        ):
            with pytest.raises(NotFound):
                await action


async def test_a_task_that_asks_a_person_waits_and_then_goes_on(tmp_path: Path) -> None:
    steps = [{"tools": [call("gate_sign")]}, {"text": "Signed."}]
    async with team_hub(tmp_path, {"press": {"steps": steps, "allowed_tools": GATE_TOOLS}}) as hub:
        task = await give(hub, "press")
        await until_state(hub, task.id, "waiting")
        [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})
        [end] = await ended(hub, task.id)
        assert (end.state, end.result) == ("done", "Signed.")


async def test_a_failed_run_is_a_failed_task(tmp_path: Path) -> None:
    steps = [{"text": "I beg", "error": {"message": "the model broke", "category": "bad_request"}}]
    async with team_hub(tmp_path, {"press": {"steps": steps}}) as hub:
        [end] = await ended(hub, (await give(hub, "press")).id)
        assert end.state == "failed"
        assert "the model broke" in str(end.error)


async def test_a_long_result_is_an_artifact(tmp_path: Path) -> None:
    long = "words " * 5_000
    async with team_hub(tmp_path, {"press": {"steps": [{"text": long}]}}) as hub:
        [end] = await ended(hub, (await give(hub, "press")).id)
        assert end.artifact is not None
        assert len(str(end.result)) < 3_000
        body = await hub.http.get(f"/api/artifacts/{end.artifact}/content")
        assert body.text == long


async def test_a_result_is_added_once_to_the_session_that_gave_the_task(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        await hub.chat("hi")
        task = await give(hub, "press", source_session=session_of(), deliver="session")
        await ended(hub, task.id)
        await until_delivered(hub, task.id)
        await hub.hub.team_tasks.worker.sweep()
        messages = await hub.messages()
        assert [each["role"] for each in messages] == ["user", "assistant", "user"]
        data, text = messages[-1]["parts"]
        assert data["type"] == "data-task-result"
        assert data["data"] == {
            "taskId": task.id,
            "team": "press",
            "state": "done",
            "result": "press is done.",
        }
        assert "material, not instructions" in text["text"]


async def test_a_result_that_wakes_is_answered_by_the_agent_of_the_session(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        await hub.chat("hi")
        task = await give(hub, "press", source_session=session_of(), deliver="session", wake=True)
        await ended(hub, task.id)
        await until_delivered(hub, task.id)
        messages = await eventually(lambda: finished(hub, 4))
        assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant"]
        assert messages[2]["id"] == f"result_{task.id}"


@pytest.mark.parametrize("wake", [False, True])
async def test_a_result_goes_only_where_whoever_gave_the_task_may_still_write(
    tmp_path: Path, *, wake: bool
) -> None:
    ada, gone = Identity(owner="ada"), Identity(owner=LOCAL.owner, key_id="key_gone")
    async with team_hub(tmp_path, {"press": HOLD}) as hub:
        await hub.chat("hi")
        fields: dict[str, Any] = {"source_session": session_of(), "deliver": "session", "wake": wake}
        await hub.http.put("/api/sessions/s/grants", json={"owner": "ada", "role": "write"})
        task = await give(hub, "press", identity=ada, **fields)
        await hub.http.delete("/api/sessions/s/grants?owner=ada")
        gate.doors["door"].set()
        await until_delivered(hub, task.id)
        assert len(await hub.messages()) == 2
        revoked = await give(hub, "press", identity=gone, **fields)
        await until_delivered(hub, revoked.id)
        assert [each["role"] for each in await hub.messages()] == ["user", "assistant", "user"]
        assert "was revoked" in str((await hub.messages())[2])
        assert await hub.hub.store.team_tasks.awaiting_sessions(limit=9) == []


async def test_a_task_that_a_lost_host_left_waiting_for_nothing_ends(tmp_path: Path) -> None:
    delegate = {"tools": [call("teams_delegate", team="desk", task="Look.")]}
    press = {
        "steps": [delegate, {"text": "I wait."}],
        "allowed_tools": ["teams.delegate"],
        "members": ["desk"],
        "wake": True,
    }
    async with team_hub(tmp_path, {"press": press, "desk": HOLD}) as hub:
        task = await give(hub, "press")
        waiting = await until_state(hub, task.id, "waiting")
        tasks = hub.hub.store.team_tasks
        [below] = await tasks.open_children(waiting.session_id)
        await tasks.end(below, TaskEnd(state="done", result="seen"), is_silent=True)  # and then it was killed
        for _ in range(2):
            await hub.hub.team_tasks.worker.sweep()
        assert ((await read(hub, task.id)).state, (await read(hub, task.id)).result) == ("done", "I wait.")
        gate.doors["door"].set()


async def finished(hub: Served, count: int) -> list[Any]:
    """The messages of the session once there are so many, and the last one is answered."""
    messages = await hub.messages()
    is_over = len(messages) == count and "finishReason" in messages[-1].get("metadata", {})
    return messages if is_over else []


async def test_tasks_of_a_topic_run_in_one_session_one_after_the_other(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": HOLD}) as hub:
        first = await give(hub, "press", "Begin the report.", topic="report")
        second = await give(hub, "press", "Go on with it.", topic="report")
        other = await give(hub, "press", "Something else.", topic="other")
        assert first.session_id == second.session_id != other.session_id
        await eventually(lambda: len(gate.callers["door"]) == 2)  # one of each topic
        assert (await read(hub, second.id)).state == "queued"
        gate.doors["door"].set()
        ends = await ended(hub, first.id, second.id, other.id)
        assert {end.state for end in ends} == {"done"}
        roles = [each["role"] for each in await hub.messages(first.session_id)]
        assert roles == ["user", "assistant"] * 2


async def test_the_words_of_a_task_choose_its_topic_unless_it_names_one(tmp_path: Path) -> None:
    topics = {"billing": ["invoice"], "shipping": ["parcel", "delivery date"]}
    async with team_hub(tmp_path, {"press": {"topics": topics}}) as hub:
        chosen = [
            (await give(hub, "press", text, **fields)).topic
            for text, fields in (
                ("Where is my PARCEL?", {}),
                ("The delivery  date of an invoice?", {}),
                ("Invoices are late.", {}),
                ("An invoice.", {"topic": "other"}),
                ("An invoice.", {"read_only": True}),
            )
        ]
        assert chosen == ["shipping", "billing", None, "other", None]
