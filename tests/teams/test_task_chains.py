"""A task is in the call tree and the budget of what gave it, also after a crash; and loops come to an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.teams.tasks import worker
from tests.databases import copy_database, query
from tests.serving import Served, hub_of, usage
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
    write_teams,
)

DELEGATE = call("teams_delegate", team="press", task="Write it down.")
PRICES = {"*/x": {"input": 1, "output": 10}}
DEAR = usage(100_000, 1_000)  # 0.11 US dollars


@pytest.fixture(autouse=True)
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SWEEP_INTERVAL", 0.05)


def nodes(tree: Json) -> list[Json]:
    return [tree, *(each for child in tree.get("children", ()) for each in nodes(child))]


async def tree_of(hub: Served, id: str) -> Json:
    response = await hub.http.get(f"/api/calls/{id}/tree")
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


@pytest.mark.promise("task-call-tree")
async def test_the_tree_of_a_run_has_its_tasks_with_their_runs_and_calls_and_theirs(tmp_path: Path) -> None:
    ask = call("teams_ask", teams=["desk"], question="And you?")
    teams: dict[str, Json] = {
        "main": {
            "members": ["press"],
            "allowed_tools": ["teams.delegate"],
            "steps": [{"tools": [DELEGATE]}, {"text": "Given."}],
        },
        "press": {
            "members": ["desk"],
            "allowed_tools": ["teams.ask"],
            "steps": [{"tools": [ask]}, {"text": "Written."}],
        },
        "desk": {"allowed_tools": GATE_TOOLS, "steps": [{"tools": [call("gate_look")]}, {"text": "Fine."}]},
    }
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        [task] = await hub.hub.store.team_tasks.list_page({"team": "press"})
        await ended(hub, task.id)
        [root] = await hub.runs()
        found = await tree_of(hub, root.id)
        shown = {each["name"]: each for each in nodes(found["tree"])}
        press, desk = shown["press"], shown["desk"]
        assert (press["kind"], press["status"], press["id"], press["result"]) == (
            "task",
            "done",
            task.id,
            "Written.",
        )
        delegate = shown["teams.delegate"]
        assert [each["id"] for each in delegate["children"]] == [task.id]
        assert [each["kind"] for each in press["children"]] == ["run"]
        assert [each["id"] for each in shown["teams.ask"]["children"]] == [desk["id"]]
        look = shown["gate.look"]
        assert look["id"] in {each["id"] for each in nodes(desk)}
        path = (await tree_of(hub, look["id"]))["path"]
        assert [each["name"] for each in path if each["kind"] != "run"] == [
            "teams.delegate",
            "press",
            "teams.ask",
            "desk",
        ]
        assert path[0]["id"] == root.id
        # The console reads a tree as lines; what is below the run of a task is read when it is asked for.
        lines = await lines_of(hub, root.id)
        assert [(row[0], row[1], row[2], row[4]) for row in task_rows(lines)] == [
            (task.id, delegate["id"], "task", "done"),
            (press["children"][0]["id"], task.id, "run", "done"),
        ]
        below = await lines_of(hub, press["children"][0]["id"])
        assert [row[0] for row in task_rows(below)][:1] == [desk["id"]]
        assert [step["name"] for step in below[0]["head"]["path"]][-2:] == ["teams.delegate", "press"]


async def lines_of(hub: Served, id: str) -> list[Json]:
    response = await hub.http.get(f"/api/calls/{id}/nodes")
    return [msgspec.json.decode(line) for line in response.content.splitlines()]


def task_rows(lines: list[Json]) -> list[list[Any]]:
    return [row for line in lines for row in line.get("nodes", ()) if row[2] in ("task", "run")]


@pytest.mark.promise("no-endless-wakes")
async def test_results_that_wake_an_agent_again_and_again_end_with_a_message_that_says_so(
    tmp_path: Path,
) -> None:
    teams: dict[str, Json] = {
        "main": {
            "members": ["press"],
            "wake": True,
            "allowed_tools": ["teams.delegate"],
            "steps": [
                {"tools": [call("teams_delegate", team="press", task="Again.", overlap="allow")]},
                {"text": "Given."},
            ],
        },
        "press": {},
    }
    async with team_hub(tmp_path, teams, limits={"wakes": 3}) as hub:
        await hub.chat("go", agent="main")
        messages = await eventually(lambda: unanswered(hub))
        results = [each for each in messages if each["id"].startswith("result_")]
        assert len(results) == 4  # three wake it, and give the next task; the fourth wakes nobody
        assert "3 times in a row" in results[-1]["parts"][1]["text"]
        assert "3 times in a row" not in results[-2]["parts"][1]["text"]
        assert len(await hub.hub.store.team_tasks.list_page({"team": "press"})) == 4
        assert query(tmp_path / "hub", "select count(*) from hub_events where name = 'task.unanswered'") == [
            (1,)
        ]
        await hub.chat("go on", agent="main")  # a person begins a new count
        await eventually(lambda: more_tasks(hub, 5))


async def unanswered(hub: Served) -> list[Json]:
    messages = await hub.messages()
    return messages if "in a row" in str(messages[-1]["parts"]) else []


async def more_tasks(hub: Served, count: int) -> bool:
    return len(await hub.hub.store.team_tasks.list_page({"team": "press"})) > count


async def test_a_task_whose_agent_is_woken_no_more_ends_with_its_last_answer(tmp_path: Path) -> None:
    again = call("teams_delegate", team="press", task="Again.", overlap="allow")
    main: Json = {"members": ["press"], "wake": True, "allowed_tools": ["teams.delegate"]}
    teams = {"main": main | {"steps": [{"tools": [again]}, {"text": "Given."}]}, "press": {}}
    async with team_hub(tmp_path, teams, limits={"wakes": 2}) as hub:
        task = await give(hub, "main")
        [end] = await ended(hub, task.id)
        assert (end.state, end.result) == ("done", "Given.")


async def test_detached_tasks_stay_within_the_budget_of_the_answer_that_gave_them(tmp_path: Path) -> None:
    work: Json = {
        "allowed_tools": GATE_TOOLS,
        "steps": [*([{"tools": [call("gate_look")], "usage": DEAR}] * 8), {"text": "."}],
    }
    both = [call("teams_delegate", team=team, task="Work.", detached=True) for team in ("press", "desk")]
    main: Json = {
        "members": ["press", "desk"],
        "allowed_tools": ["teams.delegate"],
        "budget": {"usd": 1.0},
        "steps": [{"tools": both, "usage": DEAR}, {"text": "Given.", "usage": DEAR}],
    }
    async with team_hub(tmp_path, {"main": main, "press": work, "desk": work}, prices=PRICES) as hub:
        await hub.chat("go", agent="main")
        tasks = await hub.hub.store.team_tasks.list_page({})
        ends = await ended(hub, *(task.id for task in tasks))
        assert [(task.detached, task.deadline) for task in tasks] == [(True, None)] * 2
        assert "failed" in [end.state for end in ends]
        for end in ends:
            await until_delivered(hub, end.id)
    [(spent,)] = query(tmp_path / "hub", "select sum(cost) from usage")
    assert 0.7 < spent <= 1.0 + 0.11


@pytest.mark.promise("task-budget-after-crash")
async def test_after_a_crash_the_tasks_of_one_answer_together_stay_within_its_budget(tmp_path: Path) -> None:
    look: Json = {"tools": [call("gate_look")], "usage": DEAR}
    work: Json = {
        "allowed_tools": GATE_TOOLS,
        "steps": [{"tools": [call("gate_hold", name="door")], "usage": DEAR}, *([look] * 7), {"text": "."}],
    }
    both = [call("teams_delegate", team=team, task="Work.") for team in ("press", "desk")]
    main: Json = {
        "members": ["press", "desk"],
        "allowed_tools": ["teams.delegate"],
        "budget": {"usd": 1.0},
        "steps": [{"tools": both, "usage": DEAR}, {"text": "Given.", "usage": DEAR}],
    }
    config = write_teams(tmp_path, {"main": main, "press": work, "desk": work}, prices=PRICES)
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    async with hub_of(config, tmp_path / "hub") as hub:
        await hub.chat("go", agent="main")
        await eventually(lambda: len(gate.callers["door"]) == 2)
        copy_database(tmp_path / "hub", copy)
    gate.doors["door"].set()
    async with hub_of(config, copy) as hub:
        tasks = await hub.hub.store.team_tasks.list_page({})
        ends = await ended(hub, *(task.id for task in tasks))
        assert [end.state for end in ends] == ["failed", "failed"]
        for end in ends:
            await until_delivered(hub, end.id)
    [(spent,)] = query(copy, "select sum(cost) from usage")
    assert 0.7 < spent <= 1.0 + 0.11
