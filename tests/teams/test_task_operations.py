"""How agents give tasks to teams: ask, delegate, look; and what is stopped, confirmed or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.operations.context import Context
from tests.serving import Served, ask
from tests.teams import gate
from tests.teams.team_hub import (
    GATE_TOOLS,
    Json,
    call,
    ended,
    eventually,
    give,
    session_of,
    team_hub,
    until_state,
)

ASK = call("teams_ask", teams=["press", "desk"], question="What is new?")
DELEGATE = call("teams_delegate", team="press", task="Write it down.")
HOLD = {
    "steps": [{"tools": [call("gate_hold", name="door")]}, {"text": "Through."}],
    "allowed_tools": GATE_TOOLS,
}
TOOLS = ["teams.ask", "teams.delegate", "teams.status", "teams.history", "teams.list"]
MAIN = {"members": ["press", "desk"], "allowed_tools": TOOLS}


def main(*steps: Json, **fields: Any) -> Json:
    return {**MAIN, "steps": list(steps), **fields}


async def tasks_of(hub: Served, team: str) -> list[Any]:
    return list(await hub.hub.store.team_tasks.list_page({"team": team}))


def outputs(messages: list[Json]) -> list[Any]:
    return [part["output"] for each in messages for part in each["parts"] if "output" in part]


async def test_a_team_asks_several_at_once_and_gets_their_answers(tmp_path: Path) -> None:
    desk = {"steps": [{"tools": [call("gate_look")]}, {"text": "All quiet."}], "allowed_tools": GATE_TOOLS}
    teams = {"main": main({"tools": [ASK]}, {"text": "Heard."}), "press": {}, "desk": desk}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        [answers] = outputs(await hub.messages())
        assert [(each["team"], each["state"], each["result"]) for each in answers] == [
            ("press", "done", "press is done."),
            ("desk", "done", "All quiet."),
        ]


async def test_whoever_is_asked_only_reads(tmp_path: Path) -> None:
    gate.doors["door"].set()
    question = call("teams_ask", teams=["press"], question="Go through.")
    async with team_hub(
        tmp_path, {"main": main({"tools": [question]}, {"text": "."}), "press": HOLD, "desk": {}}
    ) as hub:
        await hub.chat("go", agent="main")
        assert gate.callers["door"] == []
        [task] = await tasks_of(hub, "press")
        assert task.read_only


async def test_a_delegated_task_returns_at_once_and_its_result_comes_later(tmp_path: Path) -> None:
    teams = {"main": main({"tools": [DELEGATE]}, {"text": "Given."}), "press": HOLD, "desk": {}}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        [output] = outputs(await hub.messages())
        assert (output["team"], output["state"], output["isNew"]) == ("press", "queued", True)
        gate.doors["door"].set()
        [end] = await ended(hub, output["taskId"])
        assert (end.state, end.chain, end.source_session) == ("done", ("main",), session_of())
        messages = await eventually(lambda: with_result(hub))
        assert messages[-1]["parts"][0]["data"]["result"] == "Through."


async def with_result(hub: Served) -> list[Json]:
    messages = await hub.messages()
    return messages if messages[-1]["parts"][0]["type"] == "data-task-result" else []


async def waits(hub: Served) -> dict[str, Any]:
    """What the newest run of each agent waits for; the list of runs calls the same ones waiting."""
    calls = (await hub.http.get("/api/calls?roots=1&kind=run")).json()["calls"]
    assert {(each["status"] == "pending") == bool(each["waitsFor"]) for each in calls} == {True}
    runs = (await hub.http.get("/api/runs")).json()["runs"]
    waiting = {run["id"] for run in runs if run["state"] == "waiting"}
    assert waiting == {each["id"] for each in calls if each["waitsFor"]}
    return {each["agent"]: each["waitsFor"] for each in reversed(calls) if each["agent"] in ("boss", "main")}


async def test_with_wake_the_result_is_answered_and_the_task_above_waits_for_it(tmp_path: Path) -> None:
    steps: list[Json] = [{"tools": [DELEGATE]}, {"text": "Given."}, {"text": "Got it."}]
    boss = main({"tools": [call("teams_delegate", team="main", task="Have it written.")]}, {"text": "."})
    teams = {
        "boss": boss | {"members": ["main"]},
        "main": main(*steps, wake=True, play="once"),
        "press": HOLD,
        "desk": {},
    }
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="boss")
        [task] = await tasks_of(hub, "main")
        await until_state(hub, task.id, "waiting")
        [below] = await tasks_of(hub, "press")
        wait = {"kind": "task", "id": below.id, "name": "press"}
        assert await waits(hub) == {"boss": [], "main": [wait]}
        gate.doors["door"].set()
        [end] = await ended(hub, task.id)
        assert end.state == "done"
        assert below.chain == ("boss", "main")
        assert not any((await waits(hub)).values())


async def test_a_result_wakes_the_agent_that_gave_the_task_though_the_session_names_none(
    tmp_path: Path,
) -> None:
    steps: list[Json] = [{"tools": [DELEGATE]}, {"text": "Given."}, {"text": "Got it."}]
    teams = {"main": main(*steps, wake=True, play="once"), "press": HOLD, "desk": {}}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        gate.doors["door"].set()
        messages = await eventually(lambda: with_answer(hub, "Got it."))
        assert messages[-1]["metadata"]["agent"] == "main"


async def with_answer(hub: Served, text: str) -> list[Json]:
    messages = await hub.messages()
    return messages if text in [part.get("text") for part in messages[-1]["parts"][-1:]] else []


async def test_a_wrong_name_is_an_argument_error_that_lists_the_right_ones(tmp_path: Path) -> None:
    wrong = call("teams_delegate", team="pres", task="Write.")
    teams = {"main": main({"tools": [wrong]}, {"text": "."}), "press": {}, "desk": {}, "other": {}}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        [error] = [
            part["errorText"]
            for each in await hub.messages()
            for part in each["parts"]
            if "errorText" in part
        ]
        assert '"press"' in error
        assert '"desk"' in error
        assert '"other"' not in error


async def test_a_team_is_shown_whom_it_may_ask_and_no_others(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"main": main(), "press": {}, "desk": {}, "other": {}}) as hub:
        calls = hub.hub._services.calls
        shown = calls.get_operation("teams.delegate", Context(agent="main")).input_schema
        assert shown["properties"]["team"]["enum"] == ["desk", "press"]
        person = calls.get_operation("teams.ask", Context()).input_schema
        assert person["properties"]["teams"]["items"]["enum"] == ["desk", "main", "other", "press"]


async def test_a_stopped_run_stops_all_below_it_before_it_is_closed(tmp_path: Path) -> None:
    deep = call("teams_delegate", team="desk", task="Hold.")
    middle = main({"tools": [deep, call("gate_hold", name="middle")]}, allowed_tools=[*TOOLS, *GATE_TOOLS])
    hold = call("gate_hold", name="top")
    top = main({"tools": [DELEGATE, hold]}, allowed_tools=[*TOOLS, *GATE_TOOLS])
    desk = {"steps": [{"tools": [call("gate_hold", name="deep")]}], "allowed_tools": GATE_TOOLS}
    async with team_hub(tmp_path, {"main": top, "press": middle, "desk": desk}) as hub:
        response = await hub.http.post("/api/chat", json=background("go", agent="main"))
        assert response.status_code == 202, response.text
        await eventually(lambda: all(gate.callers[name] for name in ("top", "middle", "deep")))
        run = hub.active_run()
        assert run is not None
        below = [
            hub.hub.runs.get_active((await tasks_of(hub, team))[0].session_id) for team in ("press", "desk")
        ]
        run.stop("stopped by the user")
        reasons = [each._stop_reason for each in below if each is not None]
        assert reasons == ["what gave the task was stopped"] * 2  # at once, before anything else happens
        await run.done.wait()
        for team in ("press", "desk"):
            [task] = await tasks_of(hub, team)
            [end] = await ended(hub, task.id)
            assert (end.state, end.error) == ("cancelled", "what gave the task was stopped")
        assert sorted(gate.stopped) == ["deep", "middle", "top"]
        messages = await hub.messages()
        assert [each["role"] for each in messages] == [
            "user",
            "assistant",
        ]  # no result wakes what was stopped


async def test_a_detached_task_goes_on(tmp_path: Path) -> None:
    detached = call("teams_delegate", team="press", task="Write it down.", detached=True)
    top = main({"tools": [detached, call("gate_hold", name="top")]}, allowed_tools=[*TOOLS, *GATE_TOOLS])
    async with team_hub(tmp_path, {"main": top, "press": HOLD, "desk": {}}) as hub:
        await hub.http.post("/api/chat", json=background("go", agent="main"))
        await eventually(lambda: gate.callers["door"] and gate.callers["top"])
        await hub.http.post("/api/chat/s/stop")
        gate.doors["door"].set()
        [task] = await tasks_of(hub, "press")
        [end] = await ended(hub, task.id)
        assert end.state == "done"


async def test_a_person_confirms_a_task_like_one_that_runs(tmp_path: Path) -> None:
    again = call("teams_delegate", team="press", task="write  it DOWN")
    teams = {
        "main": main({"tools": [DELEGATE]}, {"tools": [again]}, {"text": "."}),
        "press": HOLD,
        "desk": {},
    }
    for approved in (True, False):
        gate.doors.clear()
        async with team_hub(tmp_path / str(approved), teams) as hub:
            await hub.chat("go", agent="main")
            [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
            assert "like this" in approval["items"][0]["reason"]
            assert len(await tasks_of(hub, "press")) == 1
            await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": approved})
            await eventually(lambda: closed(hub))
            assert len(await tasks_of(hub, "press")) == (2 if approved else 1)
            gate.doors["door"].set()


async def closed(hub: Served) -> bool:
    messages = await hub.messages()
    parts = [part for each in messages for part in each["parts"]]
    return any(part.get("text") == "." for part in parts)


async def test_tasks_are_nested_five_deep_at_most(tmp_path: Path) -> None:
    names = [f"t{at}" for at in range(7)]
    teams = {
        name: {
            "members": [below],
            "allowed_tools": TOOLS,
            "steps": [{"tools": [call("teams_ask", teams=[below], question="And you?")]}, {"text": name}],
        }
        for name, below in zip(names, [*names[1:], "t0"], strict=True)
    }
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="t0")
        counts = [len(await tasks_of(hub, name)) for name in names]
        assert counts == [0, 1, 1, 1, 1, 1, 0]
        [last] = await tasks_of(hub, "t5")
        messages = await hub.messages(last.session_id)
        assert "5 deep at most" in str(messages)


async def test_what_a_team_may_not_call_is_not_there_for_it(tmp_path: Path) -> None:
    teams = {"main": main({"tools": [DELEGATE]}, {"text": "."}, allowed_tools=["teams.ask"]), "press": {}}
    teams["desk"] = {}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        assert await tasks_of(hub, "press") == []


async def test_status_list_and_history_tell_of_the_owners_tasks(tmp_path: Path) -> None:
    look = [call("teams_status"), call("teams_list"), call("teams_history")]
    press = {"description": "Writes.", "accepts": ["notes"]}
    teams = {"main": main({"tools": look}, {"text": "."}), "press": press, "desk": HOLD}
    async with team_hub(tmp_path, teams) as hub:
        done, waiting = await give(hub, "press", "One."), await give(hub, "desk", "Two.")
        await ended(hub, done.id)
        await eventually(lambda: gate.callers["door"])
        await hub.chat("go", agent="main")
        status, listed, history = outputs(await hub.messages())
        assert {each["team"]: each["tasks"] for each in status} == {
            "desk": {"running": 1},
            "main": {},
            "press": {},
        }
        assert [each["team"] for each in listed] == ["desk", "press"]
        assert listed[1]["accepts"] == ["notes"]
        assert [(each["taskId"], each["result"]) for each in history] == [(done.id, "press is done.")]
        gate.doors["door"].set()
        await ended(hub, waiting.id)


def background(text: str, **fields: Any) -> Json:
    return ask(text, background=True, **fields)
